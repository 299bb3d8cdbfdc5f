"""How much a candidate promises: the hypervolume it is expected to add, times its chance to count.

The expectation is a mean over draws of what the candidate might turn out to be. For two objectives
the gain of a draw is exact; for more it is the mean over random directions of how far the draw
pushes the front out, to the power of the number of objectives, whose limit is the hypervolume.

Objectives of any unit on one footing, so that one prior fits seconds, errors and MACs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import hypervolume_gain, non_dominated
from edgeloop.search.base import Evaluated, values_of
from edgeloop.search.sampler.encoding import Features
from edgeloop.search.sampler.surrogate import Shape, Surrogate
from edgeloop.search.sampler.trial import Value

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """From the middle of the results, in units of how far the good ones are from it.

    A quantity that varies by factors (MACs, a latency) is taken by its logarithm: then no doubt of
    a model reaches below zero. Far on the bad side every scale is logarithmic: how bad a bad result
    is (a net that did not learn) hardly matters, and must not drown the rest.
    """

    middle: float
    unit: float
    by_factors: bool

    @classmethod
    def of(cls, values: Floats) -> Scale:
        by_factors = _varies_by_factors(values)
        plain = np.log(values) if by_factors else values
        middle, good = np.quantile(plain, [0.5, 0.1])
        unit = float(middle - good) or float(np.std(plain)) or 1.0
        return cls(float(middle), unit, by_factors)

    def forward(self, values: Floats) -> Floats:
        plain = np.log(values) if self.by_factors else values
        scaled = (plain - self.middle) / self.unit
        return np.where(scaled > 1, 1 + np.log(np.maximum(scaled, 1)), scaled)

    def inverse(self, scaled: Floats) -> Floats:
        bent = np.exp(np.minimum(scaled, 20.0) - 1)
        plain = self.middle + self.unit * np.where(scaled > 1, bent, scaled)
        return np.asarray(np.exp(np.minimum(plain, 700.0)) if self.by_factors else plain)


def _varies_by_factors(values: Floats) -> bool:
    """Whether a normal law fits the logarithms better than the values (Box and Cox)."""
    if (values <= 0).any():
        return False
    logarithms = np.log(values)
    spread, factors = float(np.std(values)), float(np.std(logarithms))
    return min(spread, factors) > 0 and np.log(spread) > np.log(factors) + float(logarithms.mean())


_DRAWS = 32
_DRAWS_OF_MANY = 16  # directions cost more than the exact gain of two
_DIRECTIONS = 128
_LEAST_CHANCE = 0.02  # the model of feasibility is never quite sure


class Gain:
    """What points add to a front, in units of the box from the best to the worst seen."""

    def __init__(self, front: Floats, worst: Floats) -> None:
        self._best = front.min(axis=0)
        self._span = np.where(worst > self._best, worst - self._best, 1.0)
        self._front = (front - self._best) / self._span
        count = front.shape[1]
        self._corner = np.ones(count)
        normal = np.abs(np.random.default_rng(count).standard_normal((_DIRECTIONS, count)))
        self._directions = normal / np.linalg.norm(normal, axis=1, keepdims=True)
        self._reached = self._reach(self._front).max(axis=0)

    def of(self, values: Floats) -> Floats:
        """For values (candidates, draws, objectives), the mean over the draws."""
        points = (values - self._best) / self._span
        if points.shape[-1] == 2:
            return np.asarray(hypervolume_gain(points, self._front, self._corner).mean(axis=1))
        pushed = np.maximum(self._reach(points) - self._reached, 0.0)
        return np.asarray(pushed.mean(axis=(1, 2)))

    def _reach(self, points: Floats) -> Floats:
        """How far from the worst corner a point dominates along each direction."""
        reach = np.full((*points.shape[:-1], len(self._directions)), np.inf)
        for index, along in enumerate(self._directions.T):
            room = self._corner[index] - points[..., index]
            np.minimum(reach, room[..., None] / along, out=reach)
        return np.maximum(reach, 0.0) ** len(self._corner)


@dataclass(frozen=True)
class _Objective:
    scale: Scale
    surrogate: Surrogate

    def drawn(self, features: Floats, normals: Floats) -> Floats:
        """What might be measured (candidates, draws): doubt of the model and noise together."""
        mean, variance = self.surrogate.predict(features)
        deviation = np.sqrt(variance + self.surrogate.noise_variance)
        return self.scale.inverse(mean[:, None] + deviation[:, None] * normals)


@dataclass(frozen=True)
class Lessons:
    """What was learnt of each objective, and of what makes a member eligible."""

    objectives: Sequence[Shape]
    chance: Shape


class Promise:
    """Made anew for every proposal from all results, of which some are eligible."""

    def __init__(
        self,
        features: Features,
        lessons: Lessons,
        history: Sequence[Evaluated],
        pending: Sequence[Mapping[str, Value]],
        seed: int,
    ) -> None:
        self._features = features
        measured = [result for result in history if result.measured]
        values = values_of(measured)
        seen = features.encode([result.params for result in measured])
        waiting = features.encode(pending)
        believed = [
            self._believed(shape, seen, values[:, index], waiting)
            for index, shape in enumerate(lessons.objectives)
        ]
        self._objectives = [objective for objective, _ in believed]
        self._normals = _normals(values.shape[1], seed)
        eligible = values[[result.eligible for result in measured]]
        expected = np.array([means for _, means in believed]).T
        front = np.vstack([eligible, expected.reshape(-1, values.shape[1])])
        self._gain = Gain(front[non_dominated(front)], eligible.max(axis=0))
        self._chance: Surrogate | None = None
        if len(eligible) < len(history):
            encoded = features.encode([result.params for result in history])
            self._chance = self._surrogate(lessons.chance, encoded, eligibility(history))

    def of(self, candidates: Sequence[Mapping[str, Value]]) -> Floats:
        encoded = self._features.encode(candidates)
        drawn = [
            objective.drawn(encoded, normals)
            for objective, normals in zip(self._objectives, self._normals, strict=True)
        ]
        promise = self._gain.of(np.stack(drawn, axis=-1))
        if self._chance is not None:
            mean, _ = self._chance.predict(encoded)
            promise = promise * np.clip(mean + 0.5, _LEAST_CHANCE, 1.0)
        return promise

    def _believed(
        self, shape: Shape, seen: Floats, values: Floats, waiting: Floats
    ) -> tuple[_Objective, Floats]:
        """What is pending is taken to turn out as expected, so that others look elsewhere."""
        scale = Scale.of(values)
        targets = scale.forward(values)
        surrogate = self._surrogate(shape, seen, targets)
        if not len(waiting):
            return _Objective(scale, surrogate), np.empty(0)
        means, _ = surrogate.predict(waiting)
        both = np.vstack([seen, waiting]), np.append(targets, means)
        return _Objective(scale, self._surrogate(shape, *both)), scale.inverse(means)

    def _surrogate(self, shape: Shape, encoded: Floats, targets: Floats) -> Surrogate:
        return Surrogate(shape, self._features.names, self._features.groups, encoded, targets)


def scaled_values(results: Sequence[Evaluated]) -> list[Floats]:
    """Of results that are all measured, a column an objective."""
    return [Scale.of(column).forward(column) for column in values_of(results).T]


def eligibility(results: Sequence[Evaluated]) -> Floats:
    """Whether a member counts, from −½ to ½: of what is far from all of them nothing is known."""
    return np.array([0.5 if result.eligible else -0.5 for result in results])


def _normals(objectives: int, seed: int) -> Floats:
    """Evenly spread normal draws, paired at random between the objectives."""
    count = _DRAWS if objectives <= 2 else _DRAWS_OF_MANY
    spread = [NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)]
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(spread) for _ in range(objectives)])
