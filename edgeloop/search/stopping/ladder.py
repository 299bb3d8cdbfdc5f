"""The candidates of a search on their rungs: who continues next, and what the paused ones are
heading for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeloop.search.base import barred_devices
from edgeloop.search.keys import TRAINED
from edgeloop.search.names import value_of
from edgeloop.search.stopping.forecast import forecast
from edgeloop.search.stopping.rule import StoppingRule
from edgeloop.search.stopping.rungs import RungMember, Rungs

if TYPE_CHECKING:
    from edgeloop.search.config import Objective, SearchConfig
    from edgeloop.search.study import Candidate, End

Values = Mapping[str, float]

_LATER = ("farm_f1",)  # needs the trained model: unknown at a pause
# What forecasts may learn from besides the objectives.
_COUNTED = ("params", "macs", "memory_bytes", "ddr_bytes", "chip_latency_ms", "host_latency_ms")


class Ladder:
    """Candidates by the id of their architecture. One that failed or violates a constraint is not
    among them: it cannot beat others."""

    def __init__(
        self, config: SearchConfig, rungs: Rungs, candidates: Iterable[Candidate] = ()
    ) -> None:
        self._config, self.rungs = config, rungs
        self._rule = StoppingRule(rungs, _fronts(config))
        self._members: dict[str, RungMember] = {}
        self._next: dict[bool, str | None] = {}
        for item in candidates:
            if item.state == "running":
                self.record(item, item.rungs)
            else:
                self.end(item, item.rungs, item.state, item.values)

    def record(
        self,
        candidate: Candidate,
        rungs: Mapping[int, Values],
        complete: Values | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """What a candidate has reached: its values at each pause, and at the end."""
        marks = dict(rungs) | ({self.rungs.total: complete} if complete is not None else {})
        member = _member(self._config, candidate, marks, waits)
        if member is not None:
            self._members[candidate.arch.id] = member
            self._next.clear()

    def end(self, candidate: Candidate, rungs: Mapping[int, Values], end: End, at: Values) -> None:
        """`at` are its last values. One that failed or was screened out is forgotten."""
        if end in ("failed", "screened"):
            self._members.pop(candidate.arch.id, None)
            self._next.clear()
        else:
            ended = replace(candidate, state=end)
            self.record(ended, rungs, at if end == "complete" else None)

    def next(self, *, is_last: bool) -> str | None:
        """Who continues next, if anybody; `is_last`: when no candidate is left to begin."""
        if is_last not in self._next:
            found = self._rule.promotable(list(self._members.values()), is_last)
            self._next[is_last] = found[0] if found else None
        return self._next[is_last]


def expected_values(
    config: SearchConfig, candidates: Sequence[Candidate]
) -> dict[str, dict[str, float]]:
    """The values that paused and stopped candidates are heading for, by the id of their
    architecture; of the others' none."""
    rungs = config.rungs
    partial = [item for item in candidates if item.rungs and item.state in ("running", "stopped")]
    if rungs is None or not partial:
        return {}
    complete = [item for item in candidates if item.state == "complete"]
    known = [_member(config, item, item.rungs, waits=False) for item in partial]
    for item in complete:
        known.append(_member(config, item, {**item.rungs, rungs.total: item.values}, waits=False))
    members = [member for member in known if member is not None]
    means = {m.key: mean for m, mean in zip(members, forecast(members, rungs).mean, strict=True)}
    found = {}
    for item in partial:
        if item.arch.id in means:
            values = dict(item.rungs[max(item.rungs)])
            for objective, mean in zip(_trained(config), means[item.arch.id], strict=True):
                values[objective.name] = objective.minimised(float(mean))  # undoes itself
            found[item.arch.id] = values
    return found


def _member(
    config: SearchConfig, candidate: Candidate, marks: Mapping[int, Values], waits: bool
) -> RungMember | None:
    """None while an exact value is unknown."""
    known = marks[max(marks)] if marks else {}
    objectives = _compared(config)
    if any(objective.name not in known for objective in objectives):
        return None
    exact = tuple(None if o.name in TRAINED else o.minimised(known[o.name]) for o in objectives)
    scores = {
        at: tuple(o.minimised(values[o.name]) for o in _trained(config))
        for at, values in marks.items()
    }
    out = barred_devices(known, config.constraints)
    barred = tuple(place for place, front in enumerate(config.fronts) if front.name in out)
    names = {objective.name for objective in objectives}
    features = {
        name: value
        for name, value in known.items()
        if value_of(name) in _COUNTED and name not in names
    }
    is_stopped = candidate.state == "stopped"
    params = candidate.params
    return RungMember(candidate.arch.id, exact, scores, waits, barred, params, features, is_stopped)


def _compared(config: SearchConfig) -> list[Objective]:
    return [objective for objective in config.objectives if objective.name not in _LATER]


def _trained(config: SearchConfig) -> list[Objective]:
    return [objective for objective in config.objectives if objective.name in TRAINED]


def _fronts(config: SearchConfig) -> tuple[tuple[int, ...], ...]:
    compared = _compared(config)
    return tuple(
        tuple(place for place, one in enumerate(compared) if one in front.objectives)
        for front in config.fronts
    )
