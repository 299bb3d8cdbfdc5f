"""The metrics of a job as curves, from the lines that its script appends to a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from edgeloop.portal.job_shapes import MetricCurve

WIDTH, HEIGHT = 100.0, 30.0  # of a curve, in units of its own
MOST_POINTS = 300
MOST_CURVES = 24
STEPS = ("step", "epoch", "iteration")


def curves_of(content: bytes) -> tuple[MetricCurve, ...]:
    """One for each number that at least two of the lines have, in the order of the file. A line
    that is cut or is no JSON object is left out."""
    lines = [found for line in content.split(b"\n") if (found := _numbers(line))]
    across = next((name for name in STEPS if _increases([x.get(name) for x in lines])), "")
    names = dict.fromkeys(name for line in lines for name in line if name != across)
    curves = []
    for name in names:
        points = [
            (line[across] if across else float(number), line[name])
            for number, line in enumerate(lines, 1)
            if name in line and (not across or across in line)
        ]
        if len(points) > 1:
            curves.append(_curve(name, across or "line", points))
    return tuple(curves[:MOST_CURVES])


def _curve(name: str, across: str, points: Sequence[tuple[float, float]]) -> MetricCurve:
    kept = _thinned(points)
    (first, _), (last, latest) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    across_by = WIDTH / ((last - first) or 1.0)
    up_by = HEIGHT / ((high - low) or 1.0)
    middle = HEIGHT / 2 if high == low else 0.0
    path = " ".join(
        f"{(x - first) * across_by:.2f},{HEIGHT - (y - low) * up_by - middle:.2f}" for x, y in kept
    )
    return MetricCurve(name, across, first, last, low, high, latest, len(points), path)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lowest and the highest of each piece, so that no peak is lost."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = 2 * len(points) / MOST_POINTS
    kept: list[tuple[float, float]] = [points[0]]
    for piece in range(MOST_POINTS // 2):
        part = points[int(piece * size) : int((piece + 1) * size)]
        if part:
            ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
            kept.extend(sorted(ends))
    return [*kept, points[-1]]


def _increases(values: Sequence[float | None]) -> bool:
    known = [value for value in values if value is not None]
    pairs = pairwise(known)
    return len(known) > 1 and len(known) == len(values) and all(a < b for a, b in pairs)


def _numbers(line: bytes) -> Mapping[str, float]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    numbers = {str(name): _number(value) for name, value in found.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) and abs(value) < 1e300 else None
    except OverflowError:
        return None
