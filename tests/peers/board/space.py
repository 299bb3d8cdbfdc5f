"""Namespaces of one board: its files, its processes, and the way in from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.peers.board import places
from tests.peers.process import find_program, wait_until

REPOSITORY = Path(__file__).parents[3]
LIMIT_S = 30.0


class Space:
    """Starts with it, ends with it: whatever runs inside, and every mount."""

    def __init__(self, folder: Path, disk_bytes: int) -> None:
        self._folder = folder
        self._disk_bytes = disk_bytes
        self._unshare: subprocess.Popen[str] | None = None

    @property
    def is_open(self) -> bool:
        return self._unshare is not None

    @property
    def root(self) -> Path:
        """The board's `/` as this machine sees it."""
        return Path(f"/proc/{self.first_process}/root")

    def place(self, inside: Path) -> Path:
        return self.root / inside.relative_to("/")

    @property
    def first_process(self) -> int:
        unshare = self._running().pid
        return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])

    def open(self, properties: Mapping[str, str]) -> None:
        self._folder.mkdir(parents=True)
        (self._folder / "properties.json").write_text(json.dumps(dict(properties)))
        with self._log.open("ab") as log:
            self._unshare = subprocess.Popen(
                [
                    *(find_program("unshare"), "--mount", "--pid", "--fork", "--kill-child"),
                    *(sys.executable, "-m", "tests.peers.board.init"),
                    *(str(self._folder), str(self._disk_bytes)),
                ],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        wait_until(self._is_made, LIMIT_S, "the board's files")

    def run(self, argv: list[str], environ: Mapping[str, str]) -> None:
        """Starts a program inside and does not wait for it."""
        pipe = self._running().stdin
        assert pipe is not None
        pipe.write(json.dumps({"argv": argv, "environ": dict(environ)}) + "\n")
        pipe.flush()

    def resize_disk(self, size: int | None = None) -> None:
        """To so many bytes, or to what it was made with."""
        inside = ["nsenter", "--target", str(self.first_process), "--mount", "--root"]
        mount = ["mount", "-o", f"remount,size={size or self._disk_bytes}", "/data"]
        subprocess.run([*inside, *mount], check=True, timeout=LIMIT_S)

    def processes(self) -> list[int]:
        """All that live inside now, by their numbers on this machine."""
        return [pid for pid in self._inside() if not _is_dead(pid)]

    def processes_of(self, program: Path) -> list[int]:
        return [pid for pid in self.processes() if _program_of(pid) == program]

    def signal_all(self, number: signal.Signals, but: int = 0) -> None:
        for pid in self._inside():
            if pid != but:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def close(self) -> None:
        if self._unshare is None:
            return
        inside = self._inside()
        with contextlib.suppress(IndexError, OSError):
            os.kill(self.first_process, signal.SIGKILL)  # and so all of them
        try:
            self._unshare.communicate(timeout=LIMIT_S)
        finally:
            self._unshare.kill()
            self._unshare = None
        wait_until(lambda: all(map(_is_dead, inside)), LIMIT_S, "the board's end")

    @property
    def _log(self) -> Path:
        return self._folder / "board.log"

    def _running(self) -> subprocess.Popen[str]:
        if self._unshare is None:
            raise RuntimeError(f"there is no board running in {self._folder}")
        return self._unshare

    def _is_made(self) -> bool:
        if self._running().poll() is not None:
            said = self._log.read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"the board ended while it was starting:\n{said}")
        try:
            # Until it has a root of its own, it sees this machine's.
            return self.place(places.READY).exists()
        except (IndexError, OSError):
            return False

    def _inside(self) -> list[int]:
        link = Path(f"/proc/{self._running().pid}/ns/pid_for_children")
        try:
            namespace = link.readlink()
        except OSError:
            return []
        everyone = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
        return [pid for pid in everyone if _namespace_of(pid) == namespace]


def _namespace_of(pid: int) -> Path | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").readlink()
    return None


def _program_of(pid: int) -> Path | None:
    """As it was called; what the kernel says of it has the board's root in front."""
    with contextlib.suppress(OSError):
        return Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]))
    return None


def _is_dead(pid: int) -> bool:
    """One that was not waited for yet is dead nevertheless."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")
