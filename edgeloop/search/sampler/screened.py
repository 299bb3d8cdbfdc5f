"""The acquisition of screened members: exact in what is known, modelled in what is not.

A member whose latency is known cannot disappoint there: it is worth a training if what may be
learnt about its accuracy pushes the front out *at that latency*. A slow member must promise more.
With several fronts (one per chip) the acquisition is the mean of the improvements of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeloop.pareto import Floats, non_dominated
from edgeloop.search.base import Observation
from edgeloop.search.sampler.acquisition import Scale, spread_normals
from edgeloop.search.sampler.features import MemberEncoding, all_values, barred_fronts
from edgeloop.search.sampler.improvement import Improvement, exact_improvement
from edgeloop.search.sampler.surrogate import Kernel, Surrogate
from edgeloop.search.sampler.table import MemberArrays

_SAMPLES = 32
_COARSE_SAMPLES, _COARSE_DIRECTIONS = 8, 24
_FINALISTS = 256  # members that are compared with all samples and directions
_LEAST_FEASIBILITY = 0.02  # the model of feasibility is never quite sure
_DOUBT = 0.1  # variance of what a stopped training was heading for, on the scale of the targets


@dataclass(frozen=True)
class DearKernels:
    """A kernel for each dear objective, by index, and that of feasibility."""

    objectives: Mapping[int, Kernel]
    feasibility: Kernel | None


@dataclass(frozen=True)
class _Dear:
    scale: Scale
    surrogate: Surrogate

    def predict(self, encoded: Floats) -> tuple[Floats, Floats]:
        """Mean and deviation of what would be measured, on the scale."""
        mean, variance = self.surrogate.predict(encoded)
        return mean, np.sqrt(variance + self.surrogate.noise_variance)


@dataclass(frozen=True)
class _Front:
    place: int
    objectives: tuple[int, ...]
    points: Floats
    worst: Floats


class ScreenedAcquisition:
    """Made for every choice from all results; each front has at least one of them."""

    def __init__(
        self,
        encoding: MemberEncoding,
        kernels: DearKernels,
        history: Sequence[Observation],
        waiting: MemberArrays,
        fronts: Sequence[tuple[int, ...]],
        seed: int,
    ) -> None:
        count = 1 + max(index for front in fronts for index in front)
        values = all_values(history, count)
        encoded = encoding.encode(history)
        self._dear: dict[int, _Dear] = {}
        for index, kernel in kernels.objectives.items():
            self._dear[index] = _fitted(
                encoding, kernel, encoded, values[:, index], doubts(history), waiting
            )
        self._seed = seed
        eligible = np.array([r.feasible and not r.is_partial for r in history], dtype=np.bool_)
        expected = self._expected(waiting)
        barred = barred_fronts(history, len(fronts))
        found = (
            _front(place, front, values[eligible & ~barred[:, place]], expected)
            for place, front in enumerate(fronts)
        )
        self._fronts = [front for front in found if front]
        self._feasibility: Surrogate | None = None
        if kernels.feasibility:
            self._feasibility = Surrogate(
                kernels.feasibility, encoding.names, encoding.groups, encoded, outcomes(history)
            )

    def of(self, candidates: MemberArrays) -> Floats:
        predicted = {index: dear.predict(candidates.encoded) for index, dear in self._dear.items()}
        gains = [self._gain(front, candidates, predicted) for front in self._fronts]
        gain = np.mean(gains, axis=0) if gains else np.ones(len(candidates))
        if self._feasibility is None:
            return np.asarray(gain)
        mean, _ = self._feasibility.predict(candidates.encoded)
        return np.asarray(gain * np.clip(mean + 0.5, _LEAST_FEASIBILITY, 1.0))

    def _gain(
        self,
        front: _Front,
        candidates: MemberArrays,
        predicted: Mapping[int, tuple[Floats, Floats]],
    ) -> Floats:
        """Members that are barred from this front, or lack a value of it, add nothing to it."""
        known = [index for index in front.objectives if index not in self._dear]
        usable = np.isfinite(candidates.values[:, known]).all(axis=1)
        usable &= ~candidates.barred[:, front.place]
        gain = np.zeros(len(candidates))
        if not usable.any():
            return gain
        here = {index: (m[usable], d[usable]) for index, (m, d) in predicted.items()}
        values = candidates.values[usable]
        if len(front.objectives) == 2 and len(known) == 1:
            gain[usable] = self._exact(front, known[0], values, here)
            return gain
        coarse = self._sampled(front, values, here, _COARSE_SAMPLES, _COARSE_DIRECTIONS)
        best = np.argsort(-coarse, kind="stable")[:_FINALISTS]
        finalists = {index: (m[best], d[best]) for index, (m, d) in here.items()}
        fine = self._sampled(front, values[best], finalists, _SAMPLES)
        rest = coarse * min(1.0, fine.min() / max(coarse[best].min(), 1e-300))
        rest[best] = fine
        gain[usable] = rest
        return gain

    def _exact(
        self,
        front: _Front,
        known: int,
        values: Floats,
        predicted: Mapping[int, tuple[Floats, Floats]],
    ) -> Floats:
        (dear,) = (index for index in front.objectives if index != known)
        order = [front.objectives.index(dear), front.objectives.index(known)]
        scale = self._dear[dear].scale
        return exact_improvement(
            *predicted[dear],
            values[:, known],
            front.points[:, order],
            front.worst[order],
            scale.forward,
            scale.inverse,
        )

    def _sampled(
        self,
        front: _Front,
        values: Floats,
        predicted: Mapping[int, tuple[Floats, Floats]],
        count: int,
        directions: int | None = None,
    ) -> Floats:
        normals = spread_normals(len(predicted), count, self._seed)
        samples = []
        for index in front.objectives:
            if index in predicted:
                mean, deviation = predicted[index]
                own = normals[list(predicted).index(index)]
                drawn = mean[:, None] + deviation[:, None] * own
                samples.append(self._dear[index].scale.inverse(drawn))
            else:
                samples.append(np.repeat(values[:, [index]], count, axis=1))
        more = {} if directions is None else {"directions": directions}
        improvement = Improvement(front.points, front.worst, **more)
        return improvement.of(np.stack(samples, axis=-1))

    def _expected(self, waiting: MemberArrays) -> Floats:
        values = waiting.values.copy()
        for index, dear in self._dear.items():
            if len(waiting):
                values[:, index] = dear.scale.inverse(dear.predict(waiting.encoded)[0])
        return values


def outcomes(results: Sequence[Observation]) -> Floats:
    """½ for what succeeded or was stopped early and −½ for what failed or broke a constraint: far
    from all of them, nothing is known."""
    return np.array([0.5 if r.feasible and r.values is not None else -0.5 for r in results])


def doubts(results: Sequence[Observation]) -> Floats:
    return np.array([_DOUBT if result.is_partial else 0.0 for result in results])


def _fitted(
    encoding: MemberEncoding,
    kernel: Kernel,
    encoded: Floats,
    values: Floats,
    doubt: Floats,
    waiting: MemberArrays,
) -> _Dear:
    """Pending candidates are taken to turn out as predicted, so that others look elsewhere."""
    known = np.isfinite(values)
    scale = Scale.of(values[known])
    encoded, targets, doubt = encoded[known], scale.forward(values[known]), doubt[known]
    surrogate = Surrogate(kernel, encoding.names, encoding.groups, encoded, targets, doubt)
    if len(waiting):
        means, _ = surrogate.predict(waiting.encoded)
        encoded, targets = np.vstack([encoded, waiting.encoded]), np.append(targets, means)
        doubt = np.append(doubt, np.zeros(len(waiting)))
        surrogate = Surrogate(kernel, encoding.names, encoding.groups, encoded, targets, doubt)
    return _Dear(scale, surrogate)


def _front(
    place: int, objectives: tuple[int, ...], eligible: Floats, expected: Floats
) -> _Front | None:
    """The front of results and of what is expected of pending candidates."""
    results = eligible[:, objectives]
    results = results[np.isfinite(results).all(axis=1)]
    if not len(results):
        return None
    points = np.vstack([results, expected[:, objectives]])
    points = points[np.isfinite(points).all(axis=1)]
    return _Front(place, objectives, points[non_dominated(points)], results.max(axis=0))
