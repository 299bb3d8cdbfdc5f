"""Which candidates are on which front: one of all objectives or, in a search for several chips, one
per chip."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from edgeloop.pareto import non_dominated
from edgeloop.search.base import barred_devices
from edgeloop.search.config import Objective, SearchConfig, SearchFront


class WithResult(Protocol):
    """A candidate of a study, or one that was read from a table."""

    @property
    def number(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def values(self) -> Mapping[str, float]: ...


Item = TypeVar("Item", bound=WithResult)


def fronts_of(config: SearchConfig, candidates: Iterable[Item]) -> dict[str, list[Item]]:
    """The Pareto front of every chip by its name, best first in the first objective; one front
    without a name where there are not several chips."""
    every = list(candidates)
    return {front.name: _front(config, front, every) for front in config.fronts}


def front_of(config: SearchConfig, candidates: Iterable[Item]) -> list[Item]:
    """The candidates that are on any front, best first in the first objective."""
    found = fronts_of(config, candidates)
    joined = {item.number: item for front in found.values() for item in front}
    return sorted(joined.values(), key=lambda item: minimised(config.objectives, item))


def front_names(fronts: Mapping[str, Sequence[Item]], item: Item) -> list[str]:
    """The fronts that a candidate is on."""
    return [name for name, front in fronts.items() if any(item.number == o.number for o in front)]


def minimised(objectives: Sequence[Objective], item: WithResult) -> tuple[float, ...]:
    return tuple(o.minimised(item.values[o.name]) for o in objectives)


def is_eligible(config: SearchConfig, front: SearchFront, item: WithResult) -> bool:
    """Whether it may be on a front: complete, finite, and within the limits of the chip."""
    if item.state != "complete" or front.name in barred_devices(item.values, config.constraints):
        return False
    return all(map(math.isfinite, minimised(front.objectives, item)))


def _front(config: SearchConfig, front: SearchFront, candidates: Sequence[Item]) -> list[Item]:
    eligible = [item for item in candidates if is_eligible(config, front, item)]
    points = [minimised(front.objectives, item) for item in eligible]
    kept = non_dominated(points)
    found = [
        (point, item) for point, item, stays in zip(points, eligible, kept, strict=True) if stays
    ]
    return [item for _, item in sorted(found, key=lambda pair: pair[0])]
