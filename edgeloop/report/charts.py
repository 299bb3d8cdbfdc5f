"""The Pareto front as a chart, and its evolution, for notebooks, reports, the portal and files.

A chart has no background of its own: `write_chart` and `spec_of` apply a theme. Like all charts
here, these accept an empty table and then say what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgeloop.models import SCORE_COLUMNS, interval_heading, is_estimate, latency_interval
from edgeloop.report.axes import (
    NAME_SIZE,
    PLACES,
    ChartAxes,
    chart_axes,
    placed_names,
    short_name,
    span_of,
)
from edgeloop.report.front import Pareto, pareto_of
from edgeloop.report.measures import (
    ESTIMATE,
    LATENCY,
    MEASURED,
    ColumnObjective,
    Row,
    kind_of,
    number,
    objective,
    sigma_ms,
)
from edgeloop.report.style import (
    DISC,
    GREY,
    HEIGHT,
    RING,
    VERMILLION,
    WIDTH,
    altair,
    axis,
    by_iteration,
    count_of,
    data,
    empty_chart,
    numbers,
    or_null,
    sized,
)

if TYPE_CHECKING:
    from edgeloop.report.style import Chart


def pareto_chart(
    rows: Iterable[Row],
    objectives: Sequence[ColumnObjective] | None = None,
    *,
    links: Mapping[str, str] | None = None,
    axes: ChartAxes | None = None,
    iterations: Sequence[float] = (),
    title: str = "",
    note: str = "",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    whole: bool = False,
) -> Chart:
    """The first two objectives, coloured by iteration, with the front highlighted and named, ±1σ of
    the latency and 95 % intervals of scores.

    Estimated latencies are hollow; on the front, a pale band shows their interval. Models far from
    all others are outside the axes and counted, unless the `whole` is wanted. `links` are addresses
    by model name. `axes` and `iterations` (all values of the colour scale) make
    several charts comparable. `note` is another line below the title.
    """
    found = pareto_of(rows, objectives or (objective(LATENCY), objective("f1_1k")))
    if not found.rows:
        wanted = " and ".join(item.measure.heading for item in found.objectives)
        return empty_chart(f"No model has {wanted} yet.")
    a = altair()
    x, y = found.objectives[:2]
    axes = axes or chart_axes(found, whole)
    points = _points(found, links or {}, axes)
    base = a.Chart().encode(
        **{
            side: axis(kind, side, axes.measures[place], (shown.low, shown.high), shown.is_log)
            for place, (side, kind, shown) in enumerate(
                zip("xy", (a.X, a.Y), axes.ranges, strict=True)
            )
        }
    )
    faint = a.condition("datum.front", a.value(0.9), a.value(0.3))
    sigmas = base.transform_filter("isValid(datum.sigma)").encode(opacity=faint)
    bars = _around(sigmas.mark_rule(strokeWidth=1.2, clip=True), x, y, "sigma")
    behind = [*_bands(base, x, y, points), *_front_line(base, found), *bars]
    behind += _score_bars(base.encode(opacity=faint), points)
    figures = numbers(x=axes.measures[0].heading, y=axes.measures[1].heading, sigma="±1σ")
    named = base.encode(tooltip=["name:N", *figures, "iteration:Q", "latency:N", "device:N"])
    marks = _marks(named, points, by_iteration(points, iterations), bool(links))
    names = _names(base, points, axes, size)
    chart = a.layer(*behind, *marks, *names, data=data(points))
    lines = [_pareto_subtitle(found, points, axes), *([note] if note else [])]
    return sized(chart, title or "Front", lines, width=size[0], height=size[1])


def front_frames(
    rows: Iterable[Row], objectives: Sequence[ColumnObjective] | None = None
) -> list[Chart]:
    """The evolution of the front: one chart per iteration, with all models up to it, on the same
    axes. Models without an iteration are in every frame; without any iterations, there is one.
    """
    wanted = objectives or (objective(LATENCY), objective("f1_1k"))
    found = pareto_of(rows, wanted)
    if not found.rows:
        return [pareto_chart([], wanted)]
    axes = chart_axes(found, is_moving=True)
    known = [number(row.get("iteration")) for row in found.rows]
    iterations = sorted({value for value in known if not math.isnan(value)})
    frames = []
    for last in iterations or [math.inf]:
        shown = [
            row
            for row, value in zip(found.rows, known, strict=True)
            if math.isnan(value) or value <= last
        ]
        name = f"Front after iteration {last:g}" if math.isfinite(last) else "Front"
        chart = pareto_chart(
            shown,
            wanted,
            axes=axes,
            iterations=iterations,
            title=name,
        )
        frames.append(chart)
    return frames


def _points(found: Pareto, links: Mapping[str, str], axes: ChartAxes) -> list[dict[str, Any]]:
    has_latency = any(item.column == LATENCY for item in found.objectives)
    latency_factor = max(axes.factors)
    points = []
    for index, (row, values) in enumerate(zip(found.rows, found.values.tolist(), strict=True)):
        sigma = latency_factor * sigma_ms(row)
        name = str(row.get("name", ""))
        point: dict[str, Any] = {
            "name": name,
            "x": axes.factors[0] * values[0],
            "y": axes.factors[1] * values[1],
            "iteration": or_null(number(row.get("iteration"))),
            "front": found.is_front[index],
            "latency": kind_of(row) if has_latency else MEASURED,
            "about": _about(found, index, axes),
        }
        if has_latency and sigma > 0:
            point["sigma"] = sigma
        if has_latency and (interval := latency_interval(row)):
            point |= {"low": latency_factor * interval.low_ms}
            point |= {"high": latency_factor * interval.high_ms, "interval": str(interval)}
        for side, item in zip("xy", found.objectives, strict=False):
            if item.column in SCORE_COLUMNS and (span := span_of(row, item)):
                point |= {f"{side}_low": span[0], f"{side}_high": span[1]}
        if row.get("device"):
            point["device"] = str(row["device"])
        if name in links:
            point["link"] = links[name]
        points.append(point)
    return points


def _about(found: Pareto, index: int, axes: ChartAxes) -> str:
    row = found.rows[index]
    parts = []
    shown = zip(axes.measures, axes.factors, found.values[index].tolist(), strict=True)
    for item, (measure, factor, value) in zip(found.objectives, shown, strict=True):
        text = f"{measure.heading} {measure.text(factor * value)}"
        parts.append(f"{text} est" if item.column == LATENCY and is_estimate(row) else text)
    if not math.isnan(number(row.get("iteration"))):
        parts.append(f"iteration {row['iteration']}")
    return f"{row.get('name', '')}: {', '.join(parts)}"


def _bands(
    base: Any, x: ColumnObjective, y: ColumnObjective, points: Sequence[Mapping[str, Any]]
) -> Any:
    """The intervals of estimates, on the front only: bands of all models would hide them."""
    if LATENCY not in (x.column, y.column) or not _has_bands(points):
        return []
    bands = base.transform_filter("datum.front && isValid(datum.low)")
    return _along(bands.mark_rule(strokeWidth=7, opacity=0.13, clip=True), x, "low", "high")


def _has_bands(points: Sequence[Mapping[str, Any]]) -> bool:
    return any("low" in point and point["front"] for point in points)


def _around(rule: Any, x: ColumnObjective, y: ColumnObjective, width: str) -> list[Any]:
    """From the latency minus `width` to the latency plus `width`, if an axis shows the latency."""
    if LATENCY not in (x.column, y.column):
        return []
    along = "x" if x.column == LATENCY else "y"
    low, high = f"{width}_low", f"{width}_high"
    ends = {low: f"datum.{along} - datum.{width}", high: f"datum.{along} + datum.{width}"}
    return _along(rule.transform_calculate(**ends), x, low, high)


def _along(rule: Any, x: ColumnObjective, low: str, high: str) -> list[Any]:
    """A line between two latencies, on the axis that shows them."""
    a = altair()
    if x.column == LATENCY:
        return [rule.encode(x=a.X(f"{low}:Q"), x2=f"{high}:Q")]
    return [rule.encode(y=a.Y(f"{low}:Q"), y2=f"{high}:Q")]


def _score_bars(base: Any, points: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The 95 % intervals of scores, on the axis that shows them."""
    a = altair()
    bars = []
    for side in "xy":
        low, high = f"{side}_low", f"{side}_high"
        if any(low in point for point in points):
            rule = base.transform_filter(f"isValid(datum.{low})")
            rule = rule.mark_rule(strokeWidth=1.2, clip=True)
            ends = {side: (a.X if side == "x" else a.Y)(f"{low}:Q"), f"{side}2": f"{high}:Q"}
            bars.append(rule.encode(**ends))
    return bars


def _names(
    base: Any, points: Sequence[dict[str, Any]], axes: ChartAxes, size: tuple[int, int]
) -> list[Any]:
    """The names of the front's models, where there is room for them."""
    across, up = axes.ranges
    front = [point for point in points if point["front"]]
    pixels = [
        (across.position(p["x"]) * size[0], (1 - up.position(p["y"])) * size[1]) for p in front
    ]
    labels = [short_name(point["name"]) for point in front]
    used = placed_names(pixels, labels, size)
    for index, place in used.items():
        front[index] |= {"label": labels[index], "place": place}
    texts = []
    for place in dict.fromkeys(used.values()):
        align, dx, dy = PLACES[place]
        text = base.transform_filter(f"datum.place == '{place}'").mark_text(
            align=align, dx=dx, dy=dy, baseline="middle", fontSize=NAME_SIZE
        )
        texts.append(text.encode(text="label:N"))
    return texts


def _front_line(base: Any, found: Pareto) -> list[Any]:
    """Steps: nothing on the front lies between two of its models. With more than two objectives the
    front is not a line."""
    if len(found.objectives) > 2:
        return []
    steps = "step-after" if found.objectives[0].goal == "min" else "step-before"
    line = base.transform_filter("datum.front").mark_line(
        interpolate=steps, strokeWidth=1.8, opacity=0.9, color=VERMILLION, clip=True
    )
    return [line.encode(order="x:Q")]


def _marks(base: Any, points: Sequence[Mapping[str, Any]], colour: Any, linked: bool) -> list[Any]:
    a = altair()
    kinds = [kind for kind in (MEASURED, ESTIMATE) if any(p["latency"] == kind for p in points)]
    shapes = {MEASURED: DISC, ESTIMATE: RING}
    labels = {MEASURED: "filled", ESTIMATE: "hollow"}
    legend = None
    if ESTIMATE in kinds:
        parts = " : ".join(f"datum.value == '{k}' ? '{k} ({labels[k]})'" for k in kinds)
        legend = a.Legend(title="latency", labelExpr=f"{parts} : datum.value", symbolFillColor=GREY)
    scale = a.Scale(domain=kinds, range=[shapes[kind] for kind in kinds])
    encoded = base.encode(
        shape=a.Shape("latency:N", scale=scale, legend=legend),
        color=colour,
        description="about:N",
        **({"href": "link:N"} if linked else {}),
    )
    # invalid=None: Vega would leave out models without an iteration, which are grey.
    others = encoded.transform_filter("!datum.front")
    front = encoded.transform_filter("datum.front")
    return [
        others.mark_point(filled=True, size=55, opacity=0.5, clip=True, invalid=None),
        front.mark_point(filled=True, size=150, opacity=1, clip=True, invalid=None),
    ]


def _pareto_subtitle(found: Pareto, points: Sequence[Mapping[str, Any]], axes: ChartAxes) -> str:
    goals = "; ".join(
        f"{measure.heading}: {'less' if item.goal == 'min' else 'more'} is better"
        for item, measure in zip(found.objectives, axes.measures, strict=True)
    )
    bars = "; bars: ±1σ of runs" if any("sigma" in point for point in points) else ""
    if any("y_low" in point or "x_low" in point for point in points):
        bars += f"{',' if bars else '; bars:'} 95 % interval of scores"
    if _has_bands(points):
        bars += f"; pale: {interval_heading(found.front)} of an estimate"
    kept = f"large: the front, {len(found.front)} of {count_of(len(found.rows), 'model')}"
    out = f"; {axes.outside} outside the axes" if axes.outside else ""
    return f"{kept}{out}{bars}; {goals}"
