"""How good a fit is on families of networks that it never saw, and which one to keep.

Neither a fit nor an interval sees the family that it predicts. Three choices do see the errors of
all families, those that are then reported among them: the strength of the penalty (one of four), a
profile with terms or without (per chip), and which kinds of network have an interval of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from bench.latency.points import Point
from bench.latency.regression import (
    SIMPLE,
    Fitted,
    Floats,
    Observations,
    fit,
    left_out,
    loss,
)
from edgeloop.platforms.base import ErrorInterval
from edgeloop.platforms.qnn.latency import held_out_interval

COVERAGE = 0.9
ANY = "any"
CONSTANT = "constant"
PENALTIES = (1.0, 3.0, 10.0, 30.0)
FEWEST_FAMILIES = 8  # with fewer, leaving one out says little about the next
FEWEST_OF_A_KIND = 39  # the second largest error of so many is an end; one outlier is not
WORTH = 0.97  # the corrections are kept where they lower the loss by 3 % or more


@dataclass(frozen=True)
class Group:
    """The points of one format on chips that share the compiler's latency model."""

    points: tuple[Point, ...]

    @cached_property
    def chips(self) -> tuple[str, ...]:
        return tuple(sorted({point.chip for point in self.points}))

    @cached_property
    def term_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.points[0].terms if name != CONSTANT)

    @cached_property
    def observations(self) -> Observations:
        return Observations(
            np.array([self.chips.index(point.chip) for point in self.points]),
            np.array([point.raw_us for point in self.points]),
            np.array([point.time_us for point in self.points]),
            np.array([[point.terms[name] for name in self.term_names] for point in self.points]),
            np.array([0.0 if point.doubt else 1.0 for point in self.points]),
        )

    def left_out(self, penalty: float) -> Floats:
        families = [point.family for point in self.points]
        return left_out(self.observations, len(self.chips), families, penalty)

    def fit(self, penalty: float) -> Fitted:
        return fit(self.observations, len(self.chips), penalty)


@dataclass(frozen=True)
class Scores:
    """Of predictions of networks whose family was left out. `covered` is the share that the
    interval made of all other families holds."""

    networks: int
    families: int
    median_error: float
    within_10: float
    within_20: float
    covered: float


@dataclass(frozen=True)
class ChipResult:
    """What is kept for a chip, and how it did beside the simple profile."""

    chip: str
    soc: int
    form: str
    a_us: float
    b: float
    terms: Mapping[str, float]
    points: tuple[Point, ...]
    predicted: tuple[float, ...]  # each by a fit without its family
    simple_predicted: tuple[float, ...]

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        pairs = zip(self.points, self.predicted, strict=True)
        return tuple(point.time_us / predicted for point, predicted in pairs)

    @cached_property
    def intervals(self) -> dict[str, ErrorInterval]:
        return self._intervals_without("")

    @property
    def coverage(self) -> float | None:
        """What the intervals state; None: too few networks."""
        return self.intervals[ANY].coverage

    def pair_error(self) -> float | None:
        """The median error of the ratio of two networks of one family: what they share cancels.
        None: no family has two."""
        families: dict[str, list[float]] = {}
        for point, ratio in zip(self.points, self.ratios, strict=True):
            if not point.doubt:
                families.setdefault(point.family, []).append(ratio)
        errors = [
            max(one / other, other / one) - 1
            for ratios in families.values()
            for one, other in combinations(ratios, 2)
        ]
        return float(np.median(errors)) if errors else None

    def scores(self, with_doubtful: bool = False, is_simple: bool = False) -> Scores:
        chosen = self.simple_predicted if is_simple else self.predicted
        rows = [
            (point, predicted)
            for point, predicted in zip(self.points, chosen, strict=True)
            if with_doubtful or not point.doubt
        ]
        errors = np.array([abs(predicted / point.time_us - 1) for point, predicted in rows])
        return Scores(
            len(rows),
            len({point.family for point, _ in rows}),
            float(np.median(errors)),
            float(np.mean(errors <= 0.1)),
            float(np.mean(errors <= 0.2)),
            float(np.mean([self._is_covered(*row) for row in rows])),
        )

    def _is_covered(self, point: Point, predicted: float) -> bool:
        intervals = self._intervals_without(point.family)
        interval = intervals.get(point.kind, intervals[ANY])
        return interval.low <= point.time_us / predicted <= interval.high

    def _intervals_without(self, family: str) -> dict[str, ErrorInterval]:
        """By kind of network where there are enough of it. A kind of fewer, of which the interval
        of all networks holds too few, has that one as wide as its own errors reach: what it states
        is still of all networks."""
        rows = [
            (point.kind, ratio)
            for point, ratio in zip(self.points, self.ratios, strict=True)
            if point.family != family and not point.doubt
        ]
        whole = held_out_interval([ratio for _, ratio in rows], COVERAGE)
        found = {ANY: whole}
        for kind in sorted({kind for kind, _ in rows}):
            ratios = [ratio for other, ratio in rows if other == kind]
            own = held_out_interval(ratios, COVERAGE)
            held = np.mean([whole.low <= ratio <= whole.high for ratio in ratios])
            if len(ratios) >= FEWEST_OF_A_KIND:
                found[kind] = own
            elif held < COVERAGE:
                low, high = min(own.low, whole.low), max(own.high, whole.high)
                found[kind] = replace(whole, low=low, high=high, widened_by=len(ratios))
        return found


def evaluate(points: Sequence[Point]) -> list[ChipResult]:
    """A result per chip and format with enough families; points that the product withholds are
    not among them."""
    families: dict[tuple[str, str], set[str]] = {}
    for point in points:
        if not point.missing_ops and not point.doubt:
            families.setdefault((point.form, point.chip), set()).add(point.family)
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        is_known = len(families.get((point.form, point.chip), ())) >= FEWEST_FAMILIES
        if is_known and not point.missing_ops:
            groups.setdefault((point.form, point.soc), []).append(point)
    return [result for key in sorted(groups) for result in _evaluate(Group(tuple(groups[key])))]


def best_penalty(group: Group) -> float:
    """The one with the least loss on families left out, of those that have terms at all."""
    return min(PENALTIES, key=lambda penalty: loss(group.observations, group.left_out(penalty)))


def _evaluate(group: Group) -> list[ChipResult]:
    rows, best = group.observations, best_penalty(group)
    simple, better = group.left_out(SIMPLE), group.left_out(best)
    results = []
    for number, chip in enumerate(group.chips):
        own = rows.chip == number
        is_better = _is_better(rows.pick(own), better[own], simple[own])
        fitted = group.fit(best if is_better else SIMPLE)
        weights = dict(zip(group.term_names, fitted.weights.tolist(), strict=True))
        weights = {name: weight for name, weight in weights.items() if abs(weight) >= 0.0005}
        average = _average(group.points, weights)
        if weights:
            weights = {CONSTANT: -average, **weights}
        results.append(
            ChipResult(
                chip=chip,
                soc=group.points[0].soc,
                form=group.points[0].form,
                a_us=float(fitted.a_us[number] * np.exp(average)),
                b=float(fitted.b[number] * np.exp(average)),
                terms=weights,
                points=tuple(p for p, is_own in zip(group.points, own, strict=True) if is_own),
                predicted=tuple((better if is_better else simple)[own].tolist()),
                simple_predicted=tuple(simple[own].tolist()),
            )
        )
    return results


def _is_better(rows: Observations, better: Floats, simple: Floats) -> bool:
    """Whether the terms hold up on a chip: in the loss, and in the figures that are reported."""
    used = rows.weight > 0
    errors = [np.abs(predicted / rows.time_us - 1)[used] for predicted in (better, simple)]
    medians = [float(np.median(one)) for one in errors]
    within = [float(np.mean(one <= 0.1)) for one in errors]
    is_lower = loss(rows, better) < WORTH * loss(rows, simple)
    return is_lower and medians[0] <= medians[1] and within[0] >= within[1]


def _average(points: Sequence[Point], weights: Mapping[str, float]) -> float:
    """The correction's logarithm for an average network: in a and b, they mean something alone."""
    fitted_to = [point.terms for point in points if not point.doubt]
    return float(
        np.mean([sum(w * terms[name] for name, w in weights.items()) for terms in fitted_to])
    )
