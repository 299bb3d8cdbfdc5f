"""The surrogate: a Gaussian process over the members of a space, encoded as vectors.

In the encoding, a category that differs and a parameter that only one of two members has are at
squared distance 1; numbers are at the square of their distance on their (logarithmic) range; a
choice among numbers is half of each. The columns of a parameter form a group with one weight.

The kernel is linear in every parameter (what each costs by itself) plus a product over all of them
(how they act together), with one weight per parameter. Weights, variances and noise maximise the
posterior probability: the priors keep twenty results from inventing a law. Fitting a few hundred
results takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import Floats
from edgeloop.search.base import Observation
from edgeloop.search.sampler.trial import Choice, Distribution, Number, Value, key_of

Groups = NDArray[np.intp]
Singles = NDArray[Any]  # single precision for predictions, double for what they follow from

_LEAST_ALIKE = 3  # parameters with the same choices that have totals
_UNIT = 0.5**0.5  # two different one-hot vectors of this length are at squared distance 1


@dataclass(frozen=True)
class SpaceEncoding:
    """Turns the parameters of a space into columns."""

    distributions: Mapping[str, Distribution]
    has_totals: bool = False

    @classmethod
    def of(
        cls, asked: Iterable[Mapping[str, Distribution]], *, totals: bool = False
    ) -> SpaceEncoding:
        """All parameters that any member has, each with its widest range.

        With `totals`, there are columns for what many parameters have in common: how often they
        have each of their choices, or their sum. How many layers are convolutions says more about
        a model than any one of them.
        """
        merged: dict[str, Distribution] = {}
        for distributions in asked:
            for name, distribution in distributions.items():
                known = merged.get(name)
                if known is None:
                    merged[name] = distribution
                elif known != distribution:
                    merged[name] = _widened(known, distribution)
        return cls(merged, totals)

    @cached_property
    def names(self) -> list[str]:
        return [*sorted(self.distributions), *(name for name, _, _ in self._totals)]

    @cached_property
    def groups(self) -> Groups:
        """For each column, the index of its parameter in `names`."""
        widths = [_width(self.distributions[name]) for name in sorted(self.distributions)]
        return np.repeat(np.arange(len(self.names)), [*widths, *(1 for _ in self._totals)])

    def encode(self, members: Sequence[Mapping[str, Value]]) -> Floats:
        names = sorted(self.distributions)
        columns = [_columns(name, self.distributions[name], members) for name in names]
        encoded = np.hstack(columns) if columns else np.zeros((len(members), 0))
        if not self._totals:
            return encoded
        sums = np.stack([weights for _, weights, _ in self._totals], axis=1)
        means = np.array([mean for _, _, mean in self._totals])
        return np.hstack([encoded, encoded @ sums - means])

    @cached_property
    def _totals(self) -> list[tuple[str, Floats, float]]:
        """Names, the weights of all columns, and the mean of each total in random members."""
        if not self.has_totals:
            return []
        alike: dict[Distribution, list[int]] = {}
        width = 0
        for name in sorted(self.distributions):
            alike.setdefault(self.distributions[name], []).append(width)
            width += _width(self.distributions[name])
        found: list[tuple[str, Floats, float]] = []
        for distribution, places in alike.items():
            if len(places) < _LEAST_ALIKE or distribution.size < 2:
                continue
            for what, entries in _total_entries(distribution):
                weights = np.zeros(width)
                for offset, weight in entries.items():
                    weights[np.array(places) + offset] = weight
                share = 0.5 if distribution.ordered else 1 / distribution.size
                variance = 1 / 12 if distribution.ordered else share * (1 - share)
                unit = 2 * (len(places) * variance) ** 0.5  # as far apart as two numbers
                name = f"total {what} of {len(found)}"
                found.append((name, weights / unit, share * len(places) / unit))
        return found


def _total_entries(distribution: Distribution) -> list[tuple[str, dict[int, float]]]:
    """Which columns of a parameter add up to what: its place, or each of its choices."""
    if isinstance(distribution, Number):  # absent: ½ in the place, 1 in the column before it
        return [("place", {0: -0.5, 1: 1.0})]
    if distribution.ordered:
        return [("place", {distribution.size + 1: 1 / _UNIT, distribution.size: -1.0})]
    return [(str(choice), {i: 1 / _UNIT}) for i, choice in enumerate(distribution.choices)]


def _columns(
    name: str, distribution: Distribution, members: Sequence[Mapping[str, Value]]
) -> Floats:
    """A value is encoded once: a parameter has few values, and a pool has many members."""
    absent = _row(distribution, None, here=False)
    made: dict[tuple[type, Value], list[float]] = {}
    rows = []
    for member in members:
        if name not in member:
            rows.append(absent)
            continue
        value = member[name]
        code = (type(value), value)
        if code not in made:
            made[code] = _row(distribution, value, here=distribution.contains(value))
        rows.append(made[code])
    return np.array(rows, dtype=np.float64).reshape(len(members), len(absent))


def _width(distribution: Distribution) -> int:
    if isinstance(distribution, Choice):
        return distribution.size + 1 + distribution.ordered
    return 2


def _row(distribution: Distribution, value: Value, *, here: bool) -> list[float]:
    row = [0.0] * _width(distribution)
    place = distribution.fraction(value) if here and distribution.ordered else 0.5
    if isinstance(distribution, Number):
        return [0.0 if here else 1.0, place]
    row[distribution.choices.index(value) if here else distribution.size] = _UNIT
    if distribution.ordered:
        row = [_UNIT * cell for cell in row]
        row[-1] = _UNIT * place
    return row


def _widened(known: Distribution, other: Distribution) -> Distribution:
    """A space may suggest the same parameter with another range in another branch."""
    if isinstance(known, Number) and isinstance(other, Number):
        return replace(known, low=min(known.low, other.low), high=max(known.high, other.high))
    if isinstance(known, Choice) and isinstance(other, Choice):
        added = (choice for choice in other.choices if not known.contains(choice))
        return Choice((*known.choices, *added))
    return known


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
        own = self._product + self._linear * (encoded**2).sum(axis=1)
        explained = across @ self._factor
        variance = own - np.einsum("ij,ij->i", explained, explained)
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
        known = self._kept.get(what)
        if known is None or known[0] != identity:
            known = self._kept[what] = identity, fit()
        return known[1]
