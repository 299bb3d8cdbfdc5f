"""A robust fit of several chips at once: time = (a + b · estimate) · exp(weights · terms).

Chips measure the same networks, so the weights of the terms are shared; a and b are a chip's own.
Relative errors count, so the fit is of logarithms; Huber's loss bounds what an outlier can do; a
ridge penalty keeps the weights of few networks small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HUBER = 0.1  # residuals over 10 % count as outliers
_STEPS, _SMALL = 12, 1e-4
_LOWEST_US, _HIGHEST_US = 0.1, 5000.0  # of a / b
_START_US = 60.0
_PULL = 1e-3  # of a / b to its start, for chips whose networks say nothing about it

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]


@dataclass(frozen=True)
class Observations:
    """One row per chip and network. `terms` has a column per name of the terms."""

    chip: Integers
    raw_us: Floats
    time_us: Floats
    terms: Floats
    weight: Floats  # 0: predicted, but not fitted to

    def pick(self, rows: NDArray[np.bool_]) -> Observations:
        columns = (self.chip, self.raw_us, self.time_us, self.terms, self.weight)
        return Observations(*(column[rows] for column in columns))


SIMPLE = np.inf  # the ridge penalty that leaves no terms


@dataclass(frozen=True)
class Fitted:
    """`a_us` and `b` by chip; `weights` by term."""

    a_us: Floats
    b: Floats
    weights: Floats

    def predict(self, rows: Observations) -> Floats:
        lines = self.a_us[rows.chip] + self.b[rows.chip] * rows.raw_us
        return lines * np.exp(rows.terms @ self.weights)


def fit(rows: Observations, chips: int, penalty: float = SIMPLE) -> Fitted:
    """Gauss and Newton's steps on (log b, log a/b, weights), with Huber's weights."""
    used = rows.pick(rows.weight > 0)
    design, ridge, terms = _design(used, chips, penalty)
    ratio = np.full(chips, _START_US)
    log_b = _medians(np.log(used.time_us / (used.raw_us + _START_US)), used.chip, chips)
    weights = np.zeros(terms)
    logarithm, index = np.log(used.time_us), np.arange(len(used.chip))
    for _ in range(_STEPS):
        shift = used.raw_us + ratio[used.chip]
        corrected = used.terms @ weights if terms else 0.0
        residual = logarithm - log_b[used.chip] - np.log(shift) - corrected
        weight = used.weight * HUBER / np.maximum(np.abs(residual), HUBER)
        design[index, chips + used.chip] = ratio[used.chip] / shift
        known = np.concatenate([np.zeros(chips), np.log(_START_US / ratio), -weights])
        weighted = design * weight[:, None]
        step = np.linalg.solve(
            weighted.T @ design + np.diag(ridge), weighted.T @ residual + ridge * known
        )
        log_b = log_b + step[:chips]
        moved = np.log(ratio) + np.clip(step[chips : 2 * chips], -1.0, 1.0)
        ratio = np.exp(np.clip(moved, *np.log([_LOWEST_US, _HIGHEST_US])))
        weights = weights + step[2 * chips :]
        if np.abs(step).max() < _SMALL:
            break
    b = np.exp(log_b)
    a_us = np.where(ratio > 2 * _LOWEST_US, ratio * b, 0.0)
    return Fitted(a_us, b, weights if terms else np.zeros(rows.terms.shape[1]))


def _design(used: Observations, chips: int, penalty: float) -> tuple[Floats, Floats, int]:
    """The matrix of derivatives (those of a / b are filled in later) and its ridge."""
    index, terms = np.arange(len(used.chip)), used.terms.shape[1]
    intercept = np.zeros((len(index), chips))
    intercept[index, used.chip] = 1.0
    lines = np.hstack([intercept, np.zeros((len(index), chips))])
    ridge = np.concatenate([np.full(chips, 1e-9), np.full(chips, _PULL)])
    if np.isinf(penalty):
        return lines, ridge, 0
    return np.hstack([lines, used.terms]), np.concatenate([ridge, np.full(terms, penalty)]), terms


def _medians(values: Floats, chip: Integers, chips: int) -> Floats:
    return np.array(
        [np.median(values[chip == c]) if (chip == c).any() else 0 for c in range(chips)]
    )


def left_out(rows: Observations, chips: int, families: Sequence[str], penalty: float) -> Floats:
    """The prediction of every row by a fit that never saw its family, on any chip."""
    names = np.array(families)
    predicted = np.empty(len(names))
    for family in sorted(set(families)):
        mask = names == family
        predicted[mask] = fit(rows.pick(~mask), chips, penalty).predict(rows.pick(mask))
    return predicted


def loss(rows: Observations, predicted: Floats) -> float:
    """Huber's, of the logarithms, over the rows that count."""
    size = np.abs(np.log(rows.time_us / predicted))
    each = np.where(size <= HUBER, size**2 / 2, HUBER * (size - HUBER / 2))
    return float((each * rows.weight).sum() / rows.weight.sum())
