"""Early stopping: which candidates go on training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import erfc, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.search.base import barred_devices, value_of
from edgeloop.search.config import TRAINED, Objective, Rungs, SearchConfig

if TYPE_CHECKING:
    from edgeloop.search.study import Candidate, End


# The candidates of a search on their rungs: who continues next, and what the paused ones are
# heading for.


Values = Mapping[str, float]

_LATER = ("farm_f1",)  # needs the trained model: unknown at a pause
# What forecasts may learn from besides the objectives.
_COUNTED = ("params", "macs", "memory_bytes", "ddr_bytes", "chip_latency_ms", "host_latency_ms")


class Ladder:
    """Candidates by the id of their architecture. One that failed or violates a constraint is not
    among them: it cannot beat others."""

    def __init__(
        self, config: SearchConfig, rungs: Rungs, candidates: Iterable[Candidate] = ()
    ) -> None:
        self._config, self.rungs = config, rungs
        self._rule = StoppingRule(rungs, _fronts(config))
        self._members: dict[str, RungMember] = {}
        self._next: dict[bool, str | None] = {}
        for item in candidates:
            if item.state == "running":
                self.record(item, item.rungs)
            else:
                self.end(item, item.rungs, item.state, item.values)

    def record(
        self,
        candidate: Candidate,
        rungs: Mapping[int, Values],
        complete: Values | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """What a candidate has reached: its values at each pause, and at the end."""
        marks = dict(rungs) | ({self.rungs.total: complete} if complete is not None else {})
        member = _member(self._config, candidate, marks, waits)
        if member is not None:
            self._members[candidate.arch.id] = member
            self._next.clear()

    def end(self, candidate: Candidate, rungs: Mapping[int, Values], end: End, at: Values) -> None:
        """`at` are its last values. One that failed or was screened out is forgotten."""
        if end in ("failed", "screened"):
            self._members.pop(candidate.arch.id, None)
            self._next.clear()
        else:
            ended = replace(candidate, state=end)
            self.record(ended, rungs, at if end == "complete" else None)

    def next(self, *, is_last: bool) -> str | None:
        """The paused candidate that continues next; `is_last`: no candidate is left to begin."""
        if is_last not in self._next:
            promotable = self._rule.promotable(list(self._members.values()), is_last)
            self._next[is_last] = promotable[0] if promotable else None
        return self._next[is_last]


def expected_values(
    config: SearchConfig, candidates: Sequence[Candidate]
) -> dict[str, dict[str, float]]:
    """The values that paused and stopped candidates are heading for, by the id of their
    architecture; of the others' none."""
    rungs = config.rungs
    partial = [item for item in candidates if item.rungs and item.state in ("running", "stopped")]
    if rungs is None or not partial:
        return {}
    complete = [item for item in candidates if item.state == "complete"]
    rung_members = [_member(config, item, item.rungs, waits=False) for item in partial]
    for item in complete:
        rung_members.append(
            _member(config, item, {**item.rungs, rungs.total: item.values}, waits=False)
        )
    members = [member for member in rung_members if member is not None]
    means = {m.key: mean for m, mean in zip(members, forecast(members, rungs).mean, strict=True)}
    expected = {}
    for item in partial:
        if item.arch.id in means:
            values = dict(item.rungs[max(item.rungs)])
            for objective, mean in zip(_trained(config), means[item.arch.id], strict=True):
                values[objective.name] = objective.minimised(float(mean))  # undoes itself
            expected[item.arch.id] = values
    return expected


def _member(
    config: SearchConfig, candidate: Candidate, marks: Mapping[int, Values], waits: bool
) -> RungMember | None:
    """None while an exact value is unknown."""
    latest = marks[max(marks)] if marks else {}
    objectives = _compared(config)
    if any(objective.name not in latest for objective in objectives):
        return None
    exact = tuple(None if o.name in TRAINED else o.minimised(latest[o.name]) for o in objectives)
    scores = {
        at: tuple(o.minimised(values[o.name]) for o in _trained(config))
        for at, values in marks.items()
    }
    out = barred_devices(latest, config.constraints)
    barred = tuple(place for place, front in enumerate(config.fronts) if front.name in out)
    names = {objective.name for objective in objectives}
    features = {
        name: value
        for name, value in latest.items()
        if value_of(name) in _COUNTED and name not in names
    }
    return RungMember(
        candidate.arch.id,
        exact,
        scores,
        waits=waits,
        barred=barred,
        params=candidate.params,
        features=features,
        is_stopped=candidate.state == "stopped",
    )


def _compared(config: SearchConfig) -> list[Objective]:
    return [objective for objective in config.objectives if objective.name not in _LATER]


def _trained(config: SearchConfig) -> list[Objective]:
    return [objective for objective in config.objectives if objective.name in TRAINED]


def _fronts(config: SearchConfig) -> tuple[tuple[int, ...], ...]:
    compared = _compared(config)
    return tuple(
        tuple(place for place, one in enumerate(compared) if one in front.objectives)
        for front in config.fronts
    )


# Gains: what a score gains from one pause to the next, learned from those that went further.
#
# A Gaussian process, linear plus smooth, over columns that the caller has scaled: how far two
# members are apart there is how different their gains may be. Its scale follows from the examples
# and from a prior that is worth two of them. Its noise is a fixed share: with a dozen examples, the
# most probable noise is often too large, and then everyone is expected to gain the same. Curves
# that are noisier than that get a larger scale.
#
# Few examples show less than there is, the more so as they were chosen for being good. Without more
# doubt than they justify, eight of them have stopped eighty others after one epoch.


Floats = NDArray[np.float64]

_PRIOR_COUNT = 2.0  # examples that the prior is worth
FEWEST = 3  # examples; with less, all gain the same
_ENOUGH = 20  # examples; with less, the variance is more than twice of what they show
_MOST = 250  # more cost time and change little
_NOISE = 0.05  # variance, relative to that of the process
_CURVATURE = 0.15  # how soon a difference of columns is more than the linear part can tell
_GAIN_SMALLEST = 1e-9


class GainModel:
    """`columns` and `gains` are those of the examples; `prior` is the variance of a gain of which
    nothing is known."""

    def __init__(self, columns: Floats, gains: Floats, prior: float) -> None:
        step = max(1, -(-len(gains) // _MOST))
        self._columns, gains = columns[::step], gains[::step]
        self._prior = max(prior, _GAIN_SMALLEST**2)
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
        prior_variance = 1.0 + (columns**2).sum(axis=1)
        explained = ((across @ self._inverse) * across).sum(axis=1)
        count = len(self._columns)
        doubt = 1.0 + (_ENOUGH / count) ** 2
        noise = _NOISE * (1.0 + 1.0 / count)
        variance = doubt * self._scale * (np.maximum(prior_variance - explained, 0.0) + noise)
        return self._mean + across @ self._weights, variance

    def _covariance(self, columns: Floats) -> Floats:
        """Of each row with each example, relative to the scale."""
        products = columns @ self._columns.T
        squares = (columns**2).sum(axis=1)[:, None] + (self._columns**2).sum(axis=1) - 2 * products
        smooth = np.exp(-_CURVATURE * np.maximum(squares, 0.0))
        return np.asarray(smooth + products, dtype=np.float64)


@dataclass(frozen=True)
class RungMember:
    """A candidate as the rule sees it. All values are minimised.

    `values` has one place per objective: the exact value, or None where only training can tell.
    `scores` has the trained objectives, in their order, at each mark that was reached. A candidate
    that `waits` is paused and may be promoted; any other is being trained or has ended, before its
    time if it `is_stopped`. `barred` are the places of fronts that it may not be on. `params` and
    `features` are what forecasts may learn from besides: what the space was given, and numbers
    that are known without training, such as MACs.
    """

    key: str
    values: tuple[float | None, ...]
    scores: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    waits: bool = False
    barred: tuple[int, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, float] = field(default_factory=dict)
    is_stopped: bool = False

    @property
    def reached(self) -> int:
        return max(self.scores, default=0)


# Which paused trainings continue: those that may still be on a front, the most probable first.
#
# A paused candidate is judged by its margin: how much worse its forecast final score is than that
# of another one that is at least as good in every exact value, in standard deviations of their
# difference. So a slow network must be better to survive. Of several rivals the strongest counts,
# of several fronts the one on which the candidate does best. It is beaten with a margin above
# `sure`, and above a little more later on: the chance that it is stopped by mistake is weighed
# against the part of a training that is saved.
#
# The smallest margin continues first. These are the members of the front, which have to be trained
# anyway; once they are, the others are compared with results instead of forecasts, and the
# forecasts have more to learn from. While there are new candidates to begin, one in `share` is
# trained beyond its first pause, because with every new one the others become easier to judge. When
# none is left to begin, everyone continues who is not beaten. So no candidate is stopped because
# others came first, only because it is beaten.


Mask = NDArray[np.bool_]

SURE = 2.5  # standard deviations by which a forecast must be worse to save a whole training
SHARE = 8

_SMALLEST = 1e-12


@dataclass(frozen=True)
class StoppingRule:
    """`fronts` has the places of the objectives of each front; without any, all are one front."""

    rungs: Rungs
    fronts: tuple[tuple[int, ...], ...] = ()
    sure: float = SURE
    share: int = SHARE

    def promotable(self, members: Sequence[RungMember], is_last: bool = False) -> list[str]:
        """Who continues, most urgent first. `is_last` says that no candidate is left to begin."""
        waiting = [member for member in members if member.waits]
        room = len(waiting) if is_last else self._room(members)
        if not waiting or room < 1:
            return []
        margins = self.margins(members)
        hopeful = [m for m in waiting if not self._is_beaten(margins[m.key], m.reached)]
        hopeful.sort(key=lambda member: (margins[member.key], -member.reached, member.key))
        return [member.key for member in hopeful[:room]]

    def beaten(self, members: Sequence[RungMember]) -> set[str]:
        """Who can no longer be on any front."""
        reached = {member.key: member.reached for member in members}
        margins = self.margins(members)
        return {key for key, margin in margins.items() if self._is_beaten(margin, reached[key])}

    def margins(self, members: Sequence[RungMember]) -> dict[str, float]:
        """By how many deviations each one with a score is beaten; minus infinity for one that has
        no rival."""
        scored = sorted((m for m in members if m.scores), key=lambda member: member.key)
        if not scored:
            return {}
        expected = forecast(scored, self.rungs)
        values = _exact(scored)
        least = np.full(len(scored), np.inf)
        for place, front in enumerate(self._fronts(values.shape[1])):
            is_barred = np.array([place in member.barred for member in scored])
            margin = _margins_on(front, values, expected, ~is_barred)
            least = np.minimum(least, np.where(is_barred, np.inf, margin))
        return {member.key: float(margin) for member, margin in zip(scored, least, strict=True)}

    def _is_beaten(self, margin: float, reached: int) -> bool:
        left = 1.0 - reached / self.rungs.total
        return _chance_above(margin) < left * _chance_above(self.sure)

    def _room(self, members: Sequence[RungMember]) -> int:
        """How many more may continue while there are candidates to begin."""
        begun = [member for member in members if member.scores and not member.is_stopped]
        beyond = [member for member in begun if not member.waits]
        return len(begun) // self.share - len(beyond)

    def _fronts(self, objectives: int) -> list[list[int]]:
        return [list(front) for front in self.fronts] or [list(range(objectives))]


def _chance_above(margin: float) -> float:
    """Of a normal deviation."""
    return 0.5 * erfc(margin / sqrt(2.0))


def _margins_on(front: Sequence[int], values: Floats, expected: Forecast, rivals: Mask) -> Floats:
    """Of every member against the strongest rival: one that is at least as good in every exact
    value. A rival has to be better in every trained one, so the smallest difference counts."""
    trained = np.flatnonzero(np.isnan(values).all(axis=0))
    exact = values[:, [place for place in front if place not in trained]]
    columns = [column for column, place in enumerate(trained) if place in front]
    count = len(values)
    is_rival = np.repeat(rivals[None, :], count, axis=0)  # [i, j]: j is one of i
    for column in exact.T:
        is_rival &= column[None, :] <= column[:, None]
    np.fill_diagonal(is_rival, val=False)
    if not columns:
        return np.full(count, -np.inf)
    margin = np.full((count, count), np.inf)
    for column in columns:
        mean, variance = expected.mean[:, column], expected.deviation[:, column] ** 2
        deviation = np.sqrt(variance[:, None] + variance[None, :]) + _SMALLEST
        margin = np.minimum(margin, (mean[:, None] - mean[None, :]) / deviation)
    margin[~is_rival | np.isnan(margin)] = -np.inf
    return np.asarray(margin.max(axis=1), dtype=np.float64)


def _exact(members: Sequence[RungMember]) -> Floats:
    """NaN where only training can tell."""
    rows = [[np.nan if value is None else value for value in m.values] for m in members]
    return np.array(rows, dtype=np.float64)


# Forecasts: the final score of a training that has come to a pause, with its uncertainty.
#
# Learning curves of one space resemble each other, so those that went further tell how much the
# others would still gain. From each mark to the next, the gain is a model of the score, the
# parameters of the space, and the logarithms of what is known without training: a large model
# learns later than a small one, and similar architectures have similar curves. Trainings
# are promoted by nothing but these, so their gains are representative of the others. The steps to
# the end are chained, and their variances add up.
#
# Gains become small towards the end of a training, and so must the doubt about them: a gain that is
# not known varies as those of the others do, in this step or in the one before.


_PRIOR_SHARE = 0.5  # deviation of a gain without examples, as a share of the spread of the scores
_FORECAST_SMALLEST = 1e-9

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
    """Beyond the last mark that any member reached, scores stay as they are, with prior noise."""
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
        is_there, has_mean = np.isfinite(score), np.isfinite(mean)
        before = mean.copy()
        carried = has_mean & ~is_there
        if carried.any():
            examples = has_mean & is_there & (variance == 0.0)
            spread = max(float(np.std(mean[has_mean])), _FORECAST_SMALLEST)
            columns = self._columns(mean, has_mean)
            gains = (score - mean)[examples]
            prior = (_PRIOR_SHARE * spread) ** 2
            if len(gains) >= FEWEST:
                prior = float(max(gains.var(), self._last[examples].var()))
            model = GainModel(columns[examples], gains, prior)
            gain, extra = model.predict(columns[carried])
            if variance[carried].any():
                little = 0.1 * spread
                more = model.mean(self._columns(mean, has_mean, little)[carried])
                slope = np.clip(1.0 + (more - gain) / little, _FLATTEST, _STEEPEST)
                variance[carried] *= slope**2
            mean[carried] += gain
            variance[carried] += extra
        mean[is_there], variance[is_there] = score[is_there], 0.0
        self._last = np.where(has_mean, mean - before, 0.0)

    def _columns(self, mean: Floats, has_score: Floats, shift: float = 0.0) -> Floats:
        """Scores are scaled by those that are known; `shift` is added to all afterwards."""
        centre = mean[has_score].mean()
        scale = max(float(mean[has_score].std()), _FORECAST_SMALLEST)
        scores = np.where(has_score, mean + shift - centre, 0.0) / scale
        return np.hstack([self._about, np.sqrt(_SCORE) * scores[:, None]])


def _params(members: Sequence[RungMember]) -> Floats:
    """Numbers by their size, other values each by itself; a parameter that is absent is average
    among numbers, and a value of its own among others."""
    columns: list[Floats] = []
    names = sorted({name for member in members for name in member.params})
    count = 0
    for name in names:
        settings = [member.params.get(name) for member in members]
        if all(value is None or type(value) in (int, float) for value in settings):
            made = [_standardised(settings)]
        else:
            texts = [repr(value) for value in settings]
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
    is_known = np.isfinite(plain)
    if not is_known.any():
        return np.zeros(len(plain))
    if (plain[is_known] > 0).all():
        plain = np.log(plain)
    scale = float(plain[is_known].std())
    if scale < _FORECAST_SMALLEST:
        return np.zeros(len(plain))
    return np.where(is_known, (plain - plain[is_known].mean()) / scale, 0.0)
