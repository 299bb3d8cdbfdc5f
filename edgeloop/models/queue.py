"""Hints: where a runner finds ready work without looking at every row.

The row is the truth. For each stage that is ready, or held and not yet done, a hint lies in the
queue under `capability|priority|uploaded|model|stage`, so that the top of a capability's part is
the best work for a runner that has it. A hint says until when there is no use in looking (a lease
is held). It may be stale in every way: a runner that meets a stale one repairs it, and `sweep`
rebuilds them all from the rows, so a hint lost with a machine delays work but never loses it.

A priority that was written into the table with another tool changes no hint. So a runner that is
about to claim a stage asks for rows whose own priority is better than that (`urgent`).
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from edgeloop.errors import EdgeloopError, RowChanged, RowDamaged, RowExists
from edgeloop.models.columns import CANDIDATE, bounded_priority, own_priority
from edgeloop.models.plan import (
    UPLOAD,
    Plan,
    Records,
    Stage,
    StageRecord,
    is_foreign,
    records_of,
)
from edgeloop.store import Changes, Condition, ReadRow, Record, Table, Value, Values, merged

SWEPT = "!swept"
LOOKED = "!looked"  # for priorities that were edited
OWN = "+"  # sorts before the bar, so of equal numbers a model's own comes first
QUICK_LOOK_S = 0.25  # a look for edited priorities that takes longer is made less often,
REST = 10  # so that it takes a tenth of the time at most, of all runners together
SWEEP_REST = 20
LONGEST_REST_S = 3_600.0  # whatever a note says: a machine may have slept in the middle of a sweep
GRAB_SECONDS = 10.0  # how long a hint is hidden by a runner that is about to claim
FINISHED = ("complete", "error", "uploading", "deleting", CANDIDATE)


@dataclass(frozen=True)
class Hint:
    record: Record
    read_row: ReadRow

    @property
    def model(self) -> str:
        return str(self.record.values.get("model", ""))

    @property
    def stage(self) -> str:
        return str(self.record.values.get("stage", ""))

    @property
    def order(self) -> str:
        return self.record.key.partition("|")[2]

    @property
    def rank(self) -> str:
        return rank_of(self.record.key)

    @property
    def capability(self) -> str:
        return self.record.key.partition("|")[0]


class Queue:
    def __init__(self, hints: Table, plan: Plan, margin_s: float) -> None:
        self._hints = hints
        self._plan = plan
        self._margin_s = margin_s
        self._look_again_at = 0.0
        self._look_took_s = 0.0

    def open(
        self, capabilities: Collection[str], now: float, models: Table, crowd: int = 1
    ) -> Iterator[Hint]:
        """Hints at work that may be taken now, best first. In a `crowd` of runners, some of the
        best that many come first at random."""
        prefixes = sorted({f"{plain_key(capability)}|" for capability in capabilities})
        streams = [
            itertools.starmap(Hint, self._hints.due(now, models, prefix, rank_of, crowd))
            for prefix in prefixes
        ]
        return heapq.merge(*streams, key=lambda h: h.order if crowd == 1 else rank_of(h.record.key))

    def repair(self, name: str, row: Values | None, hint: Hint | None = None) -> None:
        """Make the hints of one model what its row says, beginning with one found stale."""
        due = {} if row is None else dict(self._wanted(name, row))
        if hint is not None and hint.record.key not in due:
            with contextlib.suppress(RowChanged):
                self._hints.delete(hint.record)
        for key, values in due.items():
            with contextlib.suppress(RowExists):
                self._hints.insert(key, values)

    def restore(self, name: str, row: Values) -> None:
        """Put back the hints of one model, and show those that are hidden for no reason."""
        for key, values in self._wanted(name, row):
            hint = self._hints.get(key)
            with contextlib.suppress(RowChanged, RowExists):
                if hint is None:
                    self._hints.insert(key, values)
                elif _until(hint.values) != _until(values):
                    self._hints.update(hint, {**dict.fromkeys(hint.values), **values})

    def urgent(
        self,
        models: Table,
        capabilities: Collection[str],
        now: float,
        rank: str,
        only: Callable[[str], bool],
    ) -> list[tuple[str, Values, Record]]:
        """Work that may be taken now whose row has a priority of its own, which makes it better
        than this rank: its hint's key and values, and the row; the best first. Where a store has to
        search the whole table and that takes long, it is asked less often, and by one runner for
        all."""
        began = time.monotonic()
        if began < self._look_again_at or rank <= _rank_text(0.0):
            return []
        if self._look_took_s > QUICK_LOOK_S:
            rest_s = REST * self._look_took_s
            self._look_again_at = began + rest_s
            if not self._is_due(LOOKED, now, rest_s):
                return []
        ours = {plain_key(capability) for capability in capabilities}
        urgent = []
        for row in models.prioritized(_number(rank), FINISHED):
            if own_priority(row.values) is None or not only(row.key):
                continue
            for key, values in self._wanted(row.key, row.values):
                is_ours = key.partition("|")[0] in ours and rank_of(key) < rank
                if is_ours and _until(values) <= now:
                    urgent.append((key, values, row))
        self._look_took_s = time.monotonic() - began
        if self._look_took_s > QUICK_LOOK_S:
            self._look_again_at = began + REST * self._look_took_s
        return sorted(urgent, key=lambda each: each[0].partition("|")[2])

    def put(self, key: str, values: Values) -> None:
        """Write a hint, regardless of its version."""
        with contextlib.suppress(RowChanged, RowExists):
            self._hints.put(key, values)

    def is_last(self, hint: Hint, now: float, models: Table) -> bool:
        """Whether there is nothing else that needs the same capability and may be taken now."""
        ready = self.open([hint.capability], now, models)
        return all(other.record.key == hint.record.key for other in itertools.islice(ready, 2))

    def queued(self, capabilities: Collection[str]) -> list[Hint]:
        """Hints at stages that are claimed ahead and not begun, best first."""
        hints = []
        for prefix in sorted({f"{plain_key(capability)}|" for capability in capabilities}):
            for record in self._hints.marked(prefix, "queued"):
                hints.append(Hint(record, lambda: None))
        return sorted(hints, key=lambda hint: hint.order)

    def update(self, models: Table, record: Record, changes: Changes) -> Record:
        """Update a model's row and, with it, the hints that no longer say what it says."""
        before = dict(self._wanted(record.key, record.values))
        after = dict(self._wanted(record.key, merged(record.values, changes)))
        hints: dict[str, Values | None] = {key: None for key in before if key not in after}
        hints |= {key: values for key, values in after.items() if values != before.get(key)}
        return models.update_with(record, changes, self._hints, hints)

    def hide(self, hint: Hint, until: float) -> Hint | None:
        """Hide a hint until then. None if another runner was faster."""
        try:
            return replace(hint, record=self._hints.update(hint.record, {"until": until}))
        except RowChanged:
            return None

    def wanted(self, rows: Iterable[Record]) -> Iterator[tuple[str, Values]]:
        """The hints that these rows should have."""
        for row in rows:
            yield from self._wanted(row.key, row.values)

    def sweep(
        self, models: Table, now: float, renewed: Callable[[Record], Record] = lambda row: row
    ) -> None:
        """Put in every hint that is missing, and show those that are hidden for longer than the row
        says: by a machine whose clock was wrong, or whose last write got lost. Runners repair other
        stale hints when they meet them. `renewed` is what becomes of each row before."""
        present = {
            hint.key: hint if _is_hidden(hint, now) else None for hint in self._hints.query()
        }
        unfinished = [Condition("status", "!=", status) for status in FINISHED]

        def missing() -> Iterator[tuple[str, Values]]:
            for record in map(renewed, models.query(where=unfinished)):
                for key, values in self._wanted(record.key, record.values):
                    if key not in present:
                        yield key, values
                    elif hidden := present[key]:
                        self._show(hidden, values)

        self._hints.insert_many(missing())

    def sweep_if_due(self, now: float, interval_s: float, sweep: Callable[[], None]) -> bool:
        """Sweep, unless a runner has within that time: one look at a note spares the store as many
        full reads as there are idle runners. Where a sweep takes long, it is made less often."""
        return self.in_turn(SWEPT, now, interval_s, sweep)

    def in_turn(self, key: str, now: float, interval_s: float, work: Callable[[], None]) -> bool:
        """Do work that one runner does for all, unless it was done within that time. The longer it
        takes, the less often it is done."""
        if not self._is_due(key, now, interval_s):
            return False
        began = time.monotonic()
        work()
        rest_s = SWEEP_REST * (time.monotonic() - began)
        with contextlib.suppress(EdgeloopError):
            self._hints.put(key, {"at": now, "rest_s": rest_s})
        return True

    def _is_due(self, key: str, now: float, interval_s: float) -> bool:
        """Whether the work of this note was last done longer ago than that; then it is ours."""
        note = self._hints.get(key)
        if note is None:
            with contextlib.suppress(RowExists):
                self._hints.insert(key, {"at": now})
                return True
            return False
        rest_s = min(_seconds(note.values.get("rest_s")), LONGEST_REST_S)
        interval_s = max(interval_s, rest_s)
        if abs(now - _seconds(note.values.get("at"))) < interval_s:
            return False
        with contextlib.suppress(RowChanged):
            self._hints.update(note, {"at": now})
            return True
        return False

    def orphans(self, models: Table) -> Iterator[Record]:
        """Hints and notes that speak of a model that is gone. The row is read after the hint, and
        a hint of a later model of that name is another one, or has another version."""
        is_there: dict[str, bool] = {}
        for record in list(self._hints.query()):
            name = record.values.get("model")
            if not isinstance(name, str):
                continue
            if name not in is_there:
                is_there[name] = _has_row(models, name)
            if not is_there[name]:
                yield record

    def remove(self, record: Record) -> bool:
        """Delete a hint; False if it changed meanwhile."""
        with contextlib.suppress(RowChanged):
            self._hints.delete(record)
            return True
        return False

    def ready_at(self, row: Values, stage: Stage) -> float | None:
        return ready_at(row, stage, self._plan, self._margin_s)

    def key(self, name: str, row: Values, stage: Stage) -> str:
        explicit, natural = own_priority(row), bounded_priority(stage.priority(row))
        rank = (
            _rank_text(natural)
            if explicit is None
            else _rank_text(explicit) + OWN + _rank_text(natural)
        )
        uploaded = str(row.get("model_date") or "")[:19]
        capability = plain_key(self._plan.capability(row, stage))
        return f"{capability}|{rank}|{plain_key(uploaded)}|{plain_key(name)}|{stage.name}"

    def _show(self, hint: Record, values: Values) -> None:
        if _until(hint.values) > _until(values):
            with contextlib.suppress(RowChanged):  # a newer write knows better
                self._hints.update(hint, {**dict.fromkeys(hint.values), **values})

    def _wanted(self, name: str, row: Values) -> Iterator[tuple[str, Values]]:
        for stage in self._plan.for_model(row):
            ready_at = self.ready_at(row, stage)
            if ready_at is not None:
                values: dict[str, Value] = {
                    "model": name,
                    "stage": stage.name,
                    "until": ready_at,
                }
                if records_of(row).get(stage.name, _NEVER).queued:
                    values["queued"] = True
                yield self.key(name, row, stage), values


def _has_row(models: Table, name: str) -> bool:
    """A row that cannot be read exists: its model may be repaired, and keeps its name."""
    try:
        return models.get(name) is not None
    except RowDamaged:
        return True


def ready_at(row: Values, stage: Stage, plan: Plan, margin_s: float) -> float | None:
    """When the stage may be claimed (0: now); None when there is nothing to claim."""
    records = records_of(row)
    if not is_claimable(row, records) or not plan.is_ready(row, stage):
        return None
    return free_at(records.get(stage.name, _NEVER), margin_s)


def is_claimable(row: Values, records: Records) -> bool:
    """Whether runners may take stages of this model: it is neither finished, nor half uploaded, nor
    held by another tool."""
    if row.get("status") in FINISHED or (UPLOAD in records and records[UPLOAD].is_held):
        return False
    return not is_foreign(row, records)


def free_at(record: StageRecord, margin_s: float) -> float:
    """When a stage may be claimed as far as its record is concerned: after its lease and its delay;
    0 if it has neither."""
    lease_end = record.expires + margin_s if record.is_held else 0.0
    return max(lease_end, record.not_before)


_NEVER = StageRecord()


def _until(values: Values) -> float:
    return _seconds(values.get("until"))


def _is_hidden(hint: Record, now: float) -> bool:
    """Hidden for longer than by a runner that is about to claim."""
    return "stage" in hint.values and _until(hint.values) > now + GRAB_SECONDS


def _seconds(value: Value | None) -> float:
    """A time in a hint or a note; what is none counts as long ago."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return 0.0
    return float(value)


def rank_of(key: str) -> str:
    """Hints of one rank are equally good; their order among each other is by age. A rank is the
    natural priority, or the row's own and then the natural one, as texts that sort like numbers."""
    return key.split("|", 2)[1]


def _rank_text(priority: float) -> str:
    return f"{priority:012.3f}"


def _number(rank: str) -> float:
    try:
        return float(rank.partition(OWN)[0])
    except ValueError:  # a hint that another tool made
        return math.inf


def plain_key(text: str) -> str:
    """Keys of every store: no characters that Azure refuses in a row key, none that we split at."""
    return "".join("~" if char in "/\\#?|%" or ord(char) < 32 else char for char in text)
