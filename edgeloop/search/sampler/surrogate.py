"""The surrogate: a Gaussian process over the members of a space, encoded as vectors.

The kernel is linear in every parameter (what each costs by itself) plus a product over all of them
(how they act together), with one weight per parameter. Weights, variances and noise maximise the
posterior probability: the priors keep twenty results from inventing a law. Fitting a few hundred
results takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import Floats, hypervolume_gain, non_dominated
from edgeloop.search.base import Observation, values_of
from edgeloop.search.nets.architecture import Value
from edgeloop.search.sampler.members import Groups, SpaceEncoding, key_of

Singles = NDArray[Any]  # single precision for predictions, double for what they follow from

_STEPS = 30
_RATE = 0.25
_JITTER = 1e-6
_NOISE = 0.05  # expected variance of the noise, of targets that vary by about 1


@dataclass(frozen=True)
class Kernel:
    """Hyperparameters, all as logarithms: one weight per parameter, the variances of the linear and
    the product part, and the noise."""

    weights: Mapping[str, float]
    linear: float = 0.0
    product: float = 0.0
    noise: float = float(np.log(_NOISE))

    def weights_of(self, names: Sequence[str]) -> Floats:
        """A parameter that was unknown when the kernel was fitted has its prior weight."""
        return np.array([self.weights.get(name, _prior_weight(len(names))) for name in names])


def fit_kernel(
    names: Sequence[str],
    encoded: Floats,
    groups: Groups,
    targets: Floats,
    doubt: Floats | float = 0.0,
) -> Kernel:
    """The most probable kernel, by a fixed number of Adam steps from the centre of the prior.

    `doubt` is added to the variance of the noise of each target.
    """
    count = len(names)
    centre = np.append(np.full(count, _prior_weight(count)), [0.0, 0.0, np.log(_NOISE)])
    spread = np.append(np.ones(count), [1.0, 1.0, 1.5])
    parts = np.array([_squares(encoded[:, groups == group]) for group in range(count)])
    parts = parts.reshape(count, len(targets), len(targets))
    linear = encoded @ encoded.T / max(1, count)
    theta, momentum, size = centre, np.zeros(count + 3), np.zeros(count + 3)
    for step in range(1, _STEPS + 1):
        gradient = _gradient(theta, parts, linear, targets, doubt) - (theta - centre) / spread**2
        momentum, size = 0.9 * momentum + 0.1 * gradient, 0.99 * size + 0.01 * gradient**2
        move = (momentum / (1 - 0.9**step)) / (np.sqrt(size / (1 - 0.99**step)) + 1e-9)
        theta = theta + _RATE * (1 - step / (_STEPS + 1)) * move
    weights = dict(zip(names, theta[:count].tolist(), strict=True))
    return Kernel(weights, *theta[count:].tolist())


class Surrogate:
    """A kernel conditioned on results.

    Predictions are in single precision, which is twice as quick and far below any noise.
    """

    def __init__(
        self,
        kernel: Kernel,
        names: Sequence[str],
        groups: Groups,
        encoded: Floats,
        targets: Floats,
        doubt: Floats | float = 0.0,
    ) -> None:
        self._scale = np.exp(kernel.weights_of(names) / 2)[groups]
        self._product = float(np.exp(kernel.product))
        self._linear = float(np.exp(kernel.linear)) / max(1, len(names))
        self.noise_variance = float(np.exp(kernel.noise))
        covariance = self._covariance(encoded, encoded)
        covariance[np.diag_indices_from(covariance)] += self.noise_variance + _JITTER + doubt
        factor = np.linalg.inv(np.linalg.cholesky(covariance))
        self._encoded = encoded.astype(np.float32)
        self._factor = factor.T.astype(np.float32)
        self._weights = (factor.T @ (factor @ targets)).astype(np.float32)

    def predict(self, encoded: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of the true value, without the noise of a measurement."""
        single = encoded.astype(np.float32)
        across = self._covariance(single, self._encoded)
        prior_variance = self._product + self._linear * (encoded**2).sum(axis=1)
        explained = across @ self._factor
        variance = prior_variance - np.einsum("ij,ij->i", explained, explained)
        mean = (across @ self._weights).astype(np.float64)
        return mean, np.maximum(variance, 1e-6 * self._product)

    def _covariance(self, left: Singles, right: Singles) -> Singles:
        scale = self._scale.astype(left.dtype)
        mine, theirs = left * scale, right * scale
        squares = mine @ theirs.T
        squares *= 2
        squares -= (mine**2).sum(axis=1)[:, None]
        squares -= (theirs**2).sum(axis=1)
        np.minimum(squares, 0, out=squares)
        together = np.exp(squares, out=squares)
        together *= left.dtype.type(self._product)
        together += left.dtype.type(self._linear) * (left @ right.T)
        return np.asarray(together)


def _prior_weight(count: int) -> float:
    """Two members that differ in half of their parameters have a correlation of e⁻¹."""
    return float(np.log(2.0 / max(1, count)))


def _gradient(
    theta: Floats, parts: Floats, linear: Floats, targets: Floats, doubt: Floats | float
) -> Floats:
    """Of the log marginal likelihood."""
    count = len(parts)
    weights, (share, product, noise) = np.exp(theta[:count]), np.exp(theta[count:])
    together = product * np.exp(-np.tensordot(weights, parts, 1))
    covariance = share * linear + together
    covariance[np.diag_indices_from(covariance)] += noise + _JITTER + doubt
    inverse = np.linalg.inv(covariance)
    weighted = inverse @ targets
    push = 0.5 * (np.outer(weighted, weighted) - inverse)
    by_weight = -weights * np.tensordot(parts, push * together, 2)
    rest = [(push * linear).sum() * share, (push * together).sum(), np.trace(push) * noise]
    return np.append(by_weight, rest)


def _squares(columns: Floats) -> Floats:
    lengths = (columns**2).sum(axis=1)
    return np.asarray(np.maximum(lengths[:, None] + lengths - 2 * columns @ columns.T, 0.0))


# When kernels are fitted, and to which results, so that most proposals need no fit at all.


_FITTED_TO = 120  # results that a kernel is fitted to; more cost time and change little
_GROWTH = 1.15  # a kernel is fitted again when there are so many times more results


def fitted_results(results: Sequence[Observation], start: int) -> Sequence[Observation]:
    """The first so many results, or a sample of them if they are very many."""
    count = max(2, start)
    while (following := int(count * _GROWTH) + 1) <= len(results):
        count = following
    used = results[:count]
    if len(used) <= _FITTED_TO:
        return used
    rng = np.random.default_rng(len(used))
    chosen = rng.choice(len(used), _FITTED_TO, replace=False)
    return [used[index] for index in sorted(chosen)]


_TELLING = 400  # results that a surrogate is conditioned on; the cost grows with their cube


def telling(results: Sequence[Observation], count: int = _TELLING) -> list[Observation]:
    """Those that say most about what to try next, in their order; of few results, all. Half are the
    best, front by front; the others are drawn from the rest, so that no region is forgotten."""
    if len(results) <= count:
        return list(results)
    eligible = [place for place, result in enumerate(results) if result.eligible]
    values = values_of([results[place] for place in eligible])
    left, chosen = np.array(eligible, dtype=np.intp), np.zeros(0, dtype=np.intp)
    while len(left) and len(chosen) < count // 2:
        is_front = non_dominated(values)
        chosen = np.append(chosen, left[is_front])
        left, values = left[~is_front], values[~is_front]
    chosen = chosen[: count // 2]
    rest = np.setdiff1d(np.arange(len(results)), chosen)
    drawn = np.random.default_rng(len(results)).choice(rest, count - len(chosen), replace=False)
    return [results[place] for place in np.sort(np.append(chosen, drawn))]


class KernelCache:
    """Kernels are fitted again when what they were fitted to is not the same any more."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[object, Sequence[Kernel]]] = {}

    def get(
        self,
        what: str,
        used: Sequence[Observation],
        conditions: object,
        fit: Callable[[], Sequence[Kernel]],
    ) -> Sequence[Kernel]:
        identity = (
            conditions,
            [
                (key_of(result.params), result.values, result.feasible, result.is_partial)
                for result in used
            ],
        )
        cached = self._kept.get(what)
        if cached is None or cached[0] != identity:
            cached = self._kept[what] = identity, fit()
        return cached[1]


# The acquisition function: expected hypervolume improvement times the probability of feasibility.
#
# The expectation is a mean over samples of what a candidate might turn out to be.


_SAMPLES = 32
_SAMPLES_OF_MANY = 16  # directions cost more than the exact improvement of two objectives
_LEAST_FEASIBILITY = 0.02  # the model of feasibility is never quite sure


@dataclass(frozen=True)
class Scale:
    """Puts objectives of any unit on one footing, so that one prior fits seconds, errors and MACs:
    the distance from the median, in units of how far the good results are from it.

    A quantity that varies by factors (MACs, a latency) is taken by its logarithm, so that no
    prediction is below zero. On the bad side every scale becomes logarithmic: how bad a bad result
    is (a model that did not learn) hardly matters and must not drown the rest.
    """

    median: float
    unit: float
    is_log: bool

    @classmethod
    def of(cls, values: Floats) -> Scale:
        is_log = _varies_by_factors(values)
        plain = np.log(values) if is_log else values
        median, good = np.quantile(plain, [0.5, 0.1])
        unit = float(median - good) or float(np.std(plain)) or 1.0
        return cls(float(median), unit, is_log)

    def forward(self, values: Floats) -> Floats:
        plain = np.log(values) if self.is_log else values
        scaled = (plain - self.median) / self.unit
        return np.where(scaled > 1, 1 + np.log(np.maximum(scaled, 1)), scaled)

    def inverse(self, scaled: Floats) -> Floats:
        bent = np.exp(np.minimum(scaled, 20.0) - 1)
        plain = self.median + self.unit * np.where(scaled > 1, bent, scaled)
        return np.asarray(np.exp(np.minimum(plain, 700.0)) if self.is_log else plain)


def _varies_by_factors(values: Floats) -> bool:
    """Whether a normal distribution fits the logarithms better than the values (Box and Cox)."""
    if (values <= 0).any():
        return False
    logarithms = np.log(values)
    spread, factors = float(np.std(values)), float(np.std(logarithms))
    return min(spread, factors) > 0 and np.log(spread) > np.log(factors) + float(logarithms.mean())


@dataclass(frozen=True)
class _Objective:
    scale: Scale
    surrogate: Surrogate

    def sampled(self, encoded: Floats, normals: Floats) -> Floats:
        """What might be measured (candidates, samples): model uncertainty and noise together."""
        mean, variance = self.surrogate.predict(encoded)
        deviation = np.sqrt(variance + self.surrogate.noise_variance)
        return self.scale.inverse(mean[:, None] + deviation[:, None] * normals)


@dataclass(frozen=True)
class Kernels:
    """The kernel of each objective, and that of feasibility."""

    objectives: Sequence[Kernel]
    feasibility: Kernel


class Acquisition:
    """Made for every proposal from all results, at least one of which is eligible."""

    def __init__(
        self,
        encoding: SpaceEncoding,
        kernels: Kernels,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        seed: int,
    ) -> None:
        self._encoding = encoding
        measured = [result for result in history if result.measured]
        learnt = telling(measured)
        seen = encoding.encode([result.params for result in learnt])
        waiting = encoding.encode(pending)
        fitted = [
            self._fitted(kernel, seen, column, waiting)
            for kernel, column in zip(kernels.objectives, values_of(learnt).T, strict=True)
        ]
        self._objectives = [objective for objective, _ in fitted]
        values = values_of(measured)
        samples = _SAMPLES if values.shape[1] <= 2 else _SAMPLES_OF_MANY
        self._normals = spread_normals(values.shape[1], samples, seed)
        eligible = values[[result.eligible for result in measured]]
        expected = np.array([means for _, means in fitted]).T
        front = np.vstack([eligible, expected.reshape(-1, values.shape[1])])
        self._improvement = Improvement(front[non_dominated(front)], eligible.max(axis=0))
        self._feasibility: Surrogate | None = None
        if (eligibility(history) < 0).any():
            tried = telling(history)
            encoded = encoding.encode([result.params for result in tried])
            self._feasibility = self._surrogate(kernels.feasibility, encoded, eligibility(tried))

    def of(self, candidates: Sequence[Mapping[str, Value]]) -> Floats:
        encoded = self._encoding.encode(candidates)
        samples = [
            objective.sampled(encoded, normals)
            for objective, normals in zip(self._objectives, self._normals, strict=True)
        ]
        improvement = self._improvement.of(np.stack(samples, axis=-1))
        if self._feasibility is None:
            return improvement
        mean, _ = self._feasibility.predict(encoded)
        return improvement * np.clip(mean + 0.5, _LEAST_FEASIBILITY, 1.0)

    def _fitted(
        self, kernel: Kernel, seen: Floats, values: Floats, waiting: Floats
    ) -> tuple[_Objective, Floats]:
        """Pending candidates are taken to turn out as predicted, so that others look elsewhere."""
        scale = Scale.of(values)
        targets = scale.forward(values)
        surrogate = self._surrogate(kernel, seen, targets)
        if not len(waiting):
            return _Objective(scale, surrogate), np.empty(0)
        means, _ = surrogate.predict(waiting)
        both = np.vstack([seen, waiting]), np.append(targets, means)
        return _Objective(scale, self._surrogate(kernel, *both)), scale.inverse(means)

    def _surrogate(self, kernel: Kernel, encoded: Floats, targets: Floats) -> Surrogate:
        return Surrogate(kernel, self._encoding.names, self._encoding.groups, encoded, targets)


def scaled_values(results: Sequence[Observation]) -> list[Floats]:
    """One column per objective, of results that are all measured."""
    return [Scale.of(column).forward(column) for column in values_of(results).T]


def eligibility(results: Sequence[Observation]) -> Floats:
    """½ for eligible results and −½ for others: far from all of them, nothing is known. A training
    that was stopped early has not failed."""
    return np.array([0.5 if r.eligible or r.is_partial else -0.5 for r in results])


def spread_normals(objectives: int, count: int, seed: int) -> Floats:
    """Evenly spread normal samples, paired at random between the objectives."""
    spread = [NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)]
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(spread) for _ in range(objectives)])


# How much hypervolume a candidate is expected to add to a front.
#
# With two objectives of which one is known before the training, the expectation is one integral: at
# every level of the unknown objective, the probability to get below it times the width that the
# known one adds there. It is computed as such, so that even an improvement that is very unlikely
# has its place in the ranking. For other fronts the expectation is a mean over samples; with more
# than two objectives the improvement of a sample is estimated by the mean over random directions of
# how far it pushes the front out, to the power of the number of objectives, whose limit is the
# hypervolume.


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
    scale: Scale,
) -> Floats:
    """For two objectives, the first modelled as normal on a scale of its own, the second known.

    `front` and `worst` are plain values, as `known` is. In units of the box from the best to the
    worst value seen.
    """
    rough = _integrated(mean, deviation, known, front, worst, scale, count=1)
    if len(rough) <= 1:
        return rough
    best = np.argsort(-rough, kind="stable")[:_FINALISTS]
    few = mean[best], deviation[best], known[best]
    fine = _integrated(*few, front, worst, scale, count=_NODES)
    gained: Floats = np.minimum(rough, fine.min())
    gained[best] = fine
    return gained


def _integrated(
    mean: Floats,
    deviation: Floats,
    known: Floats,
    front: Floats,
    worst: Floats,
    scale: Scale,
    *,
    count: int,
) -> Floats:
    places, shares = np.polynomial.legendre.leggauss(count)
    best = front.min(axis=0)
    span = np.where(worst > best, worst - best, 1.0)
    order = np.argsort(front[:, 0], kind="stable")
    levels = np.unique(front[order, 0])
    reached = np.array([front[front[:, 0] <= level, 1].min() for level in levels])
    lowest = float(scale.inverse(np.array([(mean - _BELOW * deviation).min()]))[0])
    below = np.linspace(min(lowest, levels[0]), levels[0], _PIECES + 1)
    edges = np.concatenate([below, levels[1:], [max(worst[0], levels[-1])]])
    ceilings = np.minimum(np.concatenate([np.full(_PIECES, worst[1]), reached]), worst[1])
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    nodes = (middle[:, None] + half[:, None] * places).ravel()
    weights = (half[:, None] * shares).ravel()
    widths = np.maximum(np.repeat(ceilings, count) - known[:, None], 0.0)
    z = (scale.forward(nodes) - mean[:, None]) / deviation[:, None]
    gained = (np.interp(z, _Z, _PROBABILITY) * widths) @ weights
    return np.asarray(gained / span.prod())
