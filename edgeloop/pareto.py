"""Non-dominated points and their hypervolume, for search, report and portal. All objectives are
minimised, except in `share`, where every objective has a scale.

Both are exact for any number of points and objectives. Two objectives need one sort. More are
halved along the first objective; whether the lower half dominates a point of the upper half is then
a question with one objective less (Kung, Luccio and Preparata).

Infinity is a number here: +inf is worse than every finite value, equal to itself, and a row that
contains it can still be non-dominated if it is better in another objective. It adds no hypervolume.
NaN is no number: a row that contains it is never part of a front and dominates nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

FIRST_RESULTS = 10  # a reference point follows from so many
_MARGIN = 0.1
_LARGEST = float(np.finfo(np.float64).max)

_FEW = 256  # points among which comparing all with all is quicker than halving
_PAIRS = 100_000


def non_dominated(values: ArrayLike) -> Mask:
    """A mask of the rows that no other row dominates. Equal rows stay together."""
    points = _rows(values)
    complete = np.flatnonzero(~np.isnan(points).any(axis=1))
    kept: Mask = np.zeros(len(points), dtype=np.bool_)
    if not len(complete):
        return kept
    order = complete[np.lexsort(points[complete].T[::-1])]
    ordered = points[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    front: Mask = np.zeros(int(is_first.sum()), dtype=np.bool_)
    front[_front(ordered[is_first])] = True
    kept[order] = front[np.cumsum(is_first) - 1]
    return kept


def hypervolume(values: ArrayLike, reference: ArrayLike) -> float:
    """The volume between the points and a finite reference point. Points that are not below the
    reference in every objective add nothing; one at -inf makes the volume infinite."""
    points, corner = _rows(values), np.asarray(reference, dtype=np.float64)
    if not np.isfinite(corner).all():
        raise ValueError("the reference point of a hypervolume must be finite")
    points = points[(points < corner).all(axis=1)]  # never true of NaN or +inf
    if not len(points):
        return 0.0
    if np.isneginf(points).any():
        return math.inf
    return _volume(points[non_dominated(points)], corner)


@dataclass(frozen=True)
class ObjectiveScale:
    """An objective in a hypervolume: values count from `worst`, its place in the reference point,
    to `best`, its place in the ideal point. For an objective to maximise, `best` is the larger."""

    worst: float
    best: float

    def position(self, values: ArrayLike) -> Floats:
        """0 at the best and beyond it, 1 at the worst; above 1 for what does not count."""
        found = np.asarray(values, dtype=np.float64) / 2  # so that the largest floats have a span
        placed = (found - self.best / 2) / (self.worst / 2 - self.best / 2)
        return np.asarray(np.maximum(placed, 0.0))


def scale_of(
    first: Sequence[float],
    goal: Literal["min", "max"],
    *,
    ideal: float | None = None,
    worst: float | None = None,
    best: float | None = None,
) -> ObjectiveScale:
    """The scale that follows from the first results: their worst value and a tenth of their range
    beyond it. The best is the `ideal` of the objective, such as 0 for a latency and 1 for a score;
    without one, as far beyond the best of the first results as these are apart. What is given as
    `worst` or `best` is taken as it is."""
    sign = 1.0 if goal == "min" else -1.0
    values = [sign * value for value in first]
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = high / 2 - low / 2
    if best is None:
        is_ideal = ideal is not None and (worst is not None or sign * ideal <= low)
        beyond = sign * max(low - 2 * span, -_LARGEST)
        best = beyond if ideal is None or not is_ideal else ideal
        if worst is not None and sign * best >= sign * worst:  # no result so far is better
            best = sign * max(sign * worst - (2 * span or abs(worst) or 1.0), -_LARGEST)
    if worst is None:
        margin = 2 * _MARGIN * span or _MARGIN * abs(high - sign * best) or _MARGIN
        worst = sign * min(max(high, sign * best) + margin, _LARGEST)
    return ObjectiveScale(worst, best)


def share(values: ArrayLike, scales: Sequence[ObjectiveScale]) -> float:
    """The hypervolume of points in their own units, as a share of the box between the reference
    point and the ideal point: 0 if no point is better than the reference in every objective, 1 if
    one is ideal. It never falls when points are added."""
    points = _rows(values)
    if not len(points) or not scales:
        return 0.0
    placed = [scale.position(points[:, place]) for place, scale in enumerate(scales)]
    return hypervolume(np.stack(placed, axis=1), np.ones(len(scales)))


def hypervolume_gain(points: Floats, front: Floats, reference: Floats) -> Floats:
    """The hypervolume that each point (…, 2) would add to a front, for two objectives."""
    front = front[(front < reference).all(axis=1)]
    front = np.unique(front[non_dominated(front)], axis=0)
    first = np.concatenate([[-np.inf], front[:, 0], [reference[0]]])
    ceiling = np.concatenate([[reference[1]], front[:, 1]])
    left = np.maximum(points[..., 0, None], first[:-1])
    width = np.maximum(first[1:] - left, 0.0)
    height = np.maximum(ceiling - points[..., 1, None], 0.0)
    return np.asarray((width * height).sum(axis=-1))


def _front(points: Floats) -> NDArray[np.intp]:
    """Indices of the front of distinct points in lexicographic order."""
    count, objectives = points.shape
    if objectives == 1:
        return np.zeros(1, dtype=np.intp)
    if objectives == 2:
        lowest_before = np.minimum.accumulate(np.append(np.inf, points[:-1, 1]))
        is_front = points[:, 1] < lowest_before
        is_front[0] = True  # even if its second objective is +inf
        return np.flatnonzero(is_front)
    if count <= _FEW:
        return np.flatnonzero(~_any_at_most(points, points, except_itself=True))
    half = count // 2
    low = _front(points[:half])
    high = half + _front(points[half:])
    dominated = _dominated(points[low, 1:], points[high, 1:])
    return np.concatenate([low, high[~dominated]])


def _dominated(others: Floats, points: Floats) -> Mask:
    """Which points have one of the others at most as large in every objective."""
    if not len(others) or not len(points):
        return np.zeros(len(points), dtype=np.bool_)
    if points.shape[1] == 1:
        return np.asarray(points[:, 0] >= others[:, 0].min())
    if points.shape[1] == 2:
        return _dominated_in_two(others, points)
    if len(others) * len(points) <= _PAIRS:
        return _any_at_most(others, points)
    return _dominated_by_halves(others, points)


def _dominated_in_two(others: Floats, points: Floats) -> Mask:
    order = np.argsort(others[:, 0], kind="stable")
    lowest = np.minimum.accumulate(others[order, 1])
    until = np.searchsorted(others[order, 0], points[:, 0], side="right")
    reached = np.append(np.inf, lowest)[until]
    return np.asarray((until > 0) & (reached <= points[:, 1]))


def _dominated_by_halves(others: Floats, points: Floats) -> Mask:
    first = np.concatenate([others[:, 0], points[:, 0]])
    low, high = first.min(), first.max()
    if low == high:
        return _dominated(others[:, 1:], points[:, 1:])
    cut = np.partition(first, len(first) // 2)[len(first) // 2]
    if cut == high:  # at least one value must stay above the cut
        cut = first[first < high].max()
    left, below = others[:, 0] <= cut, points[:, 0] <= cut
    dominated: Mask = np.zeros(len(points), dtype=np.bool_)
    dominated[below] = _dominated(others[left], points[below])
    above = np.flatnonzero(~below)
    dominated[above] = _dominated(others[left, 1:], points[above, 1:])
    open_still = above[~dominated[above]]
    dominated[open_still] = _dominated(others[~left], points[open_still])
    return dominated


def _any_at_most(others: Floats, points: Floats, except_itself: bool = False) -> Mask:
    """Every pair. Points are distinct, so one that is nowhere larger is better."""
    found = np.ones((len(points), len(others)), dtype=np.bool_)
    for objective in range(points.shape[1]):
        found &= others[None, :, objective] <= points[:, None, objective]
    if except_itself:
        np.fill_diagonal(found, val=False)
    return np.asarray(found.any(axis=1))


def _volume(front: Floats, corner: Floats) -> float:
    """With four or more objectives: slices along the last one, each with one objective less."""
    if front.shape[1] == 1:
        return float(corner[0] - front[:, 0].min())
    if front.shape[1] == 2:
        return _staircase(front, corner)
    front = front[np.argsort(front[:, -1], kind="stable")]
    if front.shape[1] == 3:
        return _sweep(front, corner)
    depths = np.diff(np.append(front[:, -1], corner[-1]))
    total = 0.0
    for count, depth in enumerate(depths, start=1):
        if depth > 0:
            slab = front[:count, :-1]
            total += depth * _volume(slab[non_dominated(slab)], corner[:-1])
    return float(total)


def _staircase(front: Floats, corner: Floats) -> float:
    front = front[np.lexsort((front[:, 1], front[:, 0]))]
    ceiling = np.minimum.accumulate(np.append(corner[1], front[:-1, 1]))
    height = np.maximum(ceiling - front[:, 1], 0.0)
    return float(((corner[0] - front[:, 0]) * height).sum())


def _sweep(front: Floats, corner: Floats) -> float:
    """Three objectives: the area of the first two grows while the third rises."""
    right, top, end = corner.tolist()
    xs: list[float] = []  # a staircase: x rises, y falls
    ys: list[float] = []
    area, total, reached = 0.0, 0.0, float(front[0, 2])
    for x, y, z in front.tolist():
        total += area * (z - reached)
        reached = z
        at = bisect_left(xs, x)
        ceiling = ys[at - 1] if at else top
        if ceiling <= y or (at < len(xs) and xs[at] == x and ys[at] <= y):
            continue
        stop, left = at, x
        while stop < len(xs) and ys[stop] >= y:
            area += (xs[stop] - left) * (ceiling - y)
            left, ceiling = xs[stop], ys[stop]
            stop += 1
        area += ((xs[stop] if stop < len(xs) else right) - left) * (ceiling - y)
        xs[at:stop], ys[at:stop] = [x], [y]
    return float(total + area * (end - reached))


def _rows(values: ArrayLike) -> Floats:
    points = np.asarray(values, dtype=np.float64)
    if points.ndim == 2:
        return points
    return points.reshape(len(points), -1) if len(points) else np.empty((0, 1))
