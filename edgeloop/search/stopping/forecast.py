"""Forecasts: the final score of a training that has come to a pause, with its uncertainty.

Learning curves of one space resemble each other, so those that went further tell how much the
others would still gain. From each mark to the next, the gain is a model of the score, the
parameters of the space, and the logarithms of what is known without training: a large model learns
later than a small one, and similar architectures have similar curves. Nobody is chosen for going
further by anything but these, so what they show holds for the others. The steps to the end are
chained, and their variances add up.

Gains become small towards the end of a training, and so must the doubt about them: a gain that is
not known varies as those of the others do, in this step or in the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeloop.search.stopping.gain import FEWEST, Floats, GainModel
from edgeloop.search.stopping.rungs import RungMember, Rungs

_PRIOR_SHARE = 0.5  # deviation of a gain without examples, as a share of the spread of the scores
_SMALLEST = 1e-9

# How much parameters, features and score count in the distance between two members.
_PARAMS, _FEATURES, _SCORE = 0.3, 0.3, 1.0
_STEEPEST = 3.0  # how much a difference of scores may grow in a step
_FLATTEST = 0.2


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
    about = np.hstack([_params(members), _features(members)])
    for column in range(width):
        chain = _CurveChain(about, mean[:, column], variance[:, column])
        for mark in rungs.marks:
            scores = [m.scores[mark][column] if mark in m.scores else np.nan for m in members]
            chain.advance(np.array(scores))
    return Forecast(mean, np.sqrt(variance))


class _CurveChain:
    """Goes from mark to mark: those that were there have their score, the others are carried on.
    Writes into `mean` and `variance`."""

    def __init__(self, about: Floats, mean: Floats, variance: Floats) -> None:
        self._about, self._mean, self._variance = about, mean, variance
        self._last = np.zeros(len(mean))

    def advance(self, score: Floats) -> None:
        mean, variance = self._mean, self._variance
        is_there, known = np.isfinite(score), np.isfinite(mean)
        before = mean.copy()
        carried = known & ~is_there
        if carried.any():
            examples = known & is_there & (variance == 0.0)
            spread = max(float(np.std(mean[known])), _SMALLEST)
            columns = self._columns(mean, known)
            gains = (score - mean)[examples]
            prior = (_PRIOR_SHARE * spread) ** 2
            if len(gains) >= FEWEST:
                prior = float(max(gains.var(), self._last[examples].var()))
            model = GainModel(columns[examples], gains, prior)
            gain, extra = model.predict(columns[carried])
            if variance[carried].any():
                little = 0.1 * spread
                more = model.mean(self._columns(mean, known, little)[carried])
                slope = np.clip(1.0 + (more - gain) / little, _FLATTEST, _STEEPEST)
                variance[carried] *= slope**2
            mean[carried] += gain
            variance[carried] += extra
        mean[is_there], variance[is_there] = score[is_there], 0.0
        self._last = np.where(known, mean - before, 0.0)

    def _columns(self, mean: Floats, known: Floats, shift: float = 0.0) -> Floats:
        """Scores are scaled by those that are known; `shift` is added to all afterwards."""
        centre = mean[known].mean()
        scale = max(float(mean[known].std()), _SMALLEST)
        scores = np.where(known, mean + shift - centre, 0.0) / scale
        return np.hstack([self._about, np.sqrt(_SCORE) * scores[:, None]])


def _params(members: Sequence[RungMember]) -> Floats:
    """Numbers by their size, other values each by itself; a parameter that is absent is average
    among numbers, and a value of its own among others."""
    columns: list[Floats] = []
    names = sorted({name for member in members for name in member.params})
    count = 0
    for name in names:
        found = [member.params.get(name) for member in members]
        if all(value is None or type(value) in (int, float) for value in found):
            made = [_standardised(found)]
        else:
            texts = [repr(value) for value in found]
            made = [np.array([text == one for text in texts], float) for one in sorted(set(texts))]
        made = [column - column.mean() for column in made if np.ptp(column) > 0]
        columns += made
        count += bool(made)
    return _scaled(columns, _PARAMS, count, len(members))


def _features(members: Sequence[RungMember]) -> Floats:
    """Exact objectives and features; those that are the same for all say nothing."""
    columns = [
        _standardised([member.values[place] for member in members])
        for place in range(len(members[0].values) if members else 0)
    ]
    for name in sorted({name for member in members for name in member.features}):
        columns.append(_standardised([member.features.get(name) for member in members]))
    columns = [column for column in columns if np.ptp(column) > 0]
    return _scaled(columns, _FEATURES, len(columns), len(members))


def _scaled(columns: Sequence[Floats], share: float, parts: int, rows: int) -> Floats:
    if not columns:
        return np.empty((rows, 0))
    return np.asarray(np.sqrt(share / parts) * np.array(columns).T)


def _standardised(values: Sequence[float | None]) -> Floats:
    """By logarithms if all are positive; what is unknown is average."""
    plain = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    known = np.isfinite(plain)
    if not known.any():
        return np.zeros(len(plain))
    if (plain[known] > 0).all():
        plain = np.log(plain)
    scale = float(plain[known].std())
    if scale < _SMALLEST:
        return np.zeros(len(plain))
    return np.where(known, (plain - plain[known].mean()) / scale, 0.0)
