"""The record of device use, read a little at a time: its rows are only ever added."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from edgeloop.portal.views.shapes import Use
from edgeloop.portal.views.table import seconds_of
from edgeloop.store import Store, Values

FRESH_S = 5.0
WINDOW_S = 30 * 86_400.0
OVERLAP_S = 86_400.0  # a use is written at its end, under the time of its beginning
MOST_ROWS = 200_000


class UsageDesk:
    """The last thirty days. Read when somebody asks, and then not again for some seconds."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._rows: dict[str, Values] = {}
        self._uses: tuple[Use, ...] = ()
        self._read_at = float("-inf")
        self._is_whole = False
        self._guard = threading.Lock()

    def uses(self) -> tuple[Use, ...]:
        """By their beginning. Raises what the store raises when it is away."""
        with self._guard:
            if time.monotonic() - self._read_at > FRESH_S:
                self._read()
            return self._uses

    def rows(self) -> Mapping[str, Values]:
        self.uses()
        return self._rows

    def _read(self) -> None:
        now = self._clock()
        first = now - (OVERLAP_S if self._is_whole else WINDOW_S)
        rows = {key: row for key, row in self._rows.items() if key >= _key(now - WINDOW_S)}
        found = self._store.usage().query(after=_key(first), limit=MOST_ROWS)
        rows.update((record.key, record.values) for record in found)
        uses = filter(None, map(_use, rows.values()))
        self._uses = tuple(
            sorted((use for use in uses if use.end >= now - WINDOW_S), key=lambda use: use.start)
        )
        self._rows, self._is_whole, self._read_at = rows, True, time.monotonic()


def _key(seconds: float) -> str:
    """Where a use that began then stands among the keys."""
    return f"{max(seconds, 0.0):015.3f}"


def _use(row: Values) -> Use | None:
    start, end = seconds_of(str(row.get("start", ""))), seconds_of(str(row.get("end", "")))
    if start is None or end is None or end < start:
        return None
    return Use(
        str(row.get("name", "")), str(row.get("model", "")), str(row.get("stage", "")), start, end
    )
