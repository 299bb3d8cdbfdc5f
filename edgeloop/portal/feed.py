"""The rows of an experiment in memory, kept true by one thread.

Pages read the snapshot and never the store: a hundred people who look cost the store no more than
one. The thread asks the table what drifted since, which costs next to nothing while nothing
happens. While the store is away the last snapshot stays, and says since when.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError
from edgeloop.portal.rows import Row
from edgeloop.store import Record, Table

PAUSE_S = 0.5
LIVE_S = 1.0
LONGEST_PAUSE_S = 15.0
REST = 3.0  # times as long as a look took, so that a slow store is not kept busy by us alone
REMEMBERED = 256
NAMED = 200  # names in one event; with more the whole page is to be loaded anew

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """All rows as they were at one time, in the order of their keys. Never changed, only replaced.

    `problem` is a sentence while the store is away; the rows are then those of `read_at`.
    """

    generation: int = 0
    rows: Mapping[str, Row] = field(default_factory=dict, repr=False)
    read_at: float | None = None
    problem: str = ""
    is_loaded: bool = False


@dataclass(frozen=True)
class Change:
    """What happened between two generations; `is_all`: more than can be named."""

    generation: int
    changed: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    is_all: bool = False


Read = Callable[[Record], Row]


class Feed:
    """`start` it, `stop` it. `listen` is for whoever wants to hear of a new generation."""

    def __init__(
        self, table: Table, read: Read, clock: Callable[[], float] = time.time, name: str = ""
    ) -> None:
        self.id = secrets.token_hex(4)  # generations of another process mean nothing here
        self._table = table
        self._read = read
        self._clock = clock
        self._snapshot = Snapshot()
        self._read_at: float | None = None
        self._versions: dict[str, str] = {}
        self._mark = ""
        self._history: deque[Change] = deque(maxlen=REMEMBERED)
        self._listeners: dict[object, Callable[[], None]] = {}
        self._guard = threading.Lock()
        self._looking = threading.Lock()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._first_look = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"feed {name}", daemon=True)

    def start(self) -> Feed:
        self._thread.start()
        return self

    def stop(self, wait_s: float = 2.0) -> None:
        """The thread may be in the middle of a call that takes longer; it is not waited for."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(wait_s)

    def look_now(self) -> None:
        """After a change of our own: no need to wait for the next look."""
        self._wake.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def read_at(self) -> float | None:
        """When the store last answered."""
        return self._read_at

    def wait(self, timeout_s: float) -> Snapshot:
        """The snapshot; before the first one there is nothing to see, so that is waited for."""
        self._first_look.wait(timeout_s)
        return self._snapshot

    def listen(self, hear: Callable[[], None]) -> Callable[[], None]:
        """Calls `hear`, from the feed's thread, at every new generation; returns how to end it."""
        key = object()
        with self._guard:
            self._listeners[key] = hear

        def end() -> None:
            with self._guard:
                self._listeners.pop(key, None)

        return end

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def since(self, generation: int) -> Change:
        """Everything after that generation, as one change."""
        with self._guard:
            now, past = self._snapshot.generation, list(self._history)
        if generation == now:
            return Change(now)
        later = [change for change in past if change.generation > generation]
        is_known = 0 <= generation < now and bool(later) and later[0].generation == generation + 1
        changed = frozenset[str]().union(*(change.changed for change in later))
        if not is_known or any(change.is_all for change in later) or len(changed) > NAMED:
            return Change(now, is_all=True)
        rows = self._snapshot.rows
        names = changed.union(*(change.gone for change in later))
        return Change(
            now,
            frozenset(name for name in names if name in rows),
            frozenset(name for name in names if name not in rows),
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._look()
            took = time.monotonic() - began
            self._first_look.set()
            self._wake.wait(self._pause(took))
            self._wake.clear()

    def _pause(self, took: float) -> float:
        """A slow look is followed by a longer rest, up to what a person still calls live; one that
        failed by twice the rest of the one before."""
        if self._failures:
            return min(PAUSE_S * 2.0**self._failures, LONGEST_PAUSE_S)
        return min(max(PAUSE_S, REST * took), LIVE_S)

    def _look(self) -> None:
        try:
            self.refresh()
        except EdgeloopError as error:
            self._failed(redact(str(error)))
        except Exception:  # noqa: BLE001 - a thread that died would show old rows for ever
            _log.exception("The rows could not be read")
            self._failed("The rows could not be read: this is a fault of Edgeloop, see its log.")

    def refresh(self) -> None:
        """One look at the table, whoever takes it."""
        with self._looking:
            self._refresh()

    def _refresh(self) -> None:
        drift = self._table.drift(self._versions, self._mark)
        self._read_at = self._clock()
        changed = [self._read(record) for record in drift.changed]
        self._versions.update((record.key, record.version) for record in drift.changed)
        for key in drift.gone:
            self._versions.pop(key, None)
        self._mark = drift.mark
        self._failures = 0
        was = self._snapshot
        if changed or drift.gone or was.problem or not was.is_loaded:
            self._publish(_merged(was.rows, changed, drift.gone), "", changed, drift.gone)

    def _failed(self, sentence: str) -> None:
        self._failures = min(self._failures + 1, 6)
        if self._snapshot.problem != sentence:
            self._publish(self._snapshot.rows, sentence, (), ())

    def _publish(
        self, rows: Mapping[str, Row], problem: str, changed: Sequence[Row], gone: Collection[str]
    ) -> None:
        was = self._snapshot
        is_loaded = was.is_loaded or not problem
        is_all = len(changed) + len(gone) > NAMED or is_loaded != was.is_loaded
        names = frozenset() if is_all else frozenset(row.name for row in changed)
        with self._guard:
            self._snapshot = Snapshot(was.generation + 1, rows, self._read_at, problem, is_loaded)
            lost = frozenset() if is_all else frozenset(gone)
            self._history.append(Change(was.generation + 1, names, lost, is_all))
            listeners = list(self._listeners.values())
        for hear in listeners:
            hear()


def _merged(
    rows: Mapping[str, Row], changed: Sequence[Row], gone: Collection[str]
) -> Mapping[str, Row]:
    """A new mapping; whoever holds the old one is not disturbed."""
    merged = dict(rows)
    is_sorted = all(row.name in merged for row in changed)
    merged.update((row.name, row) for row in changed)
    for key in gone:
        merged.pop(key, None)
    return merged if is_sorted else dict(sorted(merged.items()))
