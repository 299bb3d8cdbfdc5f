"""A job's folder on its node, with everything needed to finish it if all processes die; and its
log.

The command writes to the log file directly. There is no pipe in between, so neither a slow store
nor a blocked terminal can delay the command, and nothing is lost when the wrapper is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeloop._util.files import try_lock, write_atomic
from edgeloop._util.redact import redact
from edgeloop.errors import BadName, BlobMissing
from edgeloop.node.ticket import LOG_PIECE, log_key
from edgeloop.store.base import Blobs

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOTE = "keeper.json"  # the name since the first version
_POLL_S = 0.05
_REMEMBERED = 64
_OWN = "edgeloop:"
_LONGEST_LINE = 300


def check_job_id(job: str) -> str:
    """It becomes part of paths."""
    if not _ID.fullmatch(job):
        raise BadName(what="job", name=job, reason="it must be letters, digits and ._-")
    return job


@dataclass(frozen=True)
class Scratch:
    """`work/` is the command's folder; the rest beside it is the wrapper's."""

    folder: Path

    @classmethod
    def of(cls, cache: Path, job: str, rank: int = 0) -> Scratch:
        """Several nodes may share a disk: each has a folder of its own."""
        check_job_id(job)
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
    def library(self) -> Path:
        """Where a script finds `edgeloop.paths`."""
        return self.folder / "library"

    @property
    def before(self) -> Path:
        """The files that were in `work/` before the command started."""
        return self.folder / "before.json"

    @property
    def code(self) -> Path:
        return self.folder / "code.tar.gz"

    def create(self) -> None:
        """Only the owner may read logs and outputs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.log.touch()

    @contextlib.contextmanager
    def locked(self, wait_s: float = 0.0) -> Iterator[bool]:
        """Whether this is the only supervisor; the lock is released when its process ends."""
        deadline = time.monotonic() + wait_s
        path = self.folder / "lock"
        while (lock := try_lock(path)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def write_note(self, note: SupervisorNote) -> None:
        write_atomic(self.folder / _NOTE, json.dumps(note.__dict__))

    def read_note(self) -> SupervisorNote:
        try:
            return SupervisorNote(**json.loads((self.folder / _NOTE).read_text()))
        except (OSError, ValueError, TypeError):
            return SupervisorNote(node=os.uname().nodename)


@dataclass(frozen=True)
class SupervisorNote:
    """What is needed to recover the job of a supervisor that died."""

    node: str
    attempt: int = 1
    started: float | None = None
    command: int = 0  # the process group of the command; 0: none was started
    born: str = ""  # when that process started, by the kernel: its number may be reused


class JobLog:
    """The log file. The wrapper's own lines begin with `edgeloop:`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: set[str] = set()

    def write(self, sentence: str) -> None:
        line = f"{_OWN} {redact(sentence)}\n".encode(errors="replace")
        with self._path.open("a+b", buffering=0) as file:
            size = file.tell()
            is_inside_a_line = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write(b"\n" + line if is_inside_a_line else line)

    def write_once(self, sentence: str) -> None:
        if sentence not in self._written:
            self._written.add(sentence)
            self.write(sentence)

    def restore(self, content: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(content)

    def size(self) -> int:
        return self._path.stat().st_size

    def tail(self, start: int, length: int = 16_384) -> str:
        """The last bytes that were written after `start`."""
        with self._path.open("rb") as file:
            file.seek(max(start, self.size() - length))
            return file.read(length).decode(errors="replace")

    def last_line(self, start: int) -> str:
        """The last line with words after `start` that is not the wrapper's."""
        lines = [" ".join(line.split()) for line in self.tail(start).splitlines()]
        said = [line for line in lines if len(line) > 1 and not line.startswith(_OWN)]
        return redact(said[-1])[:_LONGEST_LINE] if said else ""


class Tail:
    """Follows a growing file, even after it is deleted. A command that reopens /dev/stderr may
    truncate the file, and even fill it again: then its content is read from the beginning."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._offset = 0
        self._last = b""  # the bytes before the offset, as they were read

    def read(self, length: int) -> bytes:
        number = self._file.fileno()
        if os.pread(number, len(self._last), self._offset - len(self._last)) != self._last:
            self._offset, self._last = 0, b""
        content = os.pread(number, length, self._offset)
        self._offset += len(content)
        self._last = (self._last + content)[-_REMEMBERED:]
        return content


class LogCopier:
    """Stores new bytes in pieces; only the last piece is ever written again."""

    def __init__(self, path: Path, blobs: Blobs, job: str) -> None:
        self._tail = Tail(path)
        self._blobs = blobs
        self._job = job
        self._number = 0
        self._piece = b""  # all of the piece that is being filled
        self._unsent = False
        self._copying = threading.Lock()

    @property
    def bytes_sent(self) -> int:
        return self._number * LOG_PIECE + (0 if self._unsent else len(self._piece))

    def copy(self) -> None:
        with self._copying:
            while True:
                new = self._tail.read(LOG_PIECE - len(self._piece))
                self._piece += new
                self._unsent = self._unsent or bool(new)
                if not self._unsent:
                    return
                self._blobs.put(log_key(self._job, self._number), self._piece)
                self._unsent = False
                if len(self._piece) == LOG_PIECE:
                    self._number, self._piece = self._number + 1, b""


def stored_log(blobs: Blobs, job: str) -> Iterator[bytes]:
    """The pieces that an earlier wrapper of the same job stored."""
    number = 0
    while True:
        try:
            yield blobs.read_range(log_key(job, number), 0, LOG_PIECE)
        except BlobMissing:
            return
        number += 1
