"""Gains: what a score gains from one pause to the next, learned from those that went further.

A Gaussian process, linear plus smooth, over columns that the caller has scaled: how far two members
are apart there is how different their gains may be. Its scale follows from the examples and from a
prior that is worth two of them; noise and length are the most probable of a few. So a fit takes a
millisecond, and few examples leave a large variance.

Few examples show less than there is, the more so as they were chosen for being good. Without more
doubt than they justify, eight of them have stopped eighty others after one epoch.

Who is expected to gain more may also miss that by more: the noise grows with the expected gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PRIOR_COUNT = 2.0  # examples that the prior is worth
_FEWEST = 3  # examples; with less, all gain the same
_ENOUGH = 10  # examples; with less, the variance is more than twice of what they show
_MOST = 250  # more cost time and change little
# Variances, relative to that of the process.
_NOISES = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
_LENGTHS = (0.3, 1.0)
_BASE = 0.5  # of the mean gain: noise of who gains nothing
_SMALLEST = 1e-9


@dataclass(frozen=True)
class _GainFit:
    """The most probable process given the examples."""

    length: float
    noise: float  # relative to `scale`
    scale: float  # variance
    mean: float
    inverse: Floats  # of the covariance of the examples, relative to `scale`
    weights: Floats


class GainModel:
    """`columns` and `gains` are those of the examples; `prior` is the variance of a gain of which
    nothing is known."""

    def __init__(self, columns: Floats, gains: Floats, prior: float) -> None:
        step = max(1, -(-len(gains) // _MOST))
        self._columns, gains = columns[::step], gains[::step]
        self._prior = max(prior, _SMALLEST**2)
        self._mean = float(gains.mean()) if len(gains) else 0.0
        self._typical = abs(self._mean)
        self._fit: _GainFit | None = None
        if len(gains) < _FEWEST:
            return
        kernels = {length: self._covariance(self._columns, length) for length in _LENGTHS}
        first = {_LENGTHS[0]: kernels[_LENGTHS[0]]}
        even = self._best(first, gains, np.ones(len(gains)))
        expected = even.mean + kernels[even.length] @ even.weights
        self._fit = self._best(kernels, gains, self._unevenness(expected))

    def mean(self, columns: Floats) -> Floats:
        """What each row is expected to gain."""
        fit = self._fit
        if fit is None:
            return np.full(len(columns), self._mean)
        return np.asarray(fit.mean + self._covariance(columns, fit.length) @ fit.weights)

    def predict(self, columns: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of the gain of each row, noise included."""
        fit = self._fit
        if fit is None:
            return self.mean(columns), np.full(len(columns), 2 * self._prior)
        across = self._covariance(columns, fit.length)
        mean = fit.mean + across @ fit.weights
        own = 1.0 + (columns**2).sum(axis=1)
        explained = ((across @ fit.inverse) * across).sum(axis=1)
        noise = fit.noise * (self._unevenness(mean) ** 2 + 1.0 / len(self._columns))
        doubt = 1.0 + (_ENOUGH / len(self._columns)) ** 2
        return mean, doubt * fit.scale * (np.maximum(own - explained, 0.0) + noise)

    def _best(self, kernels: dict[float, Floats], gains: Floats, unevenness: Floats) -> _GainFit:
        """With the noise of each example in proportion to `unevenness`."""
        certainty = 1.0 / unevenness**2
        mean = float((certainty * gains).sum() / certainty.sum())
        left = (gains - mean) / unevenness
        count = len(gains) + _PRIOR_COUNT
        both = np.outer(unevenness, unevenness)
        fits = []
        for length, kernel in kernels.items():
            values, vectors = np.linalg.eigh(kernel / both)
            values = np.maximum(values, 0.0)
            energy = (vectors.T @ left) ** 2
            total = values + _NOISES[:, None]
            prior = _PRIOR_COUNT * self._prior / (1.0 + _NOISES)
            scales = ((energy / total).sum(axis=1) + prior) / count
            evidence = -0.5 * (count * np.log(scales) + np.log(total).sum(axis=1))
            best = int(evidence.argmax())
            fits.append((evidence[best], length, _NOISES[best], scales[best], values, vectors))
        _, length, noise, scale, values, vectors = max(fits, key=lambda fit: fit[0])
        inverse = (vectors / (values + noise)) @ vectors.T / both
        return _GainFit(length, noise, scale, mean, inverse, inverse @ (gains - mean))

    def _unevenness(self, expected: Floats) -> Floats:
        """1 for who gains as much as the mean."""
        if self._typical < _SMALLEST:
            return np.ones(len(expected))
        grown = (_BASE + np.abs(expected) / self._typical) / (1.0 + _BASE)
        return np.asarray(grown, dtype=np.float64)

    def _covariance(self, columns: Floats, length: float) -> Floats:
        products = columns @ self._columns.T
        squares = (columns**2).sum(axis=1)[:, None] + (self._columns**2).sum(axis=1) - 2 * products
        return np.asarray(np.exp(-length * np.maximum(squares, 0.0)) + products, dtype=np.float64)
