"""The log: one file on the node that the command writes to by itself, and pieces of it elsewhere.

No pipe lies between the command and its log, so neither a slow store nor a stuck terminal can hold
the command up, and nothing is lost when the wrapper is killed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from edgeloop._util.redact import redact
from edgeloop.errors import BlobMissing
from edgeloop.jobs.protocol.ticket import LOG_PIECE, log_key
from edgeloop.store import Blobs

_REMEMBERED = 64


class Log:
    """The file. The wrapper's own lines begin with `edgeloop:`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        line = f"edgeloop: {redact(sentence)}\n".encode(errors="replace")
        with self._path.open("a+b", buffering=0) as file:
            size = file.tell()
            is_inside_a_line = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write(b"\n" + line if is_inside_a_line else line)

    def say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self.say(sentence)

    def restore(self, content: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(content)

    def size(self) -> int:
        return self._path.stat().st_size

    def tail(self, start: int, length: int = 16_384) -> str:
        """The last bytes that came after `start`."""
        with self._path.open("rb") as file:
            file.seek(max(start, self.size() - length))
            return file.read(length).decode(errors="replace")


class Tail:
    """Follows a growing file, also one that is removed meanwhile. A command that opens /dev/stderr
    anew may empty the file, and even have filled it again: what is there then is simply next."""

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
    """Sends what is new, in pieces; only the last piece is ever written again."""

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
            while self._fill():
                self._blobs.put(log_key(self._job, self._number), self._piece)
                self._unsent = False
                if len(self._piece) == LOG_PIECE:
                    self._number, self._piece = self._number + 1, b""

    def _fill(self) -> bool:
        fresh = self._tail.read(LOG_PIECE - len(self._piece))
        self._piece += fresh
        self._unsent = self._unsent or bool(fresh)
        return self._unsent


def stored_log(blobs: Blobs, job: str) -> Iterator[bytes]:
    """The pieces that an earlier wrapper of the same job sent."""
    number = 0
    while True:
        try:
            yield blobs.read(log_key(job, number))
        except BlobMissing:
            return
        number += 1
