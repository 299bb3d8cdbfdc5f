"""What a push has uploaded but not yet published, so that after a kill nothing is sent twice.

A line is written before each upload; the store's own listing tells what arrived. The journal has a
random id that goes into the record which publishes its objects. Once a record has that id, the
objects belong to that version and are removed with it, so the journal is not used again.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop.data.ledger import OWN_DAYS, Head, Ledger
from edgeloop.data.manifest import PieceLocation
from edgeloop.store import Blobs

_MOST_RECORDS_TO_READ = 50


class Journal:
    def __init__(self, file: Path | None, blobs: Blobs, prefix: str) -> None:
        self._file = file
        self._blobs = blobs
        self._prefix = prefix  # of the objects
        self._lock = threading.Lock()
        self._uploads: list[tuple[float, dict[str, PieceLocation]]] = []
        self._base = 0
        self.id = ""

    def open(self, ledger: Ledger, head: Head) -> None:
        """Continue the journal of an earlier push if its objects are unpublished; else start one.

        Called for every record that is read: a request of a push that was killed may arrive late.
        """
        if self.id and self._is_unpublished(ledger, head):
            return
        lines = [] if self.id else self._lines()
        self._uploads, self.id, self._base = [], secrets.token_hex(16), head.sequence
        if lines and self._continue(lines, ledger, head):
            return
        self._rewrite([{"format": 1, "id": self.id, "base": head.sequence}])

    def own(self) -> dict[str, PieceLocation]:
        """Pieces that this push may reference. Ask again for every record that is read."""
        since = time.time() - OWN_DAYS * 86_400
        with self._lock:
            return {
                piece: location
                for uploaded, locations in self._uploads
                if uploaded > since
                for piece, location in locations.items()
            }

    def upload(self, content: bytes, pieces: list[tuple[str, int]]) -> dict[str, PieceLocation]:
        """Upload one object made of consecutive pieces."""
        key, now = secrets.token_hex(16), time.time()
        locations = _locations(key, pieces)
        line = {"key": key, "time": now, "size": len(content), "pieces": pieces}
        if self._file is not None:
            with self._lock, self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._blobs.put(self._prefix + key, content)
        with self._lock:
            self._uploads.append((now, locations))
        return locations

    def close(self) -> None:
        """All of it is published."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        self._uploads, self.id = [], ""

    def _is_unpublished(self, ledger: Ledger, head: Head) -> bool:
        if not 0 <= head.sequence - self._base <= _MOST_RECORDS_TO_READ:
            return False
        since = range(self._base + 1, head.sequence + 1)
        return all(ledger.read(sequence).by != self.id for sequence in since)

    def _continue(self, lines: list[dict[str, object]], ledger: Ledger, head: Head) -> bool:
        new_id, (header, *uploads) = self.id, lines
        self.id, base = str(header.get("id")), header.get("base")
        self._base = base if isinstance(base, int) else -1
        if header.get("format") != 1 or self._base < 0 or not self._is_unpublished(ledger, head):
            self.id, self._base = new_id, head.sequence
            return False
        start = len(self._prefix)
        stored = {i.key[start:]: i.size for i in self._blobs.list(self._prefix)}
        arrived = [line for line in uploads if stored.get(str(line.get("key"))) == line.get("size")]
        for line in arrived:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                locations = _locations(str(line["key"]), line["pieces"])  # type: ignore[arg-type]
                self._uploads.append((float(str(line["time"])), locations))
        self._rewrite([header, *arrived])
        return True

    def _lines(self) -> list[dict[str, object]]:
        """Up to the first line that a kill truncated."""
        lines: list[dict[str, object]] = []
        if self._file is None or not self._file.is_file():
            return lines
        with contextlib.suppress(ValueError, OSError):
            for line in self._file.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                if not isinstance(entry, dict):
                    break
                lines.append(entry)
        return lines

    def _rewrite(self, lines: list[dict[str, object]]) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._file, "".join(json.dumps(line) + "\n" for line in lines))


def _locations(key: str, pieces: list[tuple[str, int]]) -> dict[str, PieceLocation]:
    locations, offset = {}, 0
    for piece, size in pieces:
        locations[piece] = PieceLocation(key, offset, size)
        offset += size
    return locations
