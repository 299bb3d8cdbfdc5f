"""Folders that last as long as their process, and locks that others cannot misuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edgeloop._util import files
from edgeloop._util.files import ScratchFolder, own_folder, try_lock
from edgeloop.errors import LocalFileError
from edgeloop.runner.resources import WorkFolder

HOLD = """
import os, sys
from pathlib import Path
from edgeloop.runner.resources import WorkFolder
with WorkFolder(Path(sys.argv[1])).stage_folder() as folder:
    (folder / "net.onnx").write_text("weights")
    print(folder, flush=True)
    sys.stdin.read()
    os._exit(9)
"""


def holder(work: Path, *before: str) -> tuple[subprocess.Popen[str], Path]:
    """A process that is in the middle of a stage; it kills itself when its input ends."""
    command = [*before, sys.executable, "-c", HOLD, str(work)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def enter(work: Path) -> None:
    with WorkFolder(work).stage_folder():
        pass


@pytest.mark.parametrize("has_locks", [True, False])
def test_the_folder_of_a_stage_stays_while_its_runner_lives_and_goes_after_a_kill(
    tmp_path: Path, has_locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_locks:
        monkeypatch.setattr(files, "fcntl", None)
    process, folder = holder(tmp_path / "work")
    enter(tmp_path / "work")
    assert (folder / "net.onnx").exists()
    process.communicate("")
    enter(tmp_path / "work")
    assert list((tmp_path / "work" / "stages").iterdir()) == []


@pytest.mark.server
@pytest.mark.parametrize("has_locks", [True, False])
def test_the_folder_of_a_runner_in_another_container_is_left_alone(
    tmp_path: Path, has_locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process has no number here, and may have that of another here."""
    if not has_locks:
        monkeypatch.setattr(files, "fcntl", None)
    container = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    process, folder = holder(tmp_path / "work", *container)
    enter(tmp_path / "work")
    assert (folder / "net.onnx").exists()
    process.communicate("")
    enter(tmp_path / "work")
    assert folder.exists() is not has_locks, "without locks nobody knows, so it stays"


def test_what_belongs_to_another_machine_is_left_alone_for_a_day(tmp_path: Path) -> None:
    foreign = tmp_path / "0badc0de-12345678-999999999-abc"
    old_style = tmp_path / "999999999-abc"
    others = [tmp_path / name for name in ("notes", "a-b-c-d", "my-3-4-5-6")]
    for folder in (foreign, old_style, *others):
        folder.mkdir()
    ScratchFolder(tmp_path).close()
    assert foreign.exists()
    assert old_style.exists()
    for folder in (foreign, old_style, *others):
        os.utime(folder, (0, 0))
    ScratchFolder(tmp_path).close()
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "text").write_text("mine")
    boot, space = files._where_we_are()
    stages = tmp_path / "stages"
    stages.mkdir()
    (stages / f"{boot}-{space}-999999999-abc").symlink_to(thesis)
    ScratchFolder(stages).close()
    assert (thesis / "text").read_text() == "mine"


def test_a_lock_follows_no_link_and_changes_no_file(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("mine")
    link, pipe, used = (tmp_path / name for name in ("link.lock", "pipe.lock", "used.lock"))
    link.symlink_to(thesis)
    with pytest.raises(LocalFileError, match="this is a link"):
        try_lock(link)
    os.mkfifo(pipe)
    with pytest.raises(LocalFileError, match="not a plain file"):
        try_lock(pipe)
    used.write_text("4711")
    lock = try_lock(used)
    assert lock is not None
    os.close(lock)
    assert (thesis.read_text(), used.read_text()) == ("mine", "4711")


def test_a_folder_for_locks_is_closed_to_others_and_never_anothers(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    assert own_folder(tmp_path / "open").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(LocalFileError, match="not a folder"):
        own_folder(tmp_path / "link")
    if os.geteuid() == 0:
        (tmp_path / "anothers").mkdir()
        os.chown(tmp_path / "anothers", 20_002, 20_002)
        with pytest.raises(LocalFileError, match="belongs to another user"):
            own_folder(tmp_path / "anothers")


AS_ANOTHER_USER = """
import os, sys, threading
from edgeloop.errors import LocalFileError
from edgeloop.runner.resources import CpuPool
os.setgroups([])
os.setgid(20_001)
os.setuid(20_001)
try:
    with CpuPool().turn(threading.Event()):
        print("quantized")
except LocalFileError as error:
    print(error)
"""


@pytest.mark.server
def test_what_another_user_puts_in_the_way_of_a_runner_empties_no_file(tmp_path: Path) -> None:
    """In a folder for temporary files that is everybody's; the runner's user has no home."""
    open_to_all = Path(tempfile.mkdtemp())
    open_to_all.chmod(0o1777)
    try:
        home = open_to_all / "home"
        home.mkdir()
        thesis = home / "thesis.txt"
        thesis.write_text("mine")
        trap = open_to_all / "edgeloop-20001"
        trap.mkdir()
        for name in ("quantize.lock", "cpus.lock", "cpu-0.lock"):
            (trap / name).symlink_to(thesis)
        for path, owner in ((home, 20_001), (thesis, 20_001), (trap, 20_002)):
            os.chown(path, owner, owner)
        environ = {"TMPDIR": str(open_to_all), "PYTHONDONTWRITEBYTECODE": "1"}
        assert "belongs to another user" in _as_another_user(environ)
        assert _as_another_user({**environ, "HOME": str(home)}) == "quantized\n"
        assert thesis.read_text() == "mine"
        assert sorted(path.name for path in trap.iterdir())[0] == "cpu-0.lock"
    finally:
        shutil.rmtree(open_to_all)


def _as_another_user(environ: dict[str, str]) -> str:
    command = [sys.executable, "-c", AS_ANOTHER_USER]
    return subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
