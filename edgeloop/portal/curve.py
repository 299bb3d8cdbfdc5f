"""A line that climbs: the hypervolume after so many candidates, as coordinates for a template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEFT, RIGHT, TOP, BOTTOM = 64.0, 628.0, 16.0, 224.0
_LINES = 5
_MOST_DOTS = 60


@dataclass(frozen=True)
class Curve:
    """`rows` and `ticks` are places on the axes with their texts, `dots` points with theirs."""

    path: str
    rows: list[tuple[float, str]]
    ticks: list[tuple[float, str]]
    dots: list[tuple[float, float, str]]
    said: str


def curve_of(points: Sequence[tuple[int, float]]) -> Curve | None:
    """None where there is no line yet."""
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    values = [value for _, value in points]
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = max(0.0, low - room) if low >= 0 else low - room, high + room

    def across(count: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (count - first) / max(last - first, 1), 1)

    def up(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)

    steps = [f"M{across(first)},{up(values[0])}"]
    steps += [f"H{across(count)}V{up(value)}" for count, value in points[1:]]
    heights = [low + (high - low) * place / (_LINES - 1) for place in range(_LINES)]
    marks = sorted({first + round((last - first) * place / 4) for place in range(5)})
    few = points if len(points) <= _MOST_DOTS else ()
    return Curve(
        "".join(steps),
        [(up(value), f"{value:.3g}") for value in heights],
        [(across(count), str(count)) for count in marks],
        [(across(c), up(v), f"{v:.4g} after {c} candidates") for c, v in few],
        f"from {values[0]:.4g} to {values[-1]:.4g}",
    )
