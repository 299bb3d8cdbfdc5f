"""The rows of an experiment in memory, kept up to date by one thread.

Pages read the snapshot and never the store: a hundred viewers cost the store no more than one. The
thread asks the table for changes, which costs next to nothing while there are none. While the store
is away, the last snapshot stays and says since when.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError
from edgeloop.models.columns import natural_key
from edgeloop.models.plan import Plan, records_of
from edgeloop.operate.fleet.demand import StageWork, stage_work
from edgeloop.store import Record, Table, Value, Values

Shared = TypeVar("Shared", bound=Hashable)

LONG_TEXT = 2_000
LAST_MOMENT = 253_402_300_799.0  # of the year 9999
LEFT_OUT = frozenset({"stages", "results", "arch"})  # the page of a model reads them from the store
SHARED = 4096  # values of the last rows that later ones may share


class CompactValues(Mapping[str, Value]):
    """The values of a row in a third of a dict's memory: rows with the same columns share these."""

    __slots__ = ("_cells", "_places")

    def __init__(self, values: Values) -> None:
        self._places = _places_of(tuple(values))
        self._cells = tuple(values.values())

    def __getitem__(self, column: str) -> Value:
        return self._cells[self._places[column]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._cells)


@lru_cache(maxsize=1024)
def _places_of(columns: tuple[str, ...]) -> Mapping[str, int]:
    return {sys.intern(column): place for place, column in enumerate(columns)}


@dataclass(frozen=True, slots=True)
class Held:
    """A stage that a machine holds."""

    stage: str
    node: str
    since: float
    expires: float


@dataclass(frozen=True, slots=True)
class Row:
    """`left` are the stages that are still to be done."""

    name: str
    values: Values
    word: str
    tags: tuple[str, ...]
    held: tuple[Held, ...]
    left: tuple[StageWork, ...]

    def text(self, column: str) -> str:
        value = self.values.get(column)
        return "" if value is None else str(value)

    def waiting(self, now: float) -> tuple[str, ...]:
        """Stages that a runner could claim now."""
        return tuple(work.stage for work in self.left if work.state(now) == "ready")


def read_row(record: Record, plan: Plan, margin_s: float, max_attempts: int) -> Row:
    values = record.values
    status = values.get("status")
    held = tuple(
        Held(stage, str(stage_record.owner), stage_record.since, stage_record.expires)
        for stage, stage_record in records_of(values).items()
        if stage_record.is_held and not stage_record.queued
    )
    kept = {name: _kept(value) for name, value in values.items() if name not in LEFT_OUT}
    if kept.get("name") == record.key:
        kept["name"] = record.key  # one object for both
    return Row(
        record.key,
        CompactValues(kept),
        sys.intern(str(status or "no status").partition(" ")[0]),
        tags_of(values),
        held,
        _shared(stage_work(values, plan, margin_s, max_attempts)),
    )


def is_moment(value: object) -> bool:
    """Seconds within the years 1970 to 9999."""
    return isinstance(value, int | float) and 0 <= value <= LAST_MOMENT


def seconds_of(text: str) -> float | None:
    """A time of a row in ISO 8601; other formats of old tables are not guessed."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None
    return seconds if is_moment(seconds) else None


def tags_of(values: Values) -> tuple[str, ...]:
    """Empty unless the column holds a JSON list: old tables may hold anything there."""
    text = values.get("tags")
    if not text or not isinstance(text, str):
        return ()
    try:
        tags = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(sys.intern(str(tag)) for tag in tags) if isinstance(tags, list) else ()


def _kept(value: Value) -> Value:
    """Long texts are truncated. Measurements are seldom equal; other values often are."""
    if isinstance(value, float):
        return value
    if isinstance(value, str) and len(value) > LONG_TEXT:
        return value[:LONG_TEXT] + "…"
    shared: Value = _shared(value)
    return shared


@lru_cache(maxsize=SHARED, typed=True)
def _shared(value: Shared) -> Shared:
    """An equal object of an earlier row, if there is one: a device, the time of an upload, or the
    stages that its models wait for."""
    return value


PAUSE_S = 0.5
LIVE_S = 1.0
LONGEST_PAUSE_S = 15.0
REST = 3.0  # pause for so many times the duration of a read, to spare a slow store
REMEMBERED = 256
NAMED = 200  # names in one event; with more, the whole page is reloaded

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableSnapshot:
    """All rows at one time, in the natural order of their names. Never changed, only replaced.

    `problem` is a sentence while the store is away; the rows are then from `read_at`.
    """

    generation: int = 0
    rows: Mapping[str, Row] = field(default_factory=dict, repr=False)
    read_at: float | None = None
    problem: str = ""
    is_loaded: bool = False


@dataclass(frozen=True)
class Change:
    """The changes between two generations; `is_all`: too many to be named."""

    generation: int
    changed: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    is_all: bool = False


Read = Callable[[Record], Row]


class Feed:
    """A thread with `start` and `stop`; `listen` registers a callback for new generations."""

    def __init__(
        self, table: Table, read: Read, clock: Callable[[], float] = time.time, name: str = ""
    ) -> None:
        self.id = secrets.token_hex(4)  # generations are per process
        self._table = table
        self._read = read
        self._clock = clock
        self._snapshot = TableSnapshot()
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
        """A call to the store that takes longer is not waited for."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(wait_s)

    def look_now(self) -> None:
        """After a change of our own: do not wait for the next read."""
        self._wake.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    @property
    def snapshot(self) -> TableSnapshot:
        return self._snapshot

    @property
    def read_at(self) -> float | None:
        """When the store last answered."""
        return self._read_at

    def wait(self, timeout_s: float) -> TableSnapshot:
        """The snapshot; waits only for the first one."""
        self._first_look.wait(timeout_s)
        return self._snapshot

    def listen(self, hear: Callable[[], None]) -> Callable[[], None]:
        """Calls `hear` in the feed's thread for every new generation; returns how to stop that."""
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
        """All changes after a generation, as one."""
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
            pause = min(max(PAUSE_S, REST * took), LIVE_S)
            if self._failures:
                pause = min(PAUSE_S * 2.0**self._failures, LONGEST_PAUSE_S)
            self._wake.wait(pause)
            self._wake.clear()

    def _look(self) -> None:
        try:
            self.refresh()
        except EdgeloopError as error:
            self._failed(redact(str(error)))
        except Exception:  # noqa: BLE001 - a dead thread would show old rows forever
            _log.exception("The rows could not be read")
            self._failed("The rows could not be read: this is a bug in Edgeloop, see its log.")

    def refresh(self) -> None:
        """Read the changes of the table once."""
        with self._looking:
            self._refresh()

    def _refresh(self) -> None:
        drift = self._table.drift(self._versions, self._mark)
        self._read_at = self._clock()
        changed, versions = [], {}
        for record in drift.changed:  # one at a time: a row in full is much larger than it is here
            changed.append(self._read(record))
            versions[record.key] = record.version
        self._versions = {**self._versions, **versions} if self._versions else versions
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
            self._snapshot = TableSnapshot(
                was.generation + 1, rows, self._read_at, problem, is_loaded
            )
            lost = frozenset() if is_all else frozenset(gone)
            self._history.append(Change(was.generation + 1, names, lost, is_all))
            listeners = list(self._listeners.values())
        for hear in listeners:
            hear()


def _merged(
    rows: Mapping[str, Row], changed: Sequence[Row], gone: Collection[str]
) -> Mapping[str, Row]:
    """A new mapping; the old one may be in use."""
    merged = dict(rows)
    is_sorted = all(row.name in merged for row in changed)
    merged.update((row.name, row) for row in changed)
    for key in gone:
        merged.pop(key, None)
    if is_sorted or all(one <= other for one, other in pairwise(map(natural_key, merged))):
        return merged
    return {name: merged[name] for name in sorted(merged, key=natural_key)}
