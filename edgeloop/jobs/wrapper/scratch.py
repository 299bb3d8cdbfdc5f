"""Where a job lives on its node: one folder, with everything needed to finish it if all die."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeloop.errors import BadName

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_POLL_S = 0.05


@dataclass(frozen=True)
class Scratch:
    """`work/` is the command's folder; the rest, beside it, is the wrapper's."""

    folder: Path

    @classmethod
    def of(cls, cache: Path, job: str, rank: int = 0) -> Scratch:
        """Several nodes may share a disk: each has a folder of its own."""
        if not _ID.fullmatch(job):
            raise BadName(what="job", name=job, reason="it must be letters, digits and ._-")
        return cls(cache / "ranks" / str(rank) / job if rank else cache / "jobs" / job)

    @property
    def job(self) -> str:
        return self.folder.name

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def outputs(self) -> Path:
        return self.work / "outputs"

    @property
    def data(self) -> Path:
        return self.work / "data"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def code(self) -> Path:
        return self.folder / "code.tar.gz"

    def make(self) -> None:
        """Only its owner may look in: logs and outputs are nobody else's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.log.touch()

    @contextlib.contextmanager
    def held(self, wait_s: float = 0.0) -> Iterator[bool]:
        """One keeper at a time; the lock goes with its process, however that ends."""
        deadline = time.monotonic() + wait_s
        with (self.folder / "lock").open("ab") as file:
            while not (locked := _lock(file.fileno())) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            yield locked

    def note(self, note: Note) -> None:
        partial = self.folder / "keeper.json.part"
        partial.write_text(json.dumps(note.__dict__))
        partial.replace(self.folder / "keeper.json")

    def noted(self) -> Note:
        try:
            return Note(**json.loads((self.folder / "keeper.json").read_text()))
        except (OSError, ValueError, TypeError):
            return Note(node=os.uname().nodename)


@dataclass(frozen=True)
class Note:
    """What a salvager needs to know of a keeper that is gone."""

    node: str
    attempt: int = 1
    started: float | None = None
    command: int = 0  # the process group of the command; 0: none was started
    born: str = ""  # when that process began, by the kernel: a number used again is not it


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
