"""A row as the portal keeps it: small, read once, ready to be filtered, sorted and counted."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from edgeloop.models import Plan, StageRecord, ready_at, records_of
from edgeloop.store import Record, Value, Values

LONG_TEXT = 2_000
LAST_MOMENT = 253_402_300_799.0  # of the year 9999
LEFT_OUT = frozenset({"stages", "results", "arch"})  # the model's own page reads these anew
_REPEATED = frozenset(
    {
        *("status", "node", "experiment", "device", "shape", "output_shape", "precision"),
        *("latency_kind", "latency_profile", "tags"),
    }
)


@dataclass(frozen=True, slots=True)
class Held:
    """A stage that a machine holds."""

    stage: str
    node: str
    since: float
    expires: float


@dataclass(frozen=True, slots=True)
class Row:
    """`ready` has the stages that a runner may take, each with the time from which on it may."""

    name: str
    values: Values
    word: str
    tags: tuple[str, ...]
    held: tuple[Held, ...]
    ready: tuple[tuple[str, float], ...]

    def text(self, column: str) -> str:
        value = self.values.get(column)
        return "" if value is None else str(value)

    def waiting(self, now: float) -> tuple[str, ...]:
        """Stages that a runner could take now."""
        return tuple(stage for stage, at in self.ready if at <= now)


def read_row(record: Record, plan: Plan, margin_s: float) -> Row:
    values = record.values
    status = values.get("status")
    held = tuple(
        Held(stage, str(found.owner), found.since, found.expires)
        for stage, found in sound_records(values).items()
        if found.is_held
    )
    return Row(
        record.key,
        {sys.intern(name): _kept(name, value) for name, value in _light(values)},
        sys.intern(str(status or "no status").partition(" ")[0]),
        tags_of(values),
        held,
        _ready(values, plan, margin_s),
    )


def sound_records(values: Values) -> dict[str, StageRecord]:
    """The stages' records without those that hold nonsense, as a stranger's row may."""
    return {name: found for name, found in records_of(values).items() if _is_sound(found)}


def _is_sound(record: StageRecord) -> bool:
    times = (record.since, record.expires, record.not_before, record.attempts)
    return all(is_moment(value) for value in times) and isinstance(record.owner, str)


def is_moment(value: object) -> bool:
    """Seconds that a calendar has a day for."""
    return isinstance(value, int | float) and 0 <= value <= LAST_MOMENT


def tags_of(values: Values) -> tuple[str, ...]:
    """Old tables may hold anything there; what is no list of texts is no tags."""
    text = values.get("tags")
    if not text or not isinstance(text, str):
        return ()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(sys.intern(str(tag)) for tag in found) if isinstance(found, list) else ()


def _ready(values: Values, plan: Plan, margin_s: float) -> tuple[tuple[str, float], ...]:
    """A record that holds nonsense must not hide all other rows; its model waits for nothing."""
    try:
        found = [(stage.name, ready_at(values, stage, plan, margin_s)) for stage in plan.stages]
    except (TypeError, ValueError, OverflowError):
        return ()
    return tuple((stage, at) for stage, at in found if at is not None)


def _light(values: Values) -> list[tuple[str, Value]]:
    return [(name, value) for name, value in values.items() if name not in LEFT_OUT]


def _kept(name: str, value: Value) -> Value:
    """The same few texts in many rows are kept once; long ones are cut."""
    if not isinstance(value, str):
        return value
    if len(value) > LONG_TEXT:
        return value[:LONG_TEXT] + "…"
    return sys.intern(value) if name in _REPEATED else value
