"""A job's outputs and log, read from the store: only what is new is transferred."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop._util.system import ordered_map
from edgeloop.errors import BadName, BlobMissing
from edgeloop.node.ticket import LOG_PIECE, log_key, outputs_folder
from edgeloop.store import BlobInfo, Blobs, check_blob_key

INDEX_FILE = ".fetched.json"
_MOST_PIECES = 16
PARALLEL = 32

Index = dict[str, tuple[int, str]]  # path → size and modification time in the store


@dataclass(frozen=True)
class Fetched:
    """What `fetch` did. `files` counts all outputs, `moved` those that were transferred."""

    files: int
    moved: int
    moved_bytes: int
    refused: tuple[str, ...] = ()  # names that are not allowed in a folder


def fetch(blobs: Blobs, job: str, folder: Path, without: Collection[str] = ()) -> Fetched:
    """Copy the outputs to `folder`, beside which an index of what was fetched is kept.

    Works for a running job too: unfinished files come the next time. A fetched file that the script
    deleted later is deleted here as well.
    """
    index_file = folder.parent / INDEX_FILE
    known = _read_index(index_file)
    found, refused = outputs_of(blobs, job)
    stored = {path: info for path, info in found.items() if Path(path).name not in without}
    missing = []
    for path, info in stored.items():
        with contextlib.suppress(OSError):
            if known.get(path) == _mark(info) and (folder / path).stat().st_size == info.size:
                continue
        missing.append(path)
    folder.mkdir(parents=True, exist_ok=True)
    fetched = ordered_map(
        lambda path: _fetch_one(blobs, stored[path], folder / path), missing, PARALLEL, 2 * PARALLEL
    )
    moved = [path for path, is_here in zip(missing, fetched, strict=True) if is_here]
    for path in known.keys() - stored.keys():
        with contextlib.suppress(OSError):
            (folder / path).unlink()
    gone = set(missing) - set(moved)
    index = {path: _mark(info) for path, info in stored.items() if path not in gone}
    write_atomic(index_file, json.dumps(index, ensure_ascii=False))
    moved_bytes = sum(stored[path].size for path in moved)
    return Fetched(len(stored) - len(gone), len(moved), moved_bytes, refused)


def discard_outputs(blobs: Blobs, job: str, paths: Collection[str]) -> int:
    """Remove outputs of a job that has ended from the store, if they are there; returns how many
    there were. The job and all its other files stay."""
    found, _ = outputs_of(blobs, job)
    keys = [found[path].key for path in paths if path in found]
    blobs.delete(keys)
    return len(keys)


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


def _fetch_one(blobs: Blobs, info: BlobInfo, target: Path) -> bool:
    """False if the running job removed the file since it was listed."""
    try:
        blobs.get(info.key, target)
    except BlobMissing:
        return False
    return True


def _mark(info: BlobInfo) -> tuple[int, str]:
    return info.size, info.modified.isoformat()


def _read_index(file: Path) -> Index:
    """Without a valid index everything is fetched again."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {check_blob_key(path): (int(size), str(at)) for path, (size, at) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, BadName):
        return {}


class LogReader:
    """Remembers how far it has read; `more` yields what was written since.

    Only the last piece grows, so a reader can continue after any pause.
    """

    def __init__(self, blobs: Blobs, job: str, offset: int = 0) -> None:
        self._blobs = blobs
        self._job = job
        self._offset = offset

    def more(self) -> Iterator[bytes]:
        """New bytes, one piece at a time, until there are no more for now."""
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
    """The end of a log, without reading all of it."""
    pieces = sorted(info.key for info in blobs.list(log_key(job, 0).rpartition("/")[0] + "/"))
    found = b""
    for key in pieces[-_MOST_PIECES:][::-1]:
        found = blobs.read_range(key, 0, LOG_PIECE) + found
        if found.count(b"\n") > count:
            break
    return b"".join(found.splitlines(keepends=True)[-count:])
