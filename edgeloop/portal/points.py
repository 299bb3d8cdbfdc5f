"""Points of the front as its page needs them: within limits, and as the script knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from edgeloop.portal.rendering import Link
from edgeloop.portal.shapes import Axis, ParetoView, Point
from edgeloop.report import LATENCY

LIMITS = ("x_min", "x_max", "y_min", "y_max")
Box = Mapping[str, float | None]


def box_of(asked: Mapping[str, str]) -> Box:
    """The limits in an address; None where there is none, or nonsense."""
    return {name: number(asked.get(name, "")) for name in LIMITS}


def is_inside(point: Point, box: Box) -> bool:
    return _between(point.x, box["x_min"], box["x_max"]) and _between(
        point.y, box["y_min"], box["y_max"]
    )


def told(link: Link, view: ParetoView, point: Point) -> dict[str, Any]:
    """A point as the script of the page knows it; its link is the key to the mark in the chart."""
    lines = [point.name, _value(view.x, point, point.x_text), _value(view.y, point, point.y_text)]
    if point.iteration is not None:
        lines.append(f"iteration {point.iteration}")
    if point.device:
        lines.append(point.device)
    href = link(f"/models/{quote(point.name, safe='')}")
    return {"href": href, "x": point.x, "y": point.y, "lines": lines, "about": ", ".join(lines)}


def number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _value(axis: Axis, point: Point, text: str) -> str:
    if axis.column != LATENCY:
        return f"{axis.title}: {text}"
    spread = f" ± {point.sigma_ms:.2g}" if point.sigma_ms else ""
    return f"{axis.title}: {text}{spread}{' (estimate)' if point.is_estimate else ''}"


def _between(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)
