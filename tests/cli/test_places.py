"""A store that was named and is not there is neither taken for an empty one nor made in silence."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop._util.system import unmounted_above
from tests.cli.running import Finished, run_main
from tests.nets import save_tiny

Command = Callable[..., Finished]


@pytest.fixture
def run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    return lambda *arguments: run_main(arguments, monkeypatch, capfd)


@pytest.mark.parametrize(
    "words",
    ["status", "experiments", "list", "download x", "delete x -y", "reset x", "queue", "usage",
     "pareto", "gc --yes", "data list", "data pull faces", "fleet status", "store check",
     "store repair", "runner", "runner --once", "runner --drain"],
)  # fmt: skip
def test_a_named_store_that_is_not_there_is_an_error_of_reading_commands(
    run: Command, tmp_path: Path, words: str
) -> None:
    place = tmp_path / "disk" / "store"
    for makes in (lambda: None, lambda: place.mkdir(parents=True)):  # or an empty mount point
        makes()
        said = run(*words.split(), "--store", f"sqlite:{place}").sentence
        assert f"there is no store at {place}" in said and "mounted" in said
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    ["status", "runner", "runner --drain", "job list", "job status", "job status x", "job logs x"],
)
def test_a_file_in_place_of_the_store_is_said_by_every_command(
    run: Command, project: Path, words: str
) -> None:
    (project / ".edgeloop").write_text("")
    assert f"{project / '.edgeloop'}: this is a file, not a folder" in run(*words.split()).sentence


@pytest.mark.server
@pytest.mark.parametrize("name", ["", "store.db"])
def test_a_portal_does_not_begin_on_what_is_no_store(
    run: Command, project: Path, name: str
) -> None:
    """`status` says the same."""
    place = project / ".edgeloop" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("no store" * 1_000)
    said = run("status").sentence
    assert ".edgeloop" in said and ("damaged" if name else "not a folder") in said
    with socket.create_server(("127.0.0.1", 0)) as taken:  # where a portal would not stay either
        port = taken.getsockname()[1]
        assert run("portal", "--port", port, "--no-token").sentence == said


def test_an_upload_begins_a_named_store_and_says_so_once(
    run: Command, project: Path, tmp_path: Path
) -> None:
    place = tmp_path / "new" / "store"
    (project / "broken.onnx").write_text("x")
    assert "was not uploaded" in run("upload", "broken.onnx", "--store", f"sqlite:{place}").sentence
    assert not place.exists()
    save_tiny(project / "net.onnx")
    said = run("upload", "net.onnx", "--store", f"sqlite:{place}")
    assert said.code == 0 and said.err == f"edgeloop: a new store was made at {place}.\n"
    said = run("upload", "net.onnx", "--store", f"sqlite:{place}")
    assert said.code == 0 and said.err == ""
    assert run("status", "--store", f"sqlite:{place}").code == 0


def test_the_store_of_a_project_needs_no_beginning(run: Command, project: Path) -> None:
    assert run("status").code == 0
    assert not (project / ".edgeloop").exists()
    save_tiny(project / "net.onnx")
    assert run("upload", "net.onnx").err == ""
    assert (project / ".edgeloop").stat().st_mode & 0o077 == 0


def test_a_disk_that_should_be_mounted_is_named_and_nothing_is_made_below_it(
    run: Command, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "fstab"
    disk = tmp_path / "a disk"
    disk.mkdir()
    place = str(disk).replace(" ", "\\040")
    table.write_text(f"# disks\nUUID=1 / ext4 defaults 0 1\nnas:/x {place} nfs4 noauto 0 0\n")
    assert unmounted_above(disk / "store", table) == disk
    assert unmounted_above(tmp_path / "else", table) is None
    assert unmounted_above(disk, tmp_path / "no table") is None
    monkeypatch.setattr(unmounted_above, "__defaults__", (table,))
    save_tiny(project / "net.onnx")
    for words in (["status"], ["upload", "net.onnx"]):
        said = run(*words, "--store", f"sqlite:{disk / 'store'}").sentence
        assert f"{disk} is not mounted" in said
    assert list(disk.iterdir()) == []


def test_files_that_are_not_mounted_are_said_by_those_who_need_them(
    run: Command, project: Path
) -> None:
    with Workspace.open() as workspace:
        workspace.upload(save_tiny(project / "net.onnx"), "calm-heron", check=False)
    (project / ".edgeloop" / "blobs").rename(project / "elsewhere")
    assert run("status").code == 0
    for words in (["list", "calm-heron"], ["download", "calm-heron"], ["delete", "calm-heron"]):
        said = run(*words).sentence
        assert "their folder is missing, and may be on a disk" in said
        assert "check that it is mounted" in said and "server" not in said
    (project / "elsewhere").rename(project / ".edgeloop" / "blobs")
    assert run("delete", "calm-heron").code == 0
