"""What the charts have in common: axes, colours, titles, data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from edgeloop.report.drawing import altair
from edgeloop.report.measures import Measure
from edgeloop.report.theme import BLUE, EARLY_TO_LATE, GREY

if TYPE_CHECKING:
    import altair as alt

    Chart = alt.Chart | alt.LayerChart | alt.FacetChart

WIDTH, HEIGHT = 620, 380
LINE = 18  # height of a line in charts with one line a model


def empty_chart(sentence: str) -> Chart:
    """A chart that says why there is nothing to see."""
    a = altair()
    chart = a.Chart(data([{"text": sentence}])).mark_text(fontSize=14, opacity=0.8)
    return cast("Chart", chart.encode(text="text:N").properties(width=WIDTH, height=80))


def data(values: Sequence[Mapping[str, Any]]) -> Any:
    """Plain rows: no pandas is needed, and no limit on how many."""
    return altair().InlineData(values=list(values))


def axis(kind: Any, field: str, measure: Measure, domain: tuple[float, float] | None) -> Any:
    a = altair()
    scale = a.Scale(zero=False, nice=True, padding=14)
    if domain:
        scale = a.Scale(domain=list(domain), nice=False, zero=False)
    return kind(f"{field}:Q", title=measure.title, scale=scale)


def by_iteration(points: Iterable[Mapping[str, Any]], known: Iterable[float] = ()) -> Any:
    """By iteration; grey where a model has none, one colour where no model has. `known` are
    iterations that other charts show: the same one has the same colour in all."""
    a = altair()
    found = sorted({p["iteration"] for p in points if p["iteration"] is not None} | set(known))
    if not found:
        return a.value(BLUE)
    scale = a.Scale(range=list(EARLY_TO_LATE), domain=[found[0], max(found[-1], found[0] + 1)])
    ticks = [found[0], found[-1]] if len(found) > 8 else found
    legend = a.Legend(
        title="iteration", values=ticks, format="d", gradientLength=120, gradientOpacity=1
    )
    colour = a.Color("iteration:Q", scale=scale, legend=legend)
    return a.condition("!isValid(datum.iteration)", a.value(GREY), colour)


def numbers(**titles: str) -> list[Any]:
    """What pointing at a mark shows of these fields, each under its title."""
    a = altair()
    return [a.Tooltip(f"{field}:Q", title=title, format=".4g") for field, title in titles.items()]


def padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def sized(
    chart: Any, title: str, subtitle: str, *, width: object = WIDTH, height: object = HEIGHT
) -> Chart:
    return cast(
        "Chart", chart.properties(width=width, height=height, title=titled(title, subtitle))
    )


def titled(title: str, subtitle: str) -> Any:
    return altair().TitleParams(title, subtitle=subtitle)


def lines_high(lines: int) -> int:
    return max(2, lines) * LINE


def or_null(value: float) -> float | None:
    return None if math.isnan(value) else value


def count_of(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"
