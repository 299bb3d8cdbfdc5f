"""What this machine remembers of a dataset's folder, so that nobody reads a file twice in vain.

For each file: its size, times and inode when it was read, the hashes of what was read, and whether
that content is in the store. It lies outside the folder and is no more than a memory: without it
all files are read again, and a pull does not overwrite anything that differs.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from edgeloop.data.manifest import PIECE_BYTES, Pieces
from edgeloop.data.scan import Found

# A file written to within the tick of its filesystem's clock shows the same times before and after;
# the coarsest clock in use ticks every two seconds.
RACY_NS = 2_000_000_000


class Known(NamedTuple):
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    trusted: bool  # unchanged times mean unchanged content
    synced: bool  # this content was pushed or pulled
    pieces: Pieces


class Index:
    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._entries = _load(file)
        self._changed = False

    def pieces(self, found: Found) -> Pieces | None:
        """What the file holds, where that is certain without reading it."""
        known = self._entries.get(found.path)
        if known is None or not known[4] or tuple(known[:4]) != found[1:5]:
            return None
        return tuple(known[6])

    def note(self, found: Found, pieces: Pieces, read_at_ns: int) -> None:
        """The file was read: these are its contents."""
        before = self._entries.get(found.path)
        synced = before is not None and before[5] and tuple(before[6]) == pieces
        trusted = not pieces or found.ctime_ns < read_at_ns - RACY_NS  # none: its size says all
        self._entries[found.path] = Known(*found[1:5], trusted, synced, pieces)
        self._changed = True

    def note_pulled(self, found: Found, pieces: Pieces) -> None:
        """We wrote it this moment under a name that nobody knew, so its times can be trusted."""
        self._entries[found.path] = Known(*found[1:5], True, True, pieces)
        self._changed = True

    def mark_synced(self, paths: Iterable[str]) -> None:
        """These are in the store as they were read."""
        for path in paths:
            known = self._entries.get(path)
            if known is not None and not known[5]:
                self._entries[path] = Known(*known)._replace(synced=True)
                self._changed = True

    def keep_only(self, paths: Iterable[str]) -> None:
        """All else is no longer in the folder."""
        kept = {path: self._entries[path] for path in paths if path in self._entries}
        self._changed = self._changed or len(kept) != len(self._entries)
        self._entries = kept

    def is_synced(self, path: str, pieces: Pieces) -> bool:
        """The content that is there now is what was pushed or pulled last."""
        known = self._entries.get(path)
        return known is not None and known[5] and tuple(known[6]) == pieces

    def save(self) -> None:
        if self._file is None or not self._changed:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        content = {"format": 1, "piece_bytes": PIECE_BYTES, "files": self._entries}
        partial = self._file.with_name(f".{secrets.token_hex(8)}")
        partial.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
        partial.replace(self._file)
        self._changed = False


def now_ns() -> int:
    return time.time_ns()


def _load(file: Path | None) -> dict[str, Known]:
    """An index that cannot be read is none."""
    if file is None or not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
        if content["format"] != 1 or content["piece_bytes"] != PIECE_BYTES:
            return {}
        entries: dict[str, Known] = content["files"]
        return entries if all(len(row) == len(Known._fields) for row in entries.values()) else {}
    except (ValueError, TypeError, KeyError, OSError):
        return {}
