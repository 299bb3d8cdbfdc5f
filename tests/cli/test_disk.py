"""Read-only folders and full disks: real mounts, in a namespace of the command's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop.store import SqliteLocation, open_store
from tests.cli.running import Finished, blobs_of, finished, notes_of, rows_of, start_command
from tests.nets import save_external, save_tiny

pytestmark = pytest.mark.server

READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0"'
# Mounts something over a folder that only this process and those it starts see, runs the command,
# and copies what is in the folder to `after`.
IN_A_NAMESPACE = """
import ctypes, os, subprocess, sys
from pathlib import Path
from edgeloop.cli import main
_, mounting, folder, *arguments = sys.argv
sys.argv = ["edgeloop", *arguments]
user, group = os.geteuid(), os.getegid()
NEW_MOUNTS, NEW_USER = 0x0002_0000, 0x1000_0000
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(NEW_MOUNTS | (NEW_USER if user else 0)):
    raise OSError(ctypes.get_errno(), "unshare")
if user:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["sh", "-c", mounting, folder], check=True)
try:
    main()
finally:
    subprocess.run(["cp", "-a", folder, "after"], check=True)
"""
# As if another program had filled the disk just after we looked.
WITHOUT_LOOKING = """
from edgeloop.node.files import FolderBlobs
FolderBlobs.has_room_for = lambda self, size: True
"""
# The check of the graph needs no disk, and takes longer than all the rest.
UPLOAD = ["upload", "net.onnx", "--name", "x1", "--no-check"]


def in_a_namespace(
    mounting: str, folder: Path, arguments: list[str], project: Path, before: str = ""
) -> Finished:
    words = [mounting, folder, *arguments]
    return finished(start_command(words, project, {}, before + IN_A_NAMESPACE))


def full_disk(size: str) -> str:
    return f'mount -t tmpfs -o size={size} tmpfs "$0"'


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_an_upload_to_a_read_only_folder_is_refused(project: Path):
    save_tiny(project / "net.onnx")
    (project / ".edgeloop").mkdir()
    said = in_a_namespace(READ_ONLY, project / ".edgeloop", ["upload", "net.onnx"], project)
    assert "refused" in said.sentence
    assert files_in(project / ".edgeloop") == []


def test_an_upload_into_a_read_only_project_is_refused(project: Path, tmp_path: Path):
    save_tiny(tmp_path / "net.onnx")
    (project / "inner").mkdir()
    store = f"sqlite:{project / 'inner/new/store'}"
    arguments = ["upload", str(tmp_path / "net.onnx"), "--store", store, "--no-check"]
    said = in_a_namespace(READ_ONLY, project / "inner", arguments, project)
    assert "read-only" in said.sentence
    assert list((project / "inner").iterdir()) == []


@pytest.mark.parametrize(
    "verb",
    [["upload", "new.onnx", "--no-check"], ["delete", "calm-heron", "--yes"],
     ["reset", "calm-heron"], ["priority", "calm-heron", "1"]],
    ids=lambda verb: verb[0],
)  # fmt: skip
def test_a_store_that_became_read_only_refuses_and_stays_as_it_is(project: Path, verb: list[str]):
    save_tiny(project / "new.onnx", 2)
    with Workspace.open() as workspace:
        workspace.upload(save_tiny(project / "net.onnx", 1), "calm-heron")
        before = rows_of(workspace.store), blobs_of(workspace.store)
    said = in_a_namespace(READ_ONLY, project / ".edgeloop", verb, project)
    assert "Check the credentials and your permissions" in said.sentence
    with Workspace.open() as workspace:
        assert (rows_of(workspace.store), blobs_of(workspace.store)) == before


@pytest.mark.parametrize("size", ["16k", "48k", "64k", "80k", "96k", "128k", "200k", "400k"])
def test_an_upload_to_a_full_disk_leaves_nothing_half_made(project: Path, size: str):
    save_external(project / "net.onnx", size=400)  # 642 kB
    folder = project / ".edgeloop"
    folder.mkdir()
    said = in_a_namespace(full_disk(size), folder, UPLOAD, project)
    assert "is full" in said.sentence and "Free some space" in said.sentence
    assert files_in(project / "after") == []


@pytest.mark.parametrize("size", ["16k", "32k", "48k"])
def test_a_disk_without_room_for_the_table_is_said_to_be_full(project: Path, size: str):
    save_external(project / "net.onnx", size=400)
    folder = project / ".edgeloop"
    folder.mkdir()
    said = in_a_namespace(full_disk(size), folder, UPLOAD, project, WITHOUT_LOOKING)
    assert "is full" in said.sentence and "Free some space" in said.sentence


@pytest.mark.parametrize("size", ["128k", "200k", "400k"])
def test_an_upload_during_which_the_disk_gets_full_is_taken_back(project: Path, size: str):
    save_external(project / "net.onnx", size=400)
    folder = project / ".edgeloop"
    folder.mkdir()
    said = in_a_namespace(full_disk(size), folder, UPLOAD, project, WITHOUT_LOOKING)
    assert "is full" in said.sentence and "Free some space" in said.sentence
    store = open_store(SqliteLocation(project / "after"))
    assert rows_of(store) == {} and notes_of(store) == []
    assert [name for name in files_in(project / "after") if name.startswith("blobs/")] == []
    store.close()


def test_an_upload_that_fits_is_kept(project: Path):
    save_external(project / "net.onnx", size=400)
    folder = project / ".edgeloop"
    folder.mkdir()
    said = in_a_namespace(full_disk("2m"), folder, UPLOAD, project)
    assert said.code == 0, said.err
    store = open_store(SqliteLocation(project / "after"))
    assert len(blobs_of(store)) == 2 and rows_of(store)["x1"]["status"] == "new"
    store.close()


@pytest.mark.parametrize("size", ["4k", "200k"])
def test_a_download_to_a_full_disk_leaves_no_part_of_a_file(project: Path, size: str):
    with Workspace.open() as workspace:
        workspace.upload(save_external(project / "net.onnx", size=400), "calm-heron")
    (project / "out").mkdir()
    arguments = ["download", "calm-heron", "--output", "out"]
    said = in_a_namespace(full_disk(size), project / "out", arguments, project)
    assert "No space left" in said.sentence and "out/weights.bin" in said.sentence
    assert set(files_in(project / "after")) <= {"net.onnx"}
    for name in files_in(project / "after"):
        assert (project / "after" / name).read_bytes() == (project / name).read_bytes()


def test_a_download_to_a_read_only_folder_is_refused(project: Path):
    with Workspace.open() as workspace:
        workspace.upload(save_tiny(project / "net.onnx"), "calm-heron")
    (project / "out").mkdir()
    arguments = ["download", "calm-heron", "--output", "out/new"]
    said = in_a_namespace(READ_ONLY, project / "out", arguments, project)
    assert "Read-only file system" in said.sentence
    assert list((project / "out").iterdir()) == []


def test_a_csv_on_a_full_disk_leaves_the_old_file(project: Path):
    with Workspace.open() as workspace:
        rows = [(f"m{n}", {"name": f"m{n}", "error": "x" * 1_000}) for n in range(50)]
        workspace.store.models("default").insert_many(rows)
    (project / "out").mkdir()
    mounting = full_disk("16k") + ' && echo old > "$0/s.csv"'
    arguments = ["status", "--csv", "out/s.csv"]
    said = in_a_namespace(mounting, project / "out", arguments, project)
    assert "No space left" in said.sentence
    assert files_in(project / "after") == ["s.csv"]
    assert (project / "after/s.csv").read_text() == "old\n"


def test_a_store_on_a_full_disk_can_be_looked_at_and_cleared(project: Path):
    """Not a byte is left: SQLite cannot even make the files beside its database."""
    with Workspace.open() as workspace:
        for name in ("calm-heron", "brave-fox"):
            workspace.upload(save_external(project / f"{name}/net.onnx", size=100), name)
    kept = project / "kept"
    (project / ".edgeloop").rename(kept)
    (project / ".edgeloop").mkdir()
    fill = 'dd if=/dev/zero of="$0/filler" bs=1 count=1 conv=notrunc'
    fill = f'{fill}; dd if=/dev/zero of="$0/filler" bs=4k 2>/dev/null; true'
    mounting = f'{full_disk("400k")} && cp -a "{kept}/." "$0" && ({fill})'
    folder = project / ".edgeloop"
    for verb in (["status"], ["download", "--list"], ["download", "calm-heron", "--output", "out"]):
        said = in_a_namespace(mounting, folder, verb, project)
        assert said.code == 0, said
        shutil.rmtree(project / "after")
    assert "calm-heron" in in_a_namespace(mounting, folder, ["status"], project).out
    shutil.rmtree(project / "after")
    said = in_a_namespace(mounting, folder, ["delete", "calm-heron", "--yes"], project)
    assert said.code == 0, said
    store = open_store(SqliteLocation(project / "after"))
    assert set(rows_of(store)) == {"brave-fox"}
    assert {key.split("/")[1] for key in blobs_of(store)} == {"brave-fox"}
    store.close()


def test_a_store_in_a_read_only_folder_can_be_looked_at(project: Path):
    with Workspace.open() as workspace:
        workspace.upload(save_tiny(project / "net.onnx", 1), "calm-heron")
    for verb in (["status"], ["download", "calm-heron", "--output", "out"], ["store", "check"]):
        said = in_a_namespace(READ_ONLY, project / ".edgeloop", verb, project)
        assert said.code == 0, said
        shutil.rmtree(project / "after")
