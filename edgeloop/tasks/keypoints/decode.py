"""Outputs of a pose model as points in pixels of its input, each with a score.

    heatmaps     (n, K, h, w) or (n, h, w, K); one channel more is a background
    coordinates  (n, K, 2) or (n, K, 3) with a score, or the same in one row
    SimCC        (n, K, columns) and (n, K, rows), a score for every place of each axis

Of several heatmaps, such as those of a stacked hourglass, the last one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.tasks.base import Output, Tensors
from edgeloop.tasks.keypoints.options import KeypointsOptions
from edgeloop.tasks.metrics import Floats

_LEAST_SIDE = 4
_PIXELS = 4.0  # no normalized coordinate is that far outside
_ROW, _TABLE, _MAPS = 2, 3, 4  # dimensions
_PARTS = (2, 3)  # x, y and perhaps a score
_QUARTER = 0.25  # of a cell, towards the higher neighbour

Kind = Literal["heatmaps", "coordinates", "SimCC"]


@dataclass(frozen=True)
class PointLayout:
    kind: Kind
    points: str  # of SimCC the columns
    rows: str = ""


def recognized_points(
    shapes: Mapping[str, Sequence[int]], points: int, options: KeypointsOptions
) -> PointLayout:
    """Raises BadInput, with what would fit."""
    names = options.outputs
    for name in filter(None, (names.points, names.x, names.y)):
        if name not in shapes:
            have = ", ".join(shapes)
            raise BadInput(
                reason=f"keypoints.json names the output {name!r}, but the model's are {have}"
            )
    wanted = names.points
    plain = {n: _trimmed(s) for n, s in shapes.items() if wanted in ("", n)}
    if names.x and names.y:
        return PointLayout("SimCC", names.x, names.y)
    heatmaps = [name for name, shape in plain.items() if _are_heatmaps(shape, points)]
    if heatmaps:
        return PointLayout("heatmaps", heatmaps[-1])
    coordinates = [name for name, shape in plain.items() if _parts(shape, points)]
    if coordinates:
        return PointLayout("coordinates", coordinates[-1])
    axes = [n for n, s in plain.items() if len(s) == _TABLE and s[1] == points]
    if len(axes) == len(_PARTS):
        first, second = axes
        is_turned = first.lower().endswith("y") and second.lower().endswith("x")
        return PointLayout("SimCC", second, first) if is_turned else PointLayout("SimCC", *axes)
    have = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    raise BadInput(
        reason=f"the model's outputs ({have}) do not fit {points} keypoints, which need heatmaps "
        f"[n, {points}, height, width], coordinates [n, {points}, 2] or both axes apart "
        f"[n, {points}, columns] and [n, {points}, rows]"
    )


def _trimmed(shape: Sequence[int]) -> tuple[int, ...]:
    """Without the sides of length 1 that some exports put between."""
    first, *sides = shape
    while len(sides) > 1 and 1 in sides:
        sides.remove(1)
    return (first, *sides)


def _are_heatmaps(shape: Sequence[int], points: int) -> bool:
    return len(shape) == _MAPS and bool(_channel_axis(shape, points))


def _channel_axis(shape: Sequence[int], points: int) -> int:
    """0: there is none."""
    for axis, sides in ((1, shape[2:]), (3, shape[1:3])):
        if shape[axis] in (points, points + 1) and min(sides) >= _LEAST_SIDE:
            return axis
    return 0


def _parts(shape: Sequence[int], points: int) -> int:
    """How many numbers a point has; 0 if these are no points."""
    sides = tuple(shape[1:])
    for parts in _PARTS:
        if sides in ((points, parts), (points * parts,)):
            return parts
    return 0


class PointDecoder:
    """Keeps what the outputs of a model have shown so far."""

    def __init__(self, points: int, options: KeypointsOptions, height: int, width: int) -> None:
        self._points, self._options = points, options
        self._height, self._width = height, width
        self._layout: PointLayout | None = None
        self._gives_pixels = False

    @property
    def note(self) -> str:
        """How the outputs were understood."""
        if self._layout is None:
            return ""
        text = f"outputs read as {self._layout.kind}"
        if self._layout.kind == "coordinates":
            unit = "pixels" if self._are_pixels else "units of the crop"
            text += f", {self._options.order} in {unit}"
        return f"{text} (keypoints.json can say otherwise)"

    def decode(self, outputs: Tensors) -> Floats:
        """(n, K, 3): x, y and a score."""
        if self._layout is None:
            shapes = {name: array.shape for name, array in outputs.items()}
            self._layout = recognized_points(shapes, self._points, self._options)
        array = outputs[self._layout.points]
        array = array.reshape(_trimmed(array.shape)).astype(np.float64)
        if not np.isfinite(array).all():
            raise BadInput(reason="the model's keypoints hold NaN or infinite values")
        if self._layout.kind == "heatmaps":
            return self._of_heatmaps(array)
        if self._layout.kind == "coordinates":
            return self._of_coordinates(array)
        other = outputs[self._layout.rows]
        return self._of_axes(array, other.reshape(_trimmed(other.shape)).astype(np.float64))

    @property
    def _are_pixels(self) -> bool:
        told = self._options.coordinates
        return self._gives_pixels if told == "auto" else told == "pixels"

    def _of_heatmaps(self, maps: Output) -> Floats:
        if _channel_axis(maps.shape, self._points) == 3:
            maps = maps.transpose(0, 3, 1, 2)
        maps = maps[:, : self._points]
        count, points, high, wide = maps.shape
        best = maps.reshape(count, points, -1).argmax(axis=2)
        rows, columns = np.divmod(best, wide)
        y = rows + _lean(maps, rows, columns, axis=0)
        x = columns + _lean(maps, rows, columns, axis=1)
        score = maps.reshape(count, points, -1).max(axis=2)
        return np.stack([x * self._width / wide, y * self._height / high, score], axis=2)

    def _of_coordinates(self, table: Output) -> Floats:
        parts = _parts(table.shape, self._points)
        points = table.reshape(len(table), self._points, parts)
        places = points[..., :2] if self._options.order == "xy" else points[..., 1::-1]
        self._gives_pixels = self._gives_pixels or bool(np.abs(places).max(initial=0) > _PIXELS)
        if not self._are_pixels:
            places = places * np.array([self._width, self._height])
        score = points[..., 2:] if parts == 3 else np.ones((*points.shape[:2], 1))
        return np.concatenate([places, score], axis=2)

    def _of_axes(self, columns: Output, rows: Output) -> Floats:
        if self._width != self._height:  # sizes tell the axes apart, whatever they are called
            straight = abs(columns.shape[2] / self._width - rows.shape[2] / self._height)
            turned = abs(rows.shape[2] / self._width - columns.shape[2] / self._height)
            if turned < straight:
                columns, rows = rows, columns
        x = columns.argmax(axis=2) * self._width / columns.shape[2]
        y = rows.argmax(axis=2) * self._height / rows.shape[2]
        return np.stack([x, y, np.minimum(columns.max(axis=2), rows.max(axis=2))], axis=2)


def _lean(
    maps: Floats, rows: NDArray[np.intp], columns: NDArray[np.intp], axis: int
) -> NDArray[np.float64]:
    """A quarter towards the higher of the two neighbours along an axis, 0 at the edges."""
    images, points = np.indices(rows.shape)
    place = (rows, columns)[axis]
    last = maps.shape[2 + axis] - 1

    def at(step: int) -> Floats:
        moved = np.clip(place + step, 0, last)
        where = (moved, columns) if axis == 0 else (rows, moved)
        values: Floats = maps[images, points, where[0], where[1]]
        return values

    inner = (place > 0) & (place < last)
    return np.where(inner, _QUARTER * np.sign(at(1) - at(-1)), 0.0)
