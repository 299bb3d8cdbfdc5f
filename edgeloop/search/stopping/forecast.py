"""Forecasts: the final score of a training that has come to a pause, with its uncertainty.

Learning curves of one space resemble each other, so those that went further tell how much the
others would still gain. From each mark to the next, the gain is a Bayesian linear regression on the
score, the score before it, and the logarithms of the exact values (a large model learns later than
a small one). Its prior is that all gain the same; with few examples it stays there, and the
uncertainty is large. The steps to the end are chained, and their variances add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeloop.search.stopping.rungs import RungMember, Rungs

Floats = NDArray[np.float64]

_PRIOR_COUNT = 2.0  # examples that the prior noise is worth
_PRIOR_SHARE = 0.5  # prior noise, as a share of the spread of the scores
_SMALLEST = 1e-9


@dataclass(frozen=True)
class Forecast:
    """Mean and standard deviation of the final trained objectives, one row per member; NaN for a
    member without any score. One that has come to the end is certain."""

    mean: Floats
    deviation: Floats


def forecast(members: Sequence[RungMember], rungs: Rungs) -> Forecast:
    """Where nobody has come yet, scores are carried on as they are, with the prior noise."""
    width = max((len(score) for m in members for score in m.scores.values()), default=0)
    mean = np.full((len(members), width), np.nan)
    variance = np.zeros((len(members), width))
    exact = _logs(members)
    for column in range(width):
        _chain(members, rungs.marks, column, exact, mean[:, column], variance[:, column])
    return Forecast(mean, np.sqrt(variance))


def _chain(
    members: Sequence[RungMember],
    marks: Sequence[int],
    column: int,
    exact: Floats,
    mean: Floats,
    variance: Floats,
) -> None:
    """Mark by mark: those that were there have their score, the others are carried on."""
    before = np.full(len(members), np.nan)
    for mark in marks:
        score = np.array([m.scores[mark][column] if mark in m.scores else np.nan for m in members])
        is_there = np.isfinite(score)
        known = np.isfinite(mean)
        if known.any():
            gain = _Gain.learned(mean, before, score, exact, known & is_there & (variance == 0.0))
            carried = known & ~is_there
            new, extra, slope = gain.applied(mean, before, exact)
            before = np.where(known, mean, np.nan)
            mean[carried] = new[carried]
            variance[carried] = (slope**2 * variance + extra)[carried]
        mean[is_there], variance[is_there] = score[is_there], 0.0


@dataclass(frozen=True)
class _Gain:
    """What a score gains from one mark to the next."""

    centre: Floats
    scale: Floats
    weights: Floats  # of the standardised inputs; the last one is the constant
    covariance: Floats  # of the weights, in units of the noise
    noise: float  # variance

    @classmethod
    def learned(
        cls, score: Floats, before: Floats, after: Floats, exact: Floats, pairs: NDArray[np.bool_]
    ) -> _Gain:
        """`pairs` says who is an example."""
        inputs = _inputs(score, before, exact)
        known = np.isfinite(score)
        centre = inputs[known].mean(axis=0)
        scale = np.maximum(inputs[known].std(axis=0), _SMALLEST)
        prior = (_PRIOR_SHARE * max(float(np.std(score[known])), _SMALLEST)) ** 2
        design = np.column_stack([(inputs - centre) / scale, np.ones(len(score))])[pairs]
        gained = (after - score)[pairs]
        size = design.shape[1]
        precision = np.eye(size)
        precision[-1, -1] = _SMALLEST  # the constant is whatever it is
        inverse = np.linalg.inv(design.T @ design + precision)
        weights = inverse @ design.T @ gained
        left = gained - design @ weights
        freedom = max(len(gained) - 1.0, 0.0)
        noise = (_PRIOR_COUNT * prior + float(left @ left)) / (_PRIOR_COUNT + freedom)
        if not len(gained):
            inverse[-1, -1] = 0.0
        return cls(centre, scale, weights, inverse, noise)

    def applied(
        self, score: Floats, before: Floats, exact: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """The next score, its variance, and how strongly it depends on the score."""
        inputs = _inputs(score, before, exact)
        design = np.column_stack([(inputs - self.centre) / self.scale, np.ones(len(score))])
        new = score + design @ self.weights
        spread = np.einsum("ij,jk,ik->i", design, self.covariance, design)
        slope = np.full(len(score), max(0.0, 1.0 + self.weights[0] / self.scale[0]))
        return new, self.noise * (1.0 + spread), slope


def _inputs(score: Floats, before: Floats, exact: Floats) -> Floats:
    """The last gain is 0 for those whose score before is not known."""
    last = np.where(np.isfinite(before), score - before, 0.0)
    return np.column_stack([np.nan_to_num(score), np.nan_to_num(last), exact])


def _logs(members: Sequence[RungMember]) -> Floats:
    """Logarithms of the exact values, standardised; those that are the same for all say nothing."""
    columns = []
    for place in range(len(members[0].values) if members else 0):
        found = [member.values[place] for member in members]
        if any(value is None or not np.isfinite(value) for value in found):
            continue
        values = np.array(found, dtype=np.float64)
        column = np.log(values) if (values > 0).all() else values
        if float(np.std(column)) > _SMALLEST:
            columns.append((column - column.mean()) / np.std(column))
    return np.array(columns).T if columns else np.empty((len(members), 0))
