"""A job's outputs, brought from the store into its folder: only what is new moves.

What a job printed, read from the store while it is still being written.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edgeloop.errors import BadName, BlobMissing
from edgeloop.jobs.protocol.ticket import LOG_PIECE, log_key, outputs_folder
from edgeloop.store import BlobInfo, Blobs, check_blob_key

INDEX_FILE = ".fetched.json"
PARALLEL = 32

Index = dict[str, tuple[int, str]]  # path → size and time of change, as the store says them


@dataclass(frozen=True)
class Fetched:
    """What `fetch` did. `files` counts all outputs there are now, `moved` those that came anew."""

    files: int
    moved: int
    moved_bytes: int
    refused: tuple[str, ...] = ()  # names in the store that no folder may hold


def fetch(blobs: Blobs, job: str, folder: Path) -> Fetched:
    """Bring the outputs to `folder`, beside which an index of what was fetched is kept.

    Works on a running job too: what its script has not finished writing comes next time. A file
    that the script itself deleted in the end goes here as well, if it came from there.
    """
    index_file = folder.parent / INDEX_FILE
    known = _read_index(index_file)
    there, refused = outputs_of(blobs, job)
    missing = [path for path in there if not _is_here(folder / path, there[path], known.get(path))]
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(PARALLEL) as pool:
        came = list(pool.map(lambda path: _fetch_one(blobs, there[path], folder / path), missing))
    moved = [path for path, is_here in zip(missing, came, strict=True) if is_here]
    for path in known.keys() - there.keys():
        with contextlib.suppress(OSError):
            (folder / path).unlink()
    gone = set(missing) - set(moved)
    _write_index(index_file, {p: _mark(info) for p, info in there.items() if p not in gone})
    moved_bytes = sum(there[path].size for path in moved)
    return Fetched(len(there) - len(gone), len(moved), moved_bytes, refused)


def outputs_of(blobs: Blobs, job: str) -> tuple[dict[str, BlobInfo], tuple[str, ...]]:
    """Outputs in the store by their path below `outputs/`, and names that cannot be used."""
    prefix = outputs_folder(job)
    found: dict[str, BlobInfo] = {}
    refused = []
    for info in blobs.list(prefix):
        path = info.key.removeprefix(prefix)
        try:
            found[check_blob_key(path)] = info
        except BadName:
            refused.append(path)
    return found, tuple(refused)


def _is_here(path: Path, info: BlobInfo, mark: tuple[int, str] | None) -> bool:
    if mark != _mark(info):
        return False
    with contextlib.suppress(OSError):
        return path.stat().st_size == info.size
    return False


def _fetch_one(blobs: Blobs, info: BlobInfo, target: Path) -> bool:
    """False where the running job took the file away between our listing and now."""
    try:
        blobs.get(info.key, target)
    except BlobMissing:
        return False
    return True


def _mark(info: BlobInfo) -> tuple[int, str]:
    return info.size, info.modified.isoformat()


def _read_index(file: Path) -> Index:
    """An index that is damaged or not there costs no more than fetching everything again."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {check_blob_key(path): (int(size), str(at)) for path, (size, at) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, BadName):
        return {}


def _write_index(file: Path, index: Index) -> None:
    partial = file.with_name(f".{secrets.token_hex(8)}.part")
    partial.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")
    partial.replace(file)


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
