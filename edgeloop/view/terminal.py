"""A scatter plot in plain characters, as wide as the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgeloop.models.columns import is_estimate
from edgeloop.view.front import Pareto
from edgeloop.view.measures import LATENCY
from edgeloop.view.style import AxisRange, ChartAxes, chart_axes

HEIGHT = 16
_LEAST_WIDTH, _MOST_WIDTH = 30, 160


@dataclass(frozen=True)
class Marks:
    front: str
    front_estimate: str
    other: str
    across: str
    up: str
    corner: str


UNICODE = Marks("●", "○", "·", "─", "│", "└")
ASCII = Marks("*", "o", ".", "-", "|", "+")


def plot(found: Pareto, width: int, height: int = HEIGHT, marks: Marks = UNICODE) -> str:
    """The first two objectives; empty if there is nothing to show. Where several rows share a
    character, the front wins."""
    if not found.rows:
        return ""
    axes = chart_axes(found)
    x, y = axes.measures[:2]
    across, up = axes.ranges
    xs, ys = ((factor * found.values[:, n]).tolist() for n, factor in enumerate(axes.factors[:2]))
    left, right = _ends(xs, across)
    low, high = _ends(ys, up)
    edge = max(len(y.text(value)) for value in (low, high))
    columns = min(max(width, _LEAST_WIDTH), _MOST_WIDTH) - edge - 2
    grid = [[" "] * columns for _ in range(height)]
    for index in sorted(range(len(xs)), key=lambda index: found.is_front[index]):
        if not (across.shows(xs[index]) and up.shows(ys[index])):
            continue
        column = _cell(xs[index], left, right, columns, across.is_log)
        line = height - 1 - _cell(ys[index], low, high, height, up.is_log)
        grid[line][column] = marks.other
        if found.is_front[index]:
            is_estimated = _estimated(found, index)
            grid[line][column] = marks.front_estimate if is_estimated else marks.front
    lines = [f"{y.text(high):>{edge}} {marks.up}{''.join(grid[0])}"]
    lines += [f"{'':>{edge}} {marks.up}{''.join(line)}" for line in grid[1:-1]]
    lines += [f"{y.text(low):>{edge}} {marks.up}{''.join(grid[-1])}"]
    lines += [f"{'':>{edge}} {marks.corner}{marks.across * columns}"]
    name = f"{x.heading}, logarithmic" if across.is_log else x.heading
    lines += [" " * (edge + 2) + _between(x.text(left), name, x.text(right), columns)]
    title = f"{y.heading}, logarithmic" if up.is_log else y.heading
    return "\n".join([title, *(line.rstrip() for line in lines), _legend(found, axes, marks)])


def _estimated(found: Pareto, index: int) -> bool:
    has_latency = any(item.column == LATENCY for item in found.objectives)
    return has_latency and is_estimate(found.rows[index])


def _legend(found: Pareto, axes: ChartAxes, marks: Marks) -> str:
    kinds = {_estimated(found, i) for i, kept in enumerate(found.is_front) if kept}
    parts = [f"{marks.front} front"] if False in kinds else []
    parts += [f"{marks.front_estimate} front, latency estimated"] if True in kinds else []
    parts += [f"{marks.other} others"] if len(found.front) < len(found.rows) else []
    parts += [f"{axes.outside} outside the axes"] if axes.outside else []
    return "   ".join(parts)


def _ends(values: Sequence[float], shown: AxisRange) -> tuple[float, float]:
    """Of the values that are shown: a character needs no room beyond them."""
    inside = [value for value in values if shown.shows(value)]
    return min(inside), max(inside)


def _cell(value: float, low: float, high: float, count: int, is_log: bool = False) -> int:
    if high <= low:
        return count // 2
    if is_log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    share = (value / 2 - low / 2) / (high / 2 - low / 2)  # so that the span is finite
    return min(int(share * count), count - 1)


def _between(left: str, middle: str, right: str, width: int) -> str:
    """Three texts under an axis; the title is left out if they do not fit."""
    room = width - len(left) - len(right)
    if left == right:
        return f"{left} {middle}".center(width).rstrip()
    return left + (middle.center(room) if len(middle) + 2 <= room else " " * max(room, 1)) + right
