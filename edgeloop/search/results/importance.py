"""How much each parameter of a space mattered in a search, for each objective.

The importance of a parameter is the share of the variation of an objective that its values explain
among the candidates of this search (an analysis of variance of ranks, corrected for the number of
values). Ranks, so that one bad outlier does not decide, and latency and accuracy are alike. A
parameter that only some candidates have is judged among these: that the others lack it counts for
the parameter that decided it. Numbers with many values are compared in quarters.

Optuna's evaluators need either scikit-learn or parameters that every trial has.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeloop.pareto import Floats

FEWEST = 8  # candidates below which nothing can be said
_MOST_LEVELS = 5
_QUARTERS = 4


@dataclass(frozen=True)
class Importance:
    """`shares` by objective, each between 0 and 1."""

    parameter: str
    shares: Mapping[str, float]

    @property
    def most(self) -> float:
        return max(self.shares.values(), default=0.0)


def importances(
    parameters: Sequence[Mapping[str, object]], values: Mapping[str, Sequence[float]]
) -> tuple[Importance, ...]:
    """The most important first. `values` has a number per candidate for each objective, NaN where
    it is not known. Parameters that never differ are left out; empty if there are too few
    candidates."""
    names = sorted({name for params in parameters for name in params})
    known = {
        objective: np.asarray(numbers, dtype=np.float64) for objective, numbers in values.items()
    }
    found = []
    for name in names:
        shares = {
            objective: _explained([params.get(name) for params in parameters], numbers)
            for objective, numbers in known.items()
        }
        told = {objective: share for objective, share in shares.items() if share is not None}
        if told:
            found.append(Importance(name, told))
    return tuple(sorted(found, key=lambda item: (-item.most, item.parameter)))


def _explained(settings: Sequence[object], numbers: Floats) -> float | None:
    """None if nothing can be said."""
    is_known = np.isfinite(numbers)
    if is_known.sum() < FEWEST:
        return None
    ranks = _ranks(numbers[is_known])
    total = float(((ranks - ranks.mean()) ** 2).sum())
    kept = [setting for setting, known in zip(settings, is_known, strict=True) if known]
    has = np.array([setting is not None for setting in kept])
    levels = _levels([setting for setting in kept if setting is not None])
    groups = [ranks[has][np.array([level == one for level in levels])] for one in set(levels)]
    count, freedom = len(groups), int(has.sum()) - len(groups)
    if count < 2:
        return None
    if freedom < 1 or total == 0:
        return 0.0
    middle = ranks[has].mean()
    between = sum(len(group) * (group.mean() - middle) ** 2 for group in groups)
    within = sum(((group - group.mean()) ** 2).sum() for group in groups)
    corrected = between - (count - 1) * within / freedom
    return round(max(0.0, min(1.0, float(corrected) / total)), 4)


def _levels(settings: Sequence[object]) -> list[Hashable]:
    """The values as groups; many numbers in quarters."""
    numbers = [_number(setting) for setting in settings]
    if len(set(map(str, settings))) <= _MOST_LEVELS or any(map(math.isnan, numbers)):
        return [str(setting) for setting in settings]
    edges = np.quantile(numbers, [place / _QUARTERS for place in range(1, _QUARTERS)])
    return [int(quarter) for quarter in np.searchsorted(edges, numbers)]


def _number(setting: object) -> float:
    is_number = isinstance(setting, int | float) and not isinstance(setting, bool)
    return float(setting) if is_number else math.nan  # type: ignore[arg-type]


def _ranks(numbers: Floats) -> Floats:
    """Equal numbers share their mean rank."""
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place], dtype=np.float64)
