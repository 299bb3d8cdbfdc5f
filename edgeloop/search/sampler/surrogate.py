"""What a result will be, and how sure that is: a Gaussian process over the members of a space.

Its kernel is a line in every parameter (what each costs by itself) plus a product over all of them
(how they act together), with a weight a parameter. Weights, shares and noise are those of greatest
posterior probability: the priors keep twenty results from inventing a law. A few hundred results
cost milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Groups = NDArray[np.intp]

_STEPS = 30
_RATE = 0.25
_JITTER = 1e-6
_NOISE = 0.05  # expected variance of the noise, of targets that vary by about 1


@dataclass(frozen=True)
class Shape:
    """The kernel, all as logarithms: a weight a parameter, the shares of its parts, the noise."""

    weights: Mapping[str, float]
    line: float = 0.0
    product: float = 0.0
    noise: float = float(np.log(_NOISE))

    def weights_of(self, names: Sequence[str]) -> Floats:
        """A parameter that was not there when the shape was found weighs what the prior says."""
        return np.array([self.weights.get(name, _prior_weight(len(names))) for name in names])


def fit_shape(names: Sequence[str], features: Floats, groups: Groups, targets: Floats) -> Shape:
    """The most probable shape, by a fixed number of steps uphill (Adam) from the prior's centre."""
    count = len(names)
    centre = np.append(np.full(count, _prior_weight(count)), [0.0, 0.0, np.log(_NOISE)])
    spread = np.append(np.ones(count), [1.0, 1.0, 1.5])
    parts = np.array([_squares(features[:, groups == group]) for group in range(count)])
    parts = parts.reshape(count, len(targets), len(targets))
    line = features @ features.T / max(1, count)
    theta, drift, size = centre, np.zeros(count + 3), np.zeros(count + 3)
    for step in range(1, _STEPS + 1):
        slope = _slope(theta, parts, line, targets) - (theta - centre) / spread**2
        drift, size = 0.9 * drift + 0.1 * slope, 0.99 * size + 0.01 * slope**2
        move = (drift / (1 - 0.9**step)) / (np.sqrt(size / (1 - 0.99**step)) + 1e-9)
        theta = theta + _RATE * (1 - step / (_STEPS + 1)) * move
    weights = dict(zip(names, theta[:count].tolist(), strict=True))
    return Shape(weights, *theta[count:].tolist())


class Surrogate:
    """A shape conditioned on results."""

    def __init__(
        self,
        shape: Shape,
        names: Sequence[str],
        groups: Groups,
        features: Floats,
        targets: Floats,
    ) -> None:
        self._features = features
        self._scale = np.exp(shape.weights_of(names) / 2)[groups]
        self._product = float(np.exp(shape.product))
        self._line = float(np.exp(shape.line)) / max(1, len(names))
        self.noise_variance = float(np.exp(shape.noise))
        covariance = self._kernel(features)
        covariance[np.diag_indices_from(covariance)] += self.noise_variance + _JITTER
        self._inverse = np.linalg.inv(covariance)
        self._answers = self._inverse @ targets

    def predict(self, features: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of the truth, without the noise of a measurement."""
        across = self._kernel(features)
        own = self._product + self._line * (features**2).sum(axis=1)
        variance = own - ((across @ self._inverse) * across).sum(axis=1)
        return across @ self._answers, np.maximum(variance, 1e-12)

    def _kernel(self, features: Floats) -> Floats:
        left, right = features * self._scale, self._features * self._scale
        squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
        together = self._product * np.exp(-np.maximum(squares, 0.0))
        return np.asarray(together + self._line * (features @ self._features.T))


def _prior_weight(count: int) -> float:
    """Two members that differ in half of their parameters are related by e⁻¹."""
    return float(np.log(2.0 / max(1, count)))


def _slope(theta: Floats, parts: Floats, line: Floats, targets: Floats) -> Floats:
    """The gradient of the log marginal likelihood."""
    count = len(parts)
    weights, (share, product, noise) = np.exp(theta[:count]), np.exp(theta[count:])
    together = product * np.exp(-np.tensordot(weights, parts, 1))
    covariance = share * line + together
    covariance[np.diag_indices_from(covariance)] += noise + _JITTER
    inverse = np.linalg.inv(covariance)
    answers = inverse @ targets
    push = 0.5 * (np.outer(answers, answers) - inverse)
    by_weight = -weights * np.tensordot(parts, push * together, 2)
    rest = [(push * line).sum() * share, (push * together).sum(), np.trace(push) * noise]
    return np.append(by_weight, rest)


def _squares(columns: Floats) -> Floats:
    lengths = (columns**2).sum(axis=1)
    return np.asarray(np.maximum(lengths[:, None] + lengths - 2 * columns @ columns.T, 0.0))
