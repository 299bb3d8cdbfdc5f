"""What a push has uploaded and not published yet, so that after a kill nothing is sent twice.

A line is written before each upload; what arrived is told by the store's own listing. The journal
has a random id that goes into the record which publishes its objects: once a record bears it, the
objects belong to that version and may go when it is removed, so the journal is not used again.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from pathlib import Path

from edgeloop.data.ledger import OWN_DAYS, Head, Log
from edgeloop.data.manifest import Place
from edgeloop.store import Blobs

_MOST_RECORDS_TO_ASK = 50


class Journal:
    def __init__(self, file: Path | None, blobs: Blobs, prefix: str) -> None:
        self._file = file
        self._blobs = blobs
        self._prefix = prefix  # of the objects
        self._lock = threading.Lock()
        self._uploads: list[tuple[float, dict[str, Place]]] = []
        self._base = 0
        self.id = ""

    def open(self, log: Log, head: Head) -> None:
        """Take up an earlier push's journal, if its objects are still its own; else begin one.

        Called for every record that is read: a request of a push that was killed may arrive late.
        """
        if self.id and self._is_unpublished(log, head):
            return
        lines = [] if self.id else self._lines()
        self._uploads, self.id, self._base = [], secrets.token_hex(16), head.sequence
        if lines and self._take_up(lines, log, head):
            return
        self._rewrite([{"format": 1, "id": self.id, "base": head.sequence}])

    def own(self) -> dict[str, Place]:
        """Pieces that this push may name. To be asked anew for every record that is read."""
        since = time.time() - OWN_DAYS * 86_400
        with self._lock:
            return {
                piece: place
                for uploaded, places in self._uploads
                if uploaded > since
                for piece, place in places.items()
            }

    def upload(self, content: bytes, pieces: list[tuple[str, int]]) -> dict[str, Place]:
        """One object out of pieces that lie one after the other in `content`."""
        key, now = secrets.token_hex(16), time.time()
        places = _places(key, pieces)
        self._write({"key": key, "time": now, "size": len(content), "pieces": pieces})
        self._blobs.put(self._prefix + key, content)
        with self._lock:
            self._uploads.append((now, places))
        return places

    def close(self) -> None:
        """All of it is published."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        self._uploads, self.id = [], ""

    def _is_unpublished(self, log: Log, head: Head) -> bool:
        if not 0 <= head.sequence - self._base <= _MOST_RECORDS_TO_ASK:
            return False
        since = range(self._base + 1, head.sequence + 1)
        return all(log.read(sequence).by != self.id for sequence in since)

    def _take_up(self, lines: list[dict[str, object]], log: Log, head: Head) -> bool:
        new_id, (header, *uploads) = self.id, lines
        self.id, base = str(header.get("id")), header.get("base")
        self._base = base if isinstance(base, int) else -1
        if header.get("format") != 1 or self._base < 0 or not self._is_unpublished(log, head):
            self.id, self._base = new_id, head.sequence
            return False
        there = {i.key.removeprefix(self._prefix): i.size for i in self._blobs.list(self._prefix)}
        arrived = [line for line in uploads if there.get(str(line.get("key"))) == line.get("size")]
        for line in arrived:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                places = _places(str(line["key"]), line["pieces"])  # type: ignore[arg-type]
                self._uploads.append((float(str(line["time"])), places))
        self._rewrite([header, *arrived])
        return True

    def _lines(self) -> list[dict[str, object]]:
        """Up to the first that a kill cut off."""
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
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_name(f".{secrets.token_hex(8)}")
        partial.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        partial.replace(self._file)

    def _write(self, line: dict[str, object]) -> None:
        if self._file is None:
            return
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _places(key: str, pieces: list[tuple[str, int]]) -> dict[str, Place]:
    places, offset = {}, 0
    for piece, size in pieces:
        places[piece] = Place(key, offset, size)
        offset += size
    return places
