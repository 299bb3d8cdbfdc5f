"""The candidates of a search on their rungs: who continues next, and what the paused ones are
heading for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from edgeloop.search.base import barred_devices
from edgeloop.search.keys import TRAINED
from edgeloop.search.stopping.forecast import forecast
from edgeloop.search.stopping.rule import StoppingRule
from edgeloop.search.stopping.rungs import RungMember, Rungs

if TYPE_CHECKING:
    from edgeloop.search.config import Objective, SearchConfig
    from edgeloop.search.study import Candidate

Values = Mapping[str, float]

_LATER = ("farm_f1",)  # needs the trained model: unknown at a pause


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
            self.record(item.arch.id, item.rungs, item.values if item.state == "complete" else None)
            if item.state in ("failed", "screened"):
                self.forget(item.arch.id)

    def record(
        self,
        arch_id: str,
        rungs: Mapping[int, Values],
        complete: Values | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """What a candidate has reached: its values at each pause, and at the end."""
        marks = dict(rungs) | ({self.rungs.total: complete} if complete is not None else {})
        member = _member(self._config, arch_id, marks, waits)
        if member is not None:
            self._members[arch_id] = member
            self._next.clear()

    def forget(self, arch_id: str) -> None:
        if self._members.pop(arch_id, None) is not None:
            self._next.clear()

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
    marks = {item.arch.id: dict(item.rungs) for item in partial}
    for item in candidates:
        if item.state == "complete":
            marks[item.arch.id] = {**item.rungs, rungs.total: item.values}
    known = {key: _member(config, key, at, waits=False) for key, at in marks.items()}
    members = [member for member in known.values() if member is not None]
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
    config: SearchConfig, arch_id: str, marks: Mapping[int, Values], waits: bool
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
    return RungMember(arch_id, exact, scores, waits, barred)


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
