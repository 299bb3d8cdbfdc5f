"""Objectives of any unit on one footing, so that one prior fits seconds, errors and MACs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
