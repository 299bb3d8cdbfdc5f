"""Which paused trainings continue: those that may still be on a front, the most probable first.

A paused candidate is judged by its margin: how much worse its forecast final score is than that of
another one that is at least as good in every exact value, in standard deviations of their
difference. So a slow network must be better to survive. Of several rivals the strongest counts, of
several fronts the one on which the candidate does best. It is beaten with a margin above `sure`,
and above a little more later on: the chance that it is stopped by mistake is weighed against the
part of a training that is saved.

The smallest margin continues first. These are the members of the front, which have to be trained
anyway; once they are, the others are compared with results instead of forecasts, and the forecasts
have more to learn from. While there are new candidates to begin, one in `share` is trained beyond
its first pause, because with every new one the others become easier to judge. When none is left to
begin, everyone continues who is not beaten. So no candidate is stopped because others came first,
only because it is beaten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np
from numpy.typing import NDArray

from edgeloop.search.stopping.forecast import Forecast, forecast
from edgeloop.search.stopping.rungs import RungMember, Rungs

Floats = NDArray[np.float64]
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
        known = sorted((m for m in members if m.scores), key=lambda member: member.key)
        if not known:
            return {}
        expected = forecast(known, self.rungs)
        values = _exact(known)
        least = np.full(len(known), np.inf)
        for place, front in enumerate(self._fronts(values.shape[1])):
            is_barred = np.array([place in member.barred for member in known])
            margin = _margins_on(front, values, expected, ~is_barred)
            least = np.minimum(least, np.where(is_barred, np.inf, margin))
        return {member.key: float(margin) for member, margin in zip(known, least, strict=True)}

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
