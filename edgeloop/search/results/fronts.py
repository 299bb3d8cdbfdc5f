"""Which candidates are on the front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from edgeloop.pareto import non_dominated
from edgeloop.search.config import Objective, SearchConfig, SearchFront
from edgeloop.search.study import Candidate


def front_of(config: SearchConfig, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The Pareto front, best first in the first objective."""
    [front] = config.fronts
    eligible = [item for item in candidates if is_eligible(config, front, item)]
    kept = non_dominated([minimised(config.objectives, item) for item in eligible])
    found = [item for item, stays in zip(eligible, kept, strict=True) if stays]
    return sorted(found, key=lambda item: minimised(config.objectives, item))


def minimised(objectives: Sequence[Objective], item: Candidate) -> tuple[float, ...]:
    return tuple(o.minimised(item.values[o.name]) for o in objectives)


def is_eligible(config: SearchConfig, front: SearchFront, item: Candidate) -> bool:
    """Whether it may be on a front: complete, and finite in its objectives."""
    if item.state != "complete":
        return False
    return all(map(math.isfinite, minimised(front.objectives, item)))
