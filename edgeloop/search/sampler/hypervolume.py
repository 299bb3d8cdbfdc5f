"""Which points nobody beats, and how much they win: all objectives are minimised.

Exact for any number of objectives: quick for two, and for more as long as the front is small, as
that of one search is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def non_dominated(values: ArrayLike) -> NDArray[np.bool_]:
    """Which rows no other row beats; of equal rows all stay, and a row with a NaN never does."""
    points = _rows(values)
    kept: NDArray[np.bool_] = np.asarray(~np.isnan(points).any(axis=1))
    whole = points[kept]
    kept[kept] = _best_of_two(whole) if points.shape[1] == 2 else _best_of_many(whole)
    return kept


def hypervolume(values: ArrayLike, reference: ArrayLike) -> float:
    """The volume that the points dominate, up to the reference point."""
    points, corner = _rows(values), np.asarray(reference, dtype=np.float64)
    points = points[(points < corner).all(axis=1)]
    return _volume(points[non_dominated(points)], corner) if len(points) else 0.0


def gain_of_two(points: Floats, front: Floats, corner: Floats) -> Floats:
    """How much hypervolume each point (…, 2) would add to a front of two objectives."""
    front = front[(front < corner).all(axis=1)]
    front = front[non_dominated(front)]
    front = np.unique(front, axis=0)
    first = np.concatenate([[-np.inf], front[:, 0], [corner[0]]])
    ceiling = np.concatenate([[corner[1]], front[:, 1]])
    left = np.maximum(points[..., 0, None], first[:-1])
    width = np.maximum(first[1:] - left, 0.0)
    height = np.maximum(ceiling - points[..., 1, None], 0.0)
    return np.asarray((width * height).sum(axis=-1))


def _best_of_two(points: Floats) -> NDArray[np.bool_]:
    """In the order of the first objective, those whose second is below all before them."""
    order = np.lexsort((points[:, 1], points[:, 0]))
    first, second = points[order].T
    starts = np.searchsorted(first, first)  # where the points with the same first begin
    below = np.append(np.inf, np.minimum.accumulate(second))[starts]
    kept = np.empty(len(points), dtype=np.bool_)
    kept[order] = (second < below) & (second == second[starts])
    return kept


def _best_of_many(points: Floats) -> NDArray[np.bool_]:
    kept = np.ones(len(points), dtype=np.bool_)
    front = np.empty((0, points.shape[1]))
    for index in np.lexsort(points.T[::-1]):
        point = points[index]
        if ((front <= point).all(axis=1) & (front < point).any(axis=1)).any():
            kept[index] = False
        else:
            front = np.vstack([front, point])
    return kept


def _volume(front: Floats, corner: Floats) -> float:
    """Slices along the last objective: each slice is a hypervolume of one objective less."""
    if front.shape[1] == 1:
        return float(corner[0] - front[:, 0].min())
    if front.shape[1] == 2:
        return _staircase(front, corner)
    front = front[np.argsort(front[:, -1], kind="stable")]
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


def _rows(values: ArrayLike) -> Floats:
    points = np.asarray(values, dtype=np.float64)
    return points if points.ndim == 2 else points.reshape(len(points), -1)
