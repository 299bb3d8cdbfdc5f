"""Which paused trainings continue: asynchronous successive halving by Pareto rank.

While there are new candidates to begin, the best share (one in `factor`) of those that reached a
pause is promoted to the next one, as in ASHA; the best are those of the lowest Pareto rank, with
exact values beside the score at the pause, so that a slow network must be better to survive. With
several fronts, the best rank counts.

Who could no longer be on a front is not promoted, whatever its rank: another one is at least as
good in every exact value and better in the forecast of the final score, by more than the curves are
known to vary. When no candidate is left to begin, everyone else continues. So no candidate is
stopped because others came first, only because it is beaten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import non_dominated
from edgeloop.search.stopping.forecast import Forecast, forecast
from edgeloop.search.stopping.rungs import RungMember, Rungs

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SURE = 3.0  # standard deviations by which a forecast must be worse


@dataclass(frozen=True)
class StoppingRule:
    """`fronts` has the places of the objectives of each front; without any, all are one front."""

    rungs: Rungs
    fronts: tuple[tuple[int, ...], ...] = ()
    sure: float = field(default=SURE)

    def promotable(self, members: Sequence[RungMember], is_last: bool = False) -> list[str]:
        """Who continues, most urgent first: those that came furthest, then by rank. `is_last` says
        that no candidate is left to begin."""
        waiting = [member for member in members if member.waits]
        if not waiting:
            return []
        beaten = self.beaten(members)
        found: list[str] = []
        for pause in reversed(self.rungs.pauses):
            arrived = [member for member in members if pause in member.scores]
            ordered = self._ordered(arrived, pause)
            if not is_last:
                ordered = ordered[: len(arrived) // self.rungs.factor]
            found += [
                member.key
                for member in ordered
                if member.waits and member.reached == pause and member.key not in beaten
            ]
        return found

    def beaten(self, members: Sequence[RungMember]) -> set[str]:
        """Who can no longer be on any front."""
        known = [member for member in members if member.scores]
        if not known:
            return set()
        expected = forecast(known, self.rungs)
        values = _exact(known)
        lost = np.ones(len(known), dtype=np.bool_)
        for place, front in enumerate(self._fronts(values.shape[1])):
            is_barred = np.array([place in member.barred for member in known])
            lost &= is_barred | _beaten_on(front, values, expected, self.sure, ~is_barred)
        return {member.key for member, is_lost in zip(known, lost, strict=True) if is_lost}

    def _ordered(self, arrived: Sequence[RungMember], pause: int) -> list[RungMember]:
        """By rank; within a rank those that are far from others come first."""
        if not arrived:
            return []
        points = _with_scores(arrived, pause)
        fronts = self._fronts(points.shape[1])
        per_front = []
        for place, front in enumerate(fronts):
            is_barred = np.array([place in member.barred for member in arrived])
            own = np.where(is_barred[:, None], np.nan, points[:, front])
            per_front.append(pareto_ranks(own))
        ranks = np.min(per_front, axis=0)
        room = np.max([_room(points[:, front], ranks) for front in fronts], axis=0)
        order = np.lexsort((-room, ranks))
        return [arrived[place] for place in order]

    def _fronts(self, objectives: int) -> list[list[int]]:
        return [list(front) for front in self.fronts] or [list(range(objectives))]


def pareto_ranks(points: Floats) -> NDArray[np.int64]:
    """0 for the front, 1 for the front without it, and so on. NaN ranks last."""
    ranks = np.full(len(points), len(points), dtype=np.int64)
    left = np.flatnonzero(~np.isnan(points).any(axis=1))
    rank = 0
    while len(left):
        is_front = non_dominated(points[left])
        ranks[left[is_front]] = rank
        left, rank = left[~is_front], rank + 1
    return ranks


def _room(points: Floats, ranks: NDArray[np.int64]) -> Floats:
    """The crowding distance within each rank: infinite at the ends of a front."""
    room = np.zeros(len(points))
    for rank in np.unique(ranks):
        members = np.flatnonzero(ranks == rank)
        for column in points[members].T:
            order = np.argsort(column, kind="stable")
            sorted_values = column[order]
            width = sorted_values[-1] - sorted_values[0]
            gaps = np.full(len(order), np.inf)
            if len(order) > 2 and np.isfinite(width) and width > 0:
                gaps[1:-1] = (sorted_values[2:] - sorted_values[:-2]) / width
            room[members[order]] += gaps
    return room


def _beaten_on(
    front: Sequence[int], values: Floats, expected: Forecast, sure: float, rivals: Mask
) -> Mask:
    """Per pair: worse or equal in every exact value, and surely worse in every trained one."""
    trained = np.flatnonzero(np.isnan(values).all(axis=0))
    exact = values[:, [place for place in front if place not in trained]]
    columns = [column for column, place in enumerate(trained) if place in front]
    count = len(values)
    found = np.repeat(rivals[None, :], count, axis=0)  # [i, j]: j beats i
    for column in exact.T:
        found &= column[None, :] <= column[:, None]
    for column in columns:
        mean, variance = expected.mean[:, column], expected.deviation[:, column] ** 2
        margin = sure * np.sqrt(variance[:, None] + variance[None, :])
        found &= mean[:, None] - mean[None, :] > margin
    np.fill_diagonal(found, val=False)
    return np.asarray(found.any(axis=1) & bool(columns))


def _exact(members: Sequence[RungMember]) -> Floats:
    """NaN where only training can tell."""
    rows = [[np.nan if value is None else value for value in m.values] for m in members]
    return np.array(rows, dtype=np.float64)


def _with_scores(members: Sequence[RungMember], pause: int) -> Floats:
    points = _exact(members)
    trained = [place for place, value in enumerate(members[0].values) if value is None]
    points[:, trained] = [member.scores[pause] for member in members]
    return points
