"""Gains: what a score gains from one pause to the next, learned from those that went further.

A Gaussian process, linear plus smooth, over columns that the caller has scaled: how far two members
are apart there is how different their gains may be. Its scale follows from the examples and from a
prior that is worth two of them. Its noise is a fixed share: with a dozen examples, the most
probable noise is often too large, and then everyone is expected to gain the same. Curves that are
noisier than that get a larger scale.

Few examples show less than there is, the more so as they were chosen for being good. Without more
doubt than they justify, eight of them have stopped eighty others after one epoch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PRIOR_COUNT = 2.0  # examples that the prior is worth
FEWEST = 3  # examples; with less, all gain the same
_ENOUGH = 20  # examples; with less, the variance is more than twice of what they show
_MOST = 250  # more cost time and change little
_NOISE = 0.05  # variance, relative to that of the process
_CURVATURE = 0.15  # how soon a difference of columns is more than the linear part can tell
_SMALLEST = 1e-9


class GainModel:
    """`columns` and `gains` are those of the examples; `prior` is the variance of a gain of which
    nothing is known."""

    def __init__(self, columns: Floats, gains: Floats, prior: float) -> None:
        step = max(1, -(-len(gains) // _MOST))
        self._columns, gains = columns[::step], gains[::step]
        self._prior = max(prior, _SMALLEST**2)
        self._mean = float(gains.mean()) if len(gains) else 0.0
        if self._is_fitted:
            noise = _NOISE * np.eye(len(gains))
            self._inverse = np.linalg.inv(self._covariance(self._columns) + noise)
            self._weights = self._inverse @ (gains - self._mean)
            energy = float((gains - self._mean) @ self._weights)
            self._scale = (energy + _PRIOR_COUNT * self._prior) / (len(gains) + _PRIOR_COUNT)

    @property
    def _is_fitted(self) -> bool:
        return len(self._columns) >= FEWEST

    def mean(self, columns: Floats) -> Floats:
        """What each row is expected to gain."""
        if not self._is_fitted:
            return np.full(len(columns), self._mean)
        return np.asarray(self._mean + self._covariance(columns) @ self._weights)

    def predict(self, columns: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of the gain of each row, noise included."""
        if not self._is_fitted:
            return self.mean(columns), np.full(len(columns), 2 * self._prior)
        across = self._covariance(columns)
        own = 1.0 + (columns**2).sum(axis=1)
        explained = ((across @ self._inverse) * across).sum(axis=1)
        count = len(self._columns)
        doubt = 1.0 + (_ENOUGH / count) ** 2
        noise = _NOISE * (1.0 + 1.0 / count)
        variance = doubt * self._scale * (np.maximum(own - explained, 0.0) + noise)
        return self._mean + across @ self._weights, variance

    def _covariance(self, columns: Floats) -> Floats:
        """Of each row with each example, relative to the scale."""
        products = columns @ self._columns.T
        squares = (columns**2).sum(axis=1)[:, None] + (self._columns**2).sum(axis=1) - 2 * products
        smooth = np.exp(-_CURVATURE * np.maximum(squares, 0.0))
        return np.asarray(smooth + products, dtype=np.float64)
