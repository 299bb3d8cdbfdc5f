"""How much hypervolume a candidate is expected to add to a front.

With two objectives of which one is known before the training, the expectation is one integral: at
every level of the unknown objective, the probability to get below it times the width that the known
one adds there. It is computed as such, so that even an improvement that is very unlikely has its
place in the ranking. For other fronts the expectation is a mean over samples; with more than two
objectives the improvement of a sample is estimated by the mean over random directions of how far it
pushes the front out, to the power of the number of objectives, whose limit is the hypervolume.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from edgeloop.pareto import Floats, hypervolume_gain

_DIRECTIONS = 128
_BELOW = 4.0  # standard deviations; nothing is expected to be better by more
_PIECES = 8  # of the range below the best value seen
_NODES = 3  # of the integral between two levels of a front
_FINALISTS = 256  # candidates whose integral is more than roughly computed
_Z = np.arange(-8.0, 8.01, 0.01)
_PROBABILITY = np.array([NormalDist().cdf(z) for z in _Z])


class Improvement:
    """The hypervolume that points add to a front, in units of the box from the best to the worst
    value seen."""

    def __init__(self, front: Floats, worst: Floats, directions: int = _DIRECTIONS) -> None:
        self._best = front.min(axis=0)
        self._span = np.where(worst > self._best, worst - self._best, 1.0)
        self._front = (front - self._best) / self._span
        count = front.shape[1]
        self._reference = np.ones(count)
        normal = np.abs(np.random.default_rng(count).standard_normal((directions, count)))
        self._directions = normal / np.linalg.norm(normal, axis=1, keepdims=True)
        self._reached = self._reach(self._front).max(axis=0)

    def of(self, values: Floats) -> Floats:
        """For values (candidates, samples, objectives), the mean over the samples."""
        points = (values - self._best) / self._span
        if points.shape[-1] == 2:
            return np.asarray(hypervolume_gain(points, self._front, self._reference).mean(axis=1))
        pushed = np.maximum(self._reach(points) - self._reached, 0.0)
        return np.asarray(pushed.mean(axis=(1, 2)))

    def _reach(self, points: Floats) -> Floats:
        """How far from the reference a point dominates along each direction."""
        reach = np.full((*points.shape[:-1], len(self._directions)), np.inf)
        for index, along in enumerate(self._directions.T):
            room = self._reference[index] - points[..., index]
            np.minimum(reach, room[..., None] / along, out=reach)
        return np.maximum(reach, 0.0) ** len(self._reference)


def exact_improvement(
    mean: Floats,
    deviation: Floats,
    known: Floats,
    front: Floats,
    worst: Floats,
    scaled: Callable[[Floats], Floats],
    plain: Callable[[Floats], Floats],
) -> Floats:
    """For two objectives, the first modelled as normal on a scale of its own, the second known.

    `front` and `worst` are plain values, as `known` is; `scaled` and `plain` convert those of the
    first objective. In units of the box from the best to the worst value seen.
    """
    rough = _integrated(mean, deviation, known, front, worst, scaled, plain, 1)
    if len(rough) <= 1:
        return rough
    best = np.argsort(-rough, kind="stable")[:_FINALISTS]
    fine = _integrated(
        mean[best], deviation[best], known[best], front, worst, scaled, plain, _NODES
    )
    gained: Floats = np.minimum(rough, fine.min())
    gained[best] = fine
    return gained


def _integrated(
    mean: Floats,
    deviation: Floats,
    known: Floats,
    front: Floats,
    worst: Floats,
    scaled: Callable[[Floats], Floats],
    plain: Callable[[Floats], Floats],
    count: int,
) -> Floats:
    places, shares = np.polynomial.legendre.leggauss(count)
    best = front.min(axis=0)
    span = np.where(worst > best, worst - best, 1.0)
    order = np.argsort(front[:, 0], kind="stable")
    levels = np.unique(front[order, 0])
    reached = np.array([front[front[:, 0] <= level, 1].min() for level in levels])
    lowest = float(plain(np.array([(mean - _BELOW * deviation).min()]))[0])
    below = np.linspace(min(lowest, levels[0]), levels[0], _PIECES + 1)
    edges = np.concatenate([below, levels[1:], [max(worst[0], levels[-1])]])
    ceilings = np.minimum(np.concatenate([np.full(_PIECES, worst[1]), reached]), worst[1])
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    nodes = (middle[:, None] + half[:, None] * places).ravel()
    weights = (half[:, None] * shares).ravel()
    widths = np.maximum(np.repeat(ceilings, count) - known[:, None], 0.0)
    z = (scaled(nodes) - mean[:, None]) / deviation[:, None]
    gained = (np.interp(z, _Z, _PROBABILITY) * widths) @ weights
    return np.asarray(gained / span.prod())
