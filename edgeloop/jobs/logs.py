"""What a job printed, read from the store while it is still being written."""

from __future__ import annotations

from collections.abc import Iterator

from edgeloop.errors import BlobMissing
from edgeloop.jobs.ticket import LOG_PIECE, log_key
from edgeloop.store import Blobs


class LogReader:
    """Remembers how far it has read; `more` gives what came since.

    Pieces only ever grow, and only the last one does, so a reader that was asleep for hours goes on
    as if nothing had been.
    """

    def __init__(self, blobs: Blobs, job: str, offset: int = 0) -> None:
        self._blobs = blobs
        self._job = job
        self._offset = offset

    def more(self) -> Iterator[bytes]:
        """New bytes, a piece at a time, until there are none for now."""
        while True:
            piece, start = divmod(self._offset, LOG_PIECE)
            try:
                content = self._blobs.read_range(
                    log_key(self._job, piece), start, LOG_PIECE - start
                )
            except BlobMissing:
                return
            if not content:
                return
            self._offset += len(content)
            yield content
            if start + len(content) < LOG_PIECE:
                return

    @property
    def has_read(self) -> int:
        return self._offset


def log_size(blobs: Blobs, job: str) -> int:
    return sum(info.size for info in blobs.list(log_key(job, 0).rpartition("/")[0] + "/"))


def last_lines(blobs: Blobs, job: str, count: int) -> bytes:
    """The end of a log without reading all of it."""
    pieces = sorted(info.key for info in blobs.list(log_key(job, 0).rpartition("/")[0] + "/"))
    found = b""
    for key in reversed(pieces):
        found = blobs.read(key) + found
        if found.count(b"\n") > count:
            break
    return b"".join(found.splitlines(keepends=True)[-count:])
