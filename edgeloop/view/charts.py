"""The Pareto front as a chart, and its evolution, for notebooks, reports, the portal and files.

A chart has no background of its own: `write_chart` and `spec_of` apply a theme. Like all charts
here, these accept an empty table and then say what is missing.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from edgeloop.errors import BlobMissing
from edgeloop.models.columns import (
    AGREEMENT_COLUMNS,
    LATENCY,
    SCORE_COLUMNS,
    Column,
    Row,
    interval_cell,
    interval_heading,
    is_estimate,
    is_latency,
    latency_interval,
    number,
    score_meaning,
    search_measure,
    seen_from,
    shared_metric,
    sigma_ms,
)
from edgeloop.models.files import ModelFile
from edgeloop.view.drawing import (
    BLUE,
    DISC,
    EARLY_TO_LATE,
    GREEN,
    GREY,
    HEIGHT,
    NAME_SIZE,
    NARROW,
    OKABE_ITO,
    PLACES,
    RING,
    VERMILLION,
    WIDTH,
    AxisRange,
    ChartAxes,
    altair,
    axis,
    by_iteration,
    chart_axes,
    count_of,
    data,
    drawable,
    empty_chart,
    lines_high,
    numbers,
    or_null,
    padded,
    placed_names,
    short_name,
    sized,
    span_of,
)
from edgeloop.view.front import Pareto, pareto_of
from edgeloop.view.measures import (
    ESTIMATE,
    MEASURED,
    ColumnObjective,
    kind_of,
    measure_of,
    objective,
)
from edgeloop.workspace import Workspace

if TYPE_CHECKING:
    from edgeloop.search.config import Objective
    from edgeloop.search.results import SeenCandidate, SeenFront, SeenSearch
    from edgeloop.view.drawing import Chart


def pareto_chart(
    rows: Iterable[Row],
    objectives: Sequence[ColumnObjective] | None = None,
    *,
    links: Mapping[str, str] | None = None,
    axes: ChartAxes | None = None,
    title: str = "",
    note: str = "",
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> Chart:
    """The first two objectives, coloured by iteration, with the front highlighted and named, ±1σ of
    the latency and 95 % intervals of scores.

    Estimated latencies are hollow; on the front, a pale band shows their interval. Models far from
    all others are outside the axes and counted. `links` are addresses by model name. `axes` that
    several charts share make them comparable. `note` is another line below the title.
    """
    pareto = pareto_of(rows, objectives or (objective(LATENCY), objective("f1_1k")))
    if not pareto.rows:
        headings = " and ".join(item.measure.heading for item in pareto.objectives)
        return empty_chart(f"No model has {headings} yet.")
    a = altair()
    x, y = pareto.objectives[:2]
    axes = axes or chart_axes(pareto)
    points = _points(pareto, links or {}, axes)
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
    behind = [*_bands(base, x, y, points), *_front_line(base, pareto), *bars]
    behind += _score_bars(base.encode(opacity=faint), points)
    figures = numbers(x=axes.measures[0].heading, y=axes.measures[1].heading, sigma="±1σ")
    named = base.encode(tooltip=["name:N", *figures, "iteration:Q", "latency:N", "device:N"])
    marks = _marks(named, points, by_iteration(points, axes.iterations), bool(links))
    names = _names(base, points, axes, size)
    chart = a.layer(*behind, *marks, *names, data=data(points))
    lines = [_pareto_subtitle(pareto, points, axes), *([note] if note else [])]
    return sized(chart, title or "Front", lines, width=size[0], height=size[1])


def front_frames(
    rows: Iterable[Row], objectives: Sequence[ColumnObjective] | None = None
) -> list[Chart]:
    """The evolution of the front: one chart per iteration, with all models up to it, on the same
    axes. Models without an iteration are in every frame; without any iterations, there is one.
    """
    chosen = objectives or (objective(LATENCY), objective("f1_1k"))
    pareto = pareto_of(rows, chosen)
    if not pareto.rows:
        return [pareto_chart([], chosen)]
    of_rows = [number(row.get("iteration")) for row in pareto.rows]
    iterations = sorted({value for value in of_rows if not math.isnan(value)})
    axes = replace(chart_axes(pareto, is_moving=True), iterations=tuple(iterations))
    frames = []
    for last in iterations or [math.inf]:
        shown = [
            row
            for row, value in zip(pareto.rows, of_rows, strict=True)
            if math.isnan(value) or value <= last
        ]
        name = f"Front after iteration {last:g}" if math.isfinite(last) else "Front"
        frames.append(pareto_chart(shown, chosen, axes=axes, title=name))
    return frames


def _points(pareto: Pareto, links: Mapping[str, str], axes: ChartAxes) -> list[dict[str, Any]]:
    has_latency = bool(pareto.latency)
    latency_factor = max(axes.factors)
    points = []
    for index, (row, values) in enumerate(zip(pareto.rows, pareto.values.tolist(), strict=True)):
        seen = seen_from(pareto.latency, row)
        sigma = latency_factor * sigma_ms(seen)
        name = str(row.get("name", ""))
        point: dict[str, Any] = {
            "name": name,
            "x": axes.factors[0] * values[0],
            "y": axes.factors[1] * values[1],
            "iteration": or_null(number(row.get("iteration"))),
            "front": pareto.is_front[index],
            "latency": kind_of(seen) if has_latency else MEASURED,
            "about": _about(pareto, index, axes),
        }
        if has_latency and sigma > 0:
            point["sigma"] = sigma
        if has_latency and (interval := latency_interval(seen)):
            point |= {"low": latency_factor * interval.low_ms}
            point |= {"high": latency_factor * interval.high_ms}
        for side, item in zip("xy", pareto.objectives, strict=False):
            if item.column in SCORE_COLUMNS and (span := span_of(row, item)):
                point |= {f"{side}_low": span[0], f"{side}_high": span[1]}
        if row.get("device"):
            point["device"] = str(row["device"])
        if name in links:
            point["link"] = links[name]
        points.append(point)
    return points


def _about(pareto: Pareto, index: int, axes: ChartAxes) -> str:
    row = pareto.rows[index]
    parts = []
    shown = zip(axes.measures, axes.factors, pareto.values[index].tolist(), strict=True)
    for item, (measure, factor, value) in zip(pareto.objectives, shown, strict=True):
        text = f"{measure.heading} {measure.text(factor * value)}"
        if is_latency(item.column) and is_estimate(seen_from(item.column, row)):
            ends = interval_cell(row, measure)
            text += f" est ({ends.strip('()')})" if ends else " est"
        parts.append(text)
    if not math.isnan(number(row.get("iteration"))):
        parts.append(f"iteration {row['iteration']}")
    return f"{row.get('name', '')}: {', '.join(parts)}"


def _bands(
    base: Any, x: ColumnObjective, y: ColumnObjective, points: Sequence[Mapping[str, Any]]
) -> Any:
    """The intervals of estimates, on the front only: bands of all models would hide them."""
    if not (is_latency(x.column) or is_latency(y.column)) or not _has_bands(points):
        return []
    bands = base.transform_filter("datum.front && isValid(datum.low)")
    return _along(bands.mark_rule(strokeWidth=7, opacity=0.13, clip=True), x, "low", "high")


def _has_bands(points: Sequence[Mapping[str, Any]]) -> bool:
    return any("low" in point and point["front"] for point in points)


def _around(rule: Any, x: ColumnObjective, y: ColumnObjective, width: str) -> list[Any]:
    """From the latency minus `width` to the latency plus `width`, if an axis shows the latency."""
    if not (is_latency(x.column) or is_latency(y.column)):
        return []
    along = "x" if is_latency(x.column) else "y"
    low, high = f"{width}_low", f"{width}_high"
    ends = {low: f"datum.{along} - datum.{width}", high: f"datum.{along} + datum.{width}"}
    return _along(rule.transform_calculate(**ends), x, low, high)


def _along(rule: Any, x: ColumnObjective, low: str, high: str) -> list[Any]:
    """A line between two latencies, on the axis that shows them."""
    a = altair()
    if is_latency(x.column):
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


def _front_line(base: Any, pareto: Pareto) -> list[Any]:
    """Steps: nothing on the front lies between two of its models. With more than two objectives the
    front is not a line."""
    if len(pareto.objectives) > 2:
        return []
    steps = "step-after" if pareto.objectives[0].goal == "min" else "step-before"
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


def _pareto_subtitle(pareto: Pareto, points: Sequence[Mapping[str, Any]], axes: ChartAxes) -> str:
    goals = "; ".join(
        f"{measure.heading}: {'less' if item.goal == 'min' else 'more'} is better"
        for item, measure in zip(pareto.objectives, axes.measures, strict=True)
    )
    bars = "; bars: ±1σ of runs" if any("sigma" in point for point in points) else ""
    if any("y_low" in point or "x_low" in point for point in points):
        bars += f"{',' if bars else '; bars:'} 95 % interval of scores"
    if _has_bands(points):
        bars += f"; pale: {interval_heading(pareto.front)} of an estimate"
    marked = f"large: the front, {len(pareto.front)} of {count_of(len(pareto.rows), 'model')}"
    out = f"; {axes.outside} outside the axes" if axes.outside else ""
    return f"{marked}{out}{bars}; {goals}"


# Charts of a whole table: partial and full training, float and quantized, use of devices.


MOST_LINES = 60


def training_chart(rows: Iterable[Row]) -> Chart:
    """mIoU after partial and after full training: does the first predict the second?"""
    partial, full = measure_of("val_iou"), measure_of("final_val_iou")
    both = [row for row in rows if not math.isnan(partial.of(row) + full.of(row))]
    if not both:
        return empty_chart("No model has been trained both partially and fully yet.")
    a = altair()
    points: list[dict[str, Any]] = [
        {
            "name": str(row.get("name", "")),
            "x": partial.of(row),
            "y": full.of(row),
            "iteration": or_null(number(row.get("iteration"))),
            "about": f"{row.get('name', '')}: {partial.of(row):.4f} partial, "
            f"{full.of(row):.4f} full",
        }
        for row in both
    ]
    low, high = padded([point[axis] for point in points for axis in ("x", "y")])
    base = a.Chart().encode(
        x=axis(a.X, "x", partial, (low, high)), y=axis(a.Y, "y", full, (low, high))
    )
    ends = [{"x": low, "y": low}, {"x": high, "y": high}]
    diagonal = a.Chart(data(ends)).mark_line(strokeDash=[4, 4], strokeWidth=1, color=GREY)
    diagonal = diagonal.encode(x="x:Q", y="y:Q")
    marks = base.mark_point(
        filled=True, size=90, opacity=0.85, shape=DISC, clip=True, invalid=None
    ).encode(
        color=by_iteration(points),
        tooltip=["name:N", *numbers(x="partial", y="full")],
        description="about:N",
    )
    chart = a.layer(diagonal, marks, data=data(points))
    rank = _rank_correlation([p["x"] for p in points], [p["y"] for p in points])
    said = "" if math.isnan(rank) else f", rank correlation {rank:.2f}"
    return sized(
        chart,
        "Partial and full training",
        f"{count_of(len(points), 'model')}{said}; on the dashed line both are equal",
        width=HEIGHT,
    )


def quantization_chart(rows: Iterable[Row]) -> Chart:
    """F1 of the float and of the quantized model, one line per model, the largest loss on top.

    Only pairs on the same test images are compared: 1,000 (`f1_1k_f`, `f1_1k`) or 10,000
    (`f1_onnx`, `f1_10k`), whichever more models have.
    """
    every = list(rows)
    pairs = [("f1_1k_f", "f1_1k", "1,000"), ("f1_onnx", "f1_10k", "10,000")]
    by_images = []
    for one, two, images in pairs:
        both = [(str(r.get("name", "")), number(r.get(one)), number(r.get(two))) for r in every]
        both = [line for line in both if not math.isnan(line[1] + line[2])]
        by_images.append((sorted(both, key=lambda line: (line[2] - line[1], line[0])), images))
    losses, images = max(by_images, key=lambda item: len(item[0]))
    if not losses:
        return empty_chart("No model has F1 of both its float and its quantized form yet.")
    a = altair()
    metric = shared_metric(every)
    column = "f1_1k" if images == "1,000" else "f1_10k"
    images = score_meaning(every).images.get(column, images)
    named = "F1" if metric == "f1" else metric
    shown = losses[:MOST_LINES]
    order = [name for name, _, _ in shown]
    ends = [
        {"name": n, "f1": value, "form": form, "about": f"{n}: {form} {value:.4f}"}
        for n, one, two in shown
        for form, value in (("float", one), ("quantized", two))
    ]
    lines = [{"name": name, "low": two, "high": one} for name, one, two in shown]
    y = a.Y("name:N", sort=order, title=None, axis=a.Axis(grid=True, domain=False, ticks=False))
    rule = a.Chart(data(lines)).mark_rule(strokeWidth=2, opacity=0.5)
    title = f"{named} (at most {images} test images)"
    x = a.X("f1:Q", title=title, scale=a.Scale(zero=False, nice=True))
    marks = a.Chart(data(ends)).mark_point(filled=True, size=90, opacity=1)
    forms, colours, shapes = ["float", "quantized"], [BLUE, VERMILLION], ["circle", "diamond"]
    legend = a.Legend(title=None, orient="top")
    marks = marks.encode(
        x=x,
        y=y,
        color=a.Color("form:N", scale=a.Scale(domain=forms, range=colours), legend=legend),
        shape=a.Shape("form:N", scale=a.Scale(domain=forms, range=shapes), legend=legend),
        tooltip=["name:N", "form:N", a.Tooltip("f1:Q", format=".4f")],
        description="about:N",
    )
    chart = a.layer(rule.encode(x=a.X("low:Q"), x2="high:Q", y=y), marks)
    mean = sum(one - two for _, one, two in losses) / len(losses)
    of = f" (the {len(shown)} that lose most)" if len(shown) < len(losses) else ""
    change = "costs" if mean >= 0 else "gains"
    subtitle = (
        f"{count_of(len(losses), 'model')}{of}; quantizing {change} {abs(mean):.4f} of {named} "
        "on average"
    )
    return sized(chart, "Float and quantized", subtitle, height=lines_high(len(shown)))


def agreement_chart(rows: Iterable[Row]) -> Chart:
    """How well quantized models agree with their float form, the worst on top: SQNR, in dB."""
    measure, top1 = measure_of("sqnr_db"), measure_of("top1_agreement")
    named = [(str(row.get("name", "")), measure.of(row), top1.of(row)) for row in rows]
    compared = sorted(item for item in named if not math.isnan(item[1]))
    if not compared:
        return empty_chart("No model was compared with its float form yet.")
    a = altair()
    shown = sorted(compared, key=lambda item: item[1])[:MOST_LINES]
    points = [
        {"name": n, "db": db, "top1": or_null(share), "about": f"{n}: {db:.1f} dB"}
        for n, db, share in shown
    ]
    y = a.Y(
        "name:N",
        sort=[name for name, _, _ in shown],
        title=None,
        axis=a.Axis(grid=True, domain=False, ticks=False),
    )
    marks = a.Chart(data(points)).mark_point(filled=True, size=90, opacity=1, color=BLUE)
    chart = marks.encode(
        x=a.X("db:Q", title=measure.title, scale=a.Scale(zero=False, nice=True)),
        y=y,
        tooltip=["name:N", *numbers(db="SQNR in dB", top1="top-1 agreement")],
        description="about:N",
    )
    of = f" (the worst {len(shown)})" if len(shown) < len(compared) else ""
    subtitle = (
        f"{count_of(len(compared), 'model')}{of}; the worst output of each, quantized on the device"
    )
    return sized(chart, "Agreement with float", subtitle, height=lines_high(len(shown)))


def f1_chart(
    rows: Iterable[Row],
    column: str = "f1_1k",
    intervals: Mapping[str, tuple[float, float]] | None = None,
) -> Chart:
    """F1 of each model, best on top, with its 95 % interval if known.

    `intervals` are by model name, as `interval_of` reads them from the results of a model.
    """
    measure = measure_of(column)
    named = [(str(row.get("name", "")), measure.of(row)) for row in rows]
    scored = [item for item in named if not math.isnan(item[1])]
    if not scored:
        return empty_chart(f"No model has {measure.heading} yet.")
    a = altair()
    shown = sorted(scored, key=lambda item: (-item[1], item[0]))[:MOST_LINES]
    bounds = intervals or {}
    points = [
        {
            "name": name,
            "f1": value,
            **dict(zip(("low", "high"), bounds.get(name, ()), strict=False)),
            "about": f"{name}: {value:.4f}",
        }
        for name, value in shown
    ]
    order = [name for name, _ in shown]
    y = a.Y("name:N", sort=order, title=None, axis=a.Axis(grid=True, domain=False, ticks=False))
    scale = a.Scale(zero=False, nice=True)
    base = a.Chart(data(points)).encode(
        y=y, tooltip=["name:N", *numbers(f1="f1", low="low", high="high")]
    )
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=3, opacity=0.6)
    bars = bars.encode(x=a.X("low:Q", title=measure.title, scale=scale), x2="high:Q")
    marks = base.mark_point(filled=True, size=35, opacity=1, color=BLUE, shape=DISC)
    marks = marks.encode(x=a.X("f1:Q", title=measure.title, scale=scale), description="about:N")
    with_bar = sum("low" in point for point in points)
    of = f" (the best {len(shown)})" if len(shown) < len(scored) else ""
    said = "; bars: 95 % interval over the test images" if with_bar else ""
    subtitle = f"{count_of(len(scored), 'model')}{of}{said}"
    return sized(a.layer(bars, marks), "F1", subtitle, height=lines_high(len(shown)))


def utilisation_chart(uses: Iterable[Mapping[str, object]]) -> Chart:
    """How busy each device was, by day, from the rows of `edgeloop devices usage --json`:
    `machine`, `device`, `day`, `seconds` and `uses`."""
    rows = [
        {
            "device": _device_label(use),
            "day": str(use.get("day", "")),
            "percent": number(use.get("seconds")) / 864.0,
            "uses": or_null(number(use.get("uses"))),
        }
        for use in uses
        if not math.isnan(number(use.get("seconds")))
    ]
    if not rows:
        return empty_chart("No device has been used yet.")
    a = altair()
    for row in rows:
        row["about"] = f"{row['device']}, {row['day']}: {row['percent']:.1f} % of the day"
    days = sorted({str(row["day"]) for row in rows})
    bars = a.Chart(data(rows)).mark_bar(color=BLUE, height={"band": 0.9})
    chart = bars.encode(
        x=a.X(
            "day:O",
            title="day (UTC)",
            scale=a.Scale(domain=days),
            axis=a.Axis(labelAngle=0, labelOverlap="greedy", labelExpr="slice(datum.value, 5)"),
        ),
        y=a.Y(
            "percent:Q",
            title="% of the day",
            scale=a.Scale(domain=[0, 100]),  # a quiet day looks quiet
            axis=a.Axis(values=[0, 50, 100], titleFontSize=11),
        ),
        row=a.Row(
            "device:N",
            title=None,
            header=a.Header(labelAngle=0, labelAnchor="start", labelOrient="top", labelPadding=4),
        ),
        tooltip=["device:N", "day:O", a.Tooltip("percent:Q", format=".1f"), "uses:Q"],
        description="about:N",
    )
    return sized(chart, "Device use", "time in use, as share of the day", height=80)


def _device_label(use: Mapping[str, object]) -> str:
    device, machine = str(use.get("device", "")), str(use.get("machine", ""))
    return f"{device} on {machine}" if machine else device


def _rank_correlation(one: Sequence[float], two: Sequence[float]) -> float:
    """Spearman's, equal values sharing their mean rank; NaN with fewer than three points."""
    import numpy as np

    if len(one) < 3:
        return math.nan
    ranks = []
    for values in (one, two):
        _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2.0)[where])
    if any(np.ptp(rank) == 0 for rank in ranks):
        return math.nan
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


# One model: what its files add to its row, and charts of its layers, classes and PR curves.


LARGEST_BYTES = 1_000_000
LARGEST_IMAGE_BYTES = 200_000
STAGES = ("f1_10k", "f1_1k", "f1_onnx", "f1_1k_f")  # the first one that exists is shown
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Evidence:
    """Empty if a model has no such file, or one too large to be shown. There is an image of the PR
    curves only if their points are missing, as for models that were tested by old versions."""

    layers: Layers | None = None
    stage: str = ""
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pr_image: bytes = b""
    curves: Mapping[str, Curve] = field(default_factory=dict)


def evidence_of(workspace: Workspace, model: str) -> Evidence:
    """Reads the latest `perf_results`, and results and PR curves of the best test."""
    files = {file.name: file for file in workspace.catalog.files(model)}
    runs = sorted((name for name in files if _run(name) >= 0), key=_run)
    stage = next((s for s in STAGES if f"test_results_{s}.csv" in files), "")
    perf = _text(workspace, files.get(runs[-1])) if runs else ""
    curves = read_curves(_text(workspace, files.get(f"pr_curve_{stage}.csv")))
    png = None if curves else files.get(f"pr_curve_{stage}.png")
    image = read_file(workspace, png, LARGEST_IMAGE_BYTES)
    return Evidence(
        read_layers(perf) if perf else None,
        stage,
        read_scores(_text(workspace, files.get(f"test_results_{stage}.csv"))),
        image if image.startswith(_PNG) else b"",
        curves,
    )


def evidence_charts(evidence: Evidence) -> list[tuple[str, Callable[[], Chart]]]:
    """The charts that a model has data for, each with its title and a function that draws it."""
    charts: list[tuple[str, Callable[[], Chart]]] = []
    layers, stage = evidence.layers, evidence.stage
    if layers and layers.times_us:
        charts.append(("Layer times", lambda: layers_chart(layers)))
    if class_metrics(evidence.scores):
        charts.append(("Classes", lambda: classes_chart(evidence.scores, f"Classes, {stage}")))
    if evidence.curves:
        title = f"Precision and recall, {stage}"
        average = evidence.scores.get("AP") or evidence.scores.get("AP50")
        charts.append((title, lambda: pr_chart(evidence.curves, title, average)))
    return charts


def png_address(content: bytes) -> str:
    """A PNG as a data: address; empty without one."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}" if content else ""


def _run(name: str) -> int:
    match = re.fullmatch(r"perf_results_?(\d*)\.csv", name)
    return int(match[1] or 0) if match else -1


def _text(workspace: Workspace, file: ModelFile | None) -> str:
    return read_file(workspace, file, LARGEST_BYTES).decode(errors="replace")


def read_file(workspace: Workspace, file: ModelFile | None, most: int) -> bytes:
    """Empty if it is too large, or was deleted since it was listed."""
    if file is None or file.size > most:
        return b""
    try:
        return workspace.store.blobs.read(file.key)
    except BlobMissing:
        return b""


MOST_LAYERS = 25
METRICS = ("f1", "iou", "AP")  # the order in which they are shown, before all others
MOST_METRICS = 3
_DASHES = ([1, 0], [6, 3], [2, 3])
Curve = tuple[Sequence[float], Sequence[float]]  # recall, precision


@dataclass(frozen=True)
class Layers:
    """The content of a `perf_results_*.csv`: layer times in µs, and the conditions."""

    times_us: tuple[tuple[str, str, float], ...]  # name, operator, µs
    kind: str
    conditions: Mapping[str, str]


def read_layers(text: str) -> Layers:
    """A file of another tool, with other columns, has no layers for us."""
    rows = _table(text)
    layers = [row for row in rows if row.get("what") == "layer"]
    timed = [(row.get("name") or "", row.get("operator") or "", row) for row in layers]
    return Layers(
        tuple(
            (name, operator, number(row.get("time_us")))
            for name, operator, row in timed
            if not math.isnan(number(row.get("time_us")))
        ),
        ESTIMATE if any(row.get("kind") == ESTIMATE for row in rows) else MEASURED,
        {
            row.get("name") or "": row.get("time_us") or ""
            for row in rows
            if row.get("what") == "condition"
        },
    )


def _table(text: str) -> list[dict[str, str]]:
    """A damaged file is empty: it must not hide everything else about its model."""
    try:
        return list(csv.DictReader(io.StringIO(text, newline=None)))
    except csv.Error:
        return []


def read_scores(text: str) -> dict[str, dict[str, float]]:
    """A `test_results_*.csv`: metric → class → value."""
    rows = _table(text)
    return {
        str(row.get("metric")): {
            name: number(value) for name, value in row.items() if name and name != "metric"
        }
        for row in rows
        if row.get("metric")
    }


def interval_of(scores: Mapping[str, Mapping[str, float]]) -> tuple[float, float] | None:
    """The 95 % interval of F1, or of another task's headline, if the test recorded one."""
    metric = next((name.removesuffix("_low") for name in scores if name.endswith("_low")), "f1")
    bounds = (f"{metric}_low", f"{metric}_high")
    low, high = (scores.get(name, {}).get("overall", math.nan) for name in bounds)
    return None if math.isnan(low + high) else (low, high)


def class_metrics(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The metrics that have a value per class, the most important first; none for depths, nor for
    outputs that were compared with those of the float model."""
    if any(name in scores for name in AGREEMENT_COLUMNS):
        return []
    by_class = [
        metric
        for metric, values in scores.items()
        if any(name != "overall" and not math.isnan(value) for name, value in values.items())
    ]
    ranked = [metric for metric in METRICS if metric in by_class]
    return [*ranked, *(metric for metric in by_class if metric not in ranked)][:MOST_METRICS]


def read_curves(text: str) -> dict[str, Curve]:
    """A `pr_curve_*.csv`: class → recalls and precisions. Lines without both are skipped."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for row in _table(text):
        recall, precision = number(row.get("recall")), number(row.get("precision"))
        if row.get("class") and not math.isnan(recall + precision):
            recalls, precisions = curves.setdefault(str(row["class"]), ([], []))
            recalls.append(recall)
            precisions.append(precision)
    return dict(curves)


def layers_chart(
    layers: Layers | None, most: int = MOST_LAYERS, title: str = "Layer times"
) -> Chart:
    """The slowest layers, slowest first; estimates are hollow bars."""
    if layers is None or not layers.times_us:
        return empty_chart("No layer times for this model.")
    a = altair()
    slowest = sorted(layers.times_us, key=lambda layer: -layer[2])
    total = sum(time for _, _, time in slowest)
    rows = [
        {
            "line": f"{place:04}",
            "layer": drawable(name) or "(no name)",
            "operator": operator,
            "us": time,
        }
        for place, (name, operator, time) in enumerate(slowest[:most])
    ]
    for row in rows:
        row["about"] = f"{row['layer']} {row['operator']}: {row['us']:.4g} µs".replace("  ", " ")
    is_hollow = layers.kind == ESTIMATE
    bars = a.Chart(data(rows)).mark_bar(
        fill=BLUE, fillOpacity=0.12 if is_hollow else 1, stroke=BLUE, strokeWidth=1.5
    )
    names = {str(row["line"]): row["layer"] for row in rows}
    chart = bars.encode(
        x=a.X("us:Q", title=f"time, {layers.kind} (µs)"),
        # Two layers may have the same name, so the axis is the number of a line.
        y=a.Y(
            "line:N",
            title=None,
            axis=a.Axis(labelExpr=f"({json.dumps(names)})[datum.value]", grid=False),
        ),
        tooltip=["layer:N", "operator:N", a.Tooltip("us:Q", format=".4g")],
        description="about:N",
    )
    how = "hollow: estimated" if is_hollow else "measured"
    of = f"the slowest {len(rows)} of " if len(rows) < len(slowest) else ""
    subtitle = f"{of}{count_of(len(slowest), 'layer')} ({total:,.4g} µs together); {how}"
    return sized(chart, title, subtitle, height=lines_high(len(rows)))


def classes_chart(scores: Mapping[str, Mapping[str, float]], title: str = "Classes") -> Chart:
    """F1, IoU and average precision per class (or what another task has), the weakest on top."""
    metrics = class_metrics(scores)
    rows = [
        {"class": name, "metric": metric, "value": value, "about": f"{name}: {metric} {value:.4f}"}
        for metric in metrics
        for name, value in scores.get(metric, {}).items()
        if name != "overall" and not math.isnan(value)
    ]
    if not rows:
        return empty_chart("No scores per class for this model.")
    a = altair()
    leading = scores[metrics[0]]
    order = sorted({str(row["class"]) for row in rows}, key=lambda name: leading.get(name, 0.0))
    overall = {metric: scores.get(metric, {}).get("overall", math.nan) for metric in metrics}
    said = ", ".join(f"{m} {value:.4f}" for m, value in overall.items() if not math.isnan(value))
    colours, forms = [BLUE, VERMILLION, GREEN], ["circle", "diamond", "triangle-up"]
    scale = a.Scale(domain=metrics, range=colours[: len(metrics)])
    shapes = a.Scale(domain=metrics, range=forms[: len(metrics)])
    legend = a.Legend(title=None, orient="top")
    marks = a.Chart(data(rows)).mark_point(filled=True, size=80, opacity=0.9)
    chart = marks.encode(
        x=a.X("value:Q", title="score", scale=a.Scale(domain=[0, 1])),
        y=a.Y("class:N", sort=order, title=None, axis=a.Axis(grid=True)),
        color=a.Color("metric:N", scale=scale, legend=legend),
        shape=a.Shape("metric:N", scale=shapes, legend=legend),
        tooltip=["class:N", "metric:N", a.Tooltip("value:Q", format=".4f")],
        description="about:N",
    )
    subtitle = f"overall: {said}" if said else ""
    return sized(chart, title, subtitle, height=lines_high(len(order)))


def pr_chart(
    curves: Mapping[str, Curve],
    title: str = "Precision and recall",
    average: Mapping[str, float] | None = None,
) -> Chart:
    """One line per class. `average` is the average precision per class for the legend, for example
    `read_scores(text)["AP"]`."""
    average = average or {}
    labels = {
        name: name if math.isnan(average.get(name, math.nan)) else f"{name}  {average[name]:.3f}"
        for name in curves
    }
    rows = [
        {"class": labels[name], "recall": float(r), "precision": float(p), "at": place}
        for name, (recall, precision) in curves.items()
        for place, (r, p) in enumerate(zip(recall, precision, strict=True))
        if math.isfinite(r) and math.isfinite(p)
    ]
    if not rows:
        return empty_chart("No PR curve: the model outputs classes, not probabilities.")
    a = altair()
    names = list(dict.fromkeys(str(row["class"]) for row in rows))
    colours = [OKABE_ITO[place % len(OKABE_ITO)] for place in range(len(names))]
    dashes = [_DASHES[place // len(OKABE_ITO) % len(_DASHES)] for place in range(len(names))]
    legend = a.Legend(title=None, columns=1 + len(names) // 20, symbolType="stroke", symbolSize=400)
    unit = a.Scale(domain=[0, 1])
    chart = a.Chart(data(rows)).mark_line(strokeWidth=2, clip=True)
    chart = chart.encode(
        x=a.X("recall:Q", title="recall", scale=unit),
        y=a.Y("precision:Q", title="precision", scale=unit),
        color=a.Color("class:N", scale=a.Scale(domain=names, range=colours), legend=legend),
        strokeDash=a.StrokeDash(
            "class:N", scale=a.Scale(domain=names, range=dashes), legend=legend
        ),
        order="at:Q",
        tooltip=[
            "class:N",
            a.Tooltip("recall:Q", format=".3f"),
            a.Tooltip("precision:Q", format=".3f"),
        ],
        description="class:N",
    )
    overall = average.get("overall", math.nan)
    said = "" if math.isnan(overall) else f"; overall AP {overall:.3f}"
    subtitle = count_of(len(names), "class", "classes") + said
    return sized(chart, title, subtitle, width=HEIGHT)


# Charts of a search: its candidates and fronts, the hypervolume, what its parameters did, and the
# learning curves. Without results, each of them says what is missing.


TOO_FEW = "Too few candidates to say which parameters matter"
SearchColour = Literal["iteration", "rung"]
MOST_PARAMETERS = 12
_MOST_AXES = 6
_AXIS_ROOM = 140  # pixels for an axis with its texts; as wide as the page for all of them
_MOST_TICKS = 8
_MOST_DOTS = 60
_LINE = 96  # characters of a subtitle
_DRAWN = ("complete", "stopped")
_ON_FRONT, _OTHER, _STOPPED = "on the front", "complete", "stopped early"


def candidates_chart(
    seen: SeenSearch,
    front: SeenFront,
    colour: SearchColour = "iteration",
    links: Mapping[int, str] | None = None,
) -> Chart:
    """All candidates by the first two objectives of a front, which is highlighted; by their order
    if there is one objective only. `links` are addresses by the number of the candidate."""
    a = altair()
    points = _candidate_points(seen, front, links or {}) if front.objectives else []
    if not points:
        return empty_chart("No candidate has a result yet.")
    x, y = _axes(seen, front)
    base = a.Chart().encode(x=axis(a.X, "x", x, None), y=axis(a.Y, "y", y, None))
    line = []
    if len(front.objectives) == 2:
        steps = "step-after" if front.objectives[0].goal == "min" else "step-before"
        drawn = base.transform_filter("datum.front").mark_line(
            interpolate=steps, strokeWidth=1.8, opacity=0.9, color=VERMILLION
        )
        line = [drawn.encode(order="x:Q")]
    field, title = ("trained", "trained for") if colour == "rung" else ("iteration", "iteration")
    encoded = base.encode(
        color=by_iteration(points, field=field, title=title),
        description="about:N",
        **({"href": "link:N"} if links else {}),
    )
    kinds = [
        ("!datum.front && datum.state != 'stopped'", {"shape": DISC, "size": 55, "opacity": 0.5}),
        ("datum.state == 'stopped'", {"shape": RING, "size": 55, "opacity": 0.8}),
        ("datum.front", {"shape": DISC, "size": 150, "opacity": 1}),
    ]
    marks = [
        encoded.transform_filter(test).mark_point(filled=True, invalid=None, **look)
        for test, look in kinds
    ]
    chart = a.layer(*line, *marks, data=data(points))
    chip = front.name.rpartition(":")[2]
    heading = f"Candidates and the front of {chip}" if chip else "Candidates and their front"
    return sized(chart, heading, _as_lines(_subtitle(front, points)))


def volume_chart(seen: SeenSearch) -> Chart:
    """The hypervolume after each candidate; with several chips, also that of each."""
    if not seen.curve:
        return empty_chart("The hypervolume is known when there are ten results.")
    a = altair()
    several = len(seen.fronts) > 1
    lines = [("mean of the chips" if several else "", [volume for _, volume, _ in seen.curve])]
    for place, front in enumerate(seen.fronts if several else ()):
        lines.append((_chip(front.name), [each[place] for _, _, each in seen.curve]))
    points = [
        {
            "line": name,
            "candidates": count,
            "hypervolume": volume,
            "about": f"{name} {volume:.3f} after {count_of(count, 'candidate')}".strip(),
        }
        for name, volumes in lines
        for (count, _, _), volume in zip(seen.curve, volumes, strict=True)
    ]
    names = [name for name, _ in lines]
    colours = [BLUE if several else VERMILLION, *(c for c in _cycle(len(names)) if c != BLUE)]
    scale = a.Scale(domain=names, range=colours[: len(names)])
    counted = a.Axis(tickMinStep=1, format="d", tickCount=min(len(seen.curve) - 1, 10))
    base = a.Chart().encode(
        x=a.X("candidates:Q", title="candidates", axis=counted),
        y=a.Y("hypervolume:Q", title="hypervolume", scale=a.Scale(zero=False, padding=10)),
        color=a.Color("line:N", scale=scale, legend=a.Legend(title=None) if several else None),
    )
    drawn = base.mark_line(interpolate="step-after", strokeWidth=2)
    dots = base.mark_point(filled=True, size=28, opacity=0.9).encode(description="about:N")
    parts = [drawn, dots] if len(points) <= _MOST_DOTS else [drawn]
    chart = a.layer(*parts, data=data(points))
    return sized(chart, "Hypervolume", _as_lines(reference_text(seen)), height=240)


def reference_text(seen: SeenSearch) -> str:
    """Where the hypervolume is measured from, in words; empty while that is not known."""
    if seen.reference is None:
        return ""
    ends = []
    for name, scale in seen.reference.scales.items():
        measure = seen.column(name)
        unit = f" {measure.unit}" if measure.unit else ""
        label = measure.label.removeprefix("estimated ")
        ends.append(f"{label} {measure.text(measure.factor * scale.worst)}{unit}")
    return f"share of the box from the reference point ({', '.join(ends)}) to the ideal point"


def importance_chart(seen: SeenSearch) -> Chart:
    """How much of the differences between candidates each parameter explains."""
    shown = seen.importances[:MOST_PARAMETERS]
    if not shown:
        return empty_chart(f"{TOO_FEW}: no parameter explains more than chance would.")
    a = altair()
    points = [
        {
            "parameter": item.parameter,
            "objective": search_measure(name).label,
            "share": share,
            "about": f"{item.parameter} explains {share:.0%} of {search_measure(name).label}",
        }
        for item in shown
        for name, share in item.shares.items()
    ]
    objectives = [search_measure(objective.name).label for objective in seen.objectives]
    order = [item.parameter for item in shown]
    colour = a.Color(
        "objective:N",
        scale=a.Scale(domain=objectives, range=list(_cycle(len(objectives)))),
        legend=a.Legend(title=None, orient="bottom", columns=2, labelLimit=300),
    )
    chart = (
        a.Chart(data(points))
        .mark_bar()
        .encode(
            y=a.Y("parameter:N", sort=order, title=None),
            yOffset=a.YOffset("objective:N", sort=objectives),
            x=a.X("share:Q", title="share of the variation explained", axis=a.Axis(format=".0%")),
            color=colour,
            description="about:N",
        )
    )
    height = max(60, len(shown) * (8 + 7 * len(objectives)))
    note = "each parameter by itself; only what chance does not explain"
    return sized(chart, "Importance of the parameters", note, height=height)


def parallel_chart(seen: SeenSearch, is_narrow: bool = False) -> Chart:
    """A line per candidate, through its most important parameters and its objectives; of several
    chips, the first. On a phone there is room for fewer parameters."""
    front = seen.fronts[0]
    shown = [item for item in seen.candidates if _has_results(item, front.objectives)]
    most = 2 if is_narrow else _MOST_AXES
    important = [item.parameter for item in seen.importances]
    names = list(dict.fromkeys([*important, *_common_parameters(shown)]))[:most]
    if len(shown) < 2 or not names:
        return empty_chart("Lines are drawn when two candidates have a result.")
    a = altair()
    by = front.objectives[0].name
    shown.sort(key=lambda item: item.values[by])
    scales: list[_ParameterAxis | _ObjectiveAxis] = [_ParameterAxis(n, shown) for n in names]
    scales += [
        _ObjectiveAxis(seen.column(objective.name), objective.goal, shown)
        for objective in front.objectives
    ]
    points = []
    for item in shown:
        about, part = _candidate_line(seen, item), 0
        for place, scale in enumerate(scales):
            at = scale.position(item)
            if at is None:  # the line breaks: it has no value to pass through
                part += 1
                continue
            points.append(
                {
                    "axis": place,
                    "at": at,
                    "line": f"{item.number}.{part}",
                    "front": front.name in item.fronts,
                    "by": item.values[by],
                    "about": about,
                }
            )
    ticks = [
        {"axis": place, "at": at, "text": text}
        for place, scale in enumerate(scales)
        for at, text in scale.ticks
    ]
    titles = [{"axis": place, "at": 1.1, "text": s.title} for place, s in enumerate(scales)]
    x = a.X("axis:Q", axis=None, scale=a.Scale(domain=[-0.3, len(scales) - 0.6], nice=False))
    y = a.Y("at:Q", axis=None, scale=a.Scale(domain=[-0.06, 1.12], nice=False))
    rules = a.Chart(data([{"axis": place, "at": 0, "end": 1} for place in range(len(scales))]))
    lines = a.Chart(data(points)).encode(x=x, y=y, detail="line:N", description="about:N")
    colour = a.Color("by:Q", scale=a.Scale(range=list(EARLY_TO_LATE)), legend=None)
    texts = {"align": "left", "fontSize": 12}
    chart = a.layer(
        lines.transform_filter("!datum.front").mark_line(strokeWidth=0.8, opacity=0.3, color=GREY),
        lines.transform_filter("datum.front")
        .mark_line(strokeWidth=1.7, opacity=0.9)
        .encode(color=colour),
        rules.mark_rule(opacity=0.6).encode(x=x, y=y, y2="end:Q"),
        a.Chart(data(ticks)).mark_text(dx=6, **texts).encode(x=x, y=y, text="text:N"),
        a.Chart(data(titles))
        .mark_text(dx=-8, fontWeight="bold", limit=80 if is_narrow else _AXIS_ROOM - 12, **texts)
        .encode(x=x, y=y, text="text:N"),
    )
    label = _short(seen.column(by))
    first = "the most important parameters first" if important else TOO_FEW.lower()
    note = f"{first}; a line breaks where a candidate lacks a parameter; in colour the front"
    width = NARROW if is_narrow else _AXIS_ROOM * len(scales)
    return sized(chart, "Parameters and objectives", f"{note}, by {label}", width=width)


def _common_parameters(items: Sequence[SeenCandidate]) -> list[str]:
    """Those that differ, the ones that most candidates have first."""
    counts = Counter(name for item in items for name in item.parameters)
    values = {n: {str(item.parameters.get(n)) for item in items} for n in counts}
    return sorted((n for n in counts if len(values[n]) > 1), key=lambda n: (-counts[n], n))


def learning_chart(seen: SeenSearch) -> Chart:
    """The score of every candidate while it was trained."""
    scored = next((o.name for o in seen.objectives if o.name in ("val_iou", "val_f1")), "val_iou")
    points = []
    for item in seen.candidates:
        kind = _ON_FRONT if item.is_front else _STOPPED if item.state == "stopped" else _OTHER
        about = f"{item.name}, {kind}, {item.arch_id}"
        for point in seen.learning.get(item.arch_id, ()):
            at = point.step if math.isnan(point.epoch) else point.epoch
            score = getattr(point, scored)
            if math.isfinite(at) and math.isfinite(score):
                points.append(
                    {"at": at, "score": score, "id": item.arch_id, "kind": kind, "about": about}
                )
    if not points:
        return empty_chart("There are learning curves when candidates have been trained.")
    a = altair()
    kinds = [
        kind for kind in (_ON_FRONT, _OTHER, _STOPPED) if any(p["kind"] == kind for p in points)
    ]
    looks = {_ON_FRONT: VERMILLION, _OTHER: BLUE, _STOPPED: GREY}
    is_epoch = not all(
        math.isnan(point.epoch) for curve in seen.learning.values() for point in curve
    )
    base = a.Chart(data(points)).encode(
        x=a.X("at:Q", title="epochs" if is_epoch else "steps", axis=a.Axis(tickMinStep=1)),
        y=a.Y("score:Q", title=search_measure(scored).label, scale=a.Scale(zero=False, padding=10)),
        detail="id:N",
        color=a.Color(
            "kind:N",
            scale=a.Scale(domain=kinds, range=[looks[kind] for kind in kinds]),
            legend=a.Legend(title=None, symbolOpacity=1),
        ),
        description="about:N",
    )
    front = f"datum.kind == '{_ON_FRONT}'"
    chart = a.layer(
        base.transform_filter(f"!({front})").mark_line(
            strokeWidth=1.2, opacity=0.4, point={"size": 12}
        ),
        base.transform_filter(front).mark_line(strokeWidth=2, opacity=0.95, point={"size": 24}),
    )
    trained = len({point["id"] for point in points})
    stopped = len({p["id"] for p in points if p["kind"] == _STOPPED})
    note = count_of(trained, "training") + (f", {stopped} of them stopped early" if stopped else "")
    return sized(chart, "Learning curves", note, height=300)


def metric_chart(
    metric: str, across: str, by_job: Mapping[str, Sequence[tuple[float, float]]]
) -> Chart:
    """A metric of several jobs while they ran, a line for each; dashes tell apart what colours
    cannot."""
    points = [
        {"job": name, "x": x, "y": y, "about": f"{name}: {metric} {y:.4g} at {across} {x:g}"}
        for name, values in by_job.items()
        for x, y in values
    ]
    if not points:
        return empty_chart(f"None of these jobs wrote {metric}.")
    a = altair()
    names = list(by_job)
    dashes = [_DASHES[place // len(OKABE_ITO) % len(_DASHES)] for place in range(len(names))]
    legend = a.Legend(title=None, orient="bottom", columns=2, labelLimit=260, symbolType="stroke")
    base = a.Chart(data(points)).encode(
        x=a.X("x:Q", title=across, axis=a.Axis(tickMinStep=1)),
        y=a.Y("y:Q", title=metric, scale=a.Scale(zero=False, padding=8)),
        color=a.Color(
            "job:N", scale=a.Scale(domain=names, range=_cycle(len(names))), legend=legend
        ),
        strokeDash=a.StrokeDash("job:N", scale=a.Scale(domain=names, range=dashes), legend=legend),
        detail="job:N",
        description="about:N",
    )
    dots = base.mark_point(filled=True, size=24, opacity=0.9)
    parts = [base.mark_line(strokeWidth=2), *([dots] if len(points) <= 200 else [])]
    latest = ", ".join(f"{name} {values[-1][1]:.4g}" for name, values in by_job.items() if values)
    return sized(a.layer(*parts), metric, _as_lines(f"last: {latest}"), height=260)


def search_charts(seen: SeenSearch, colour: SearchColour = "iteration") -> list[Chart]:
    """All of them, a scatter per front first."""
    charts = [candidates_chart(seen, front, colour) for front in seen.fronts]
    charts.append(volume_chart(seen))
    if any(item.parameters for item in seen.candidates):
        charts += [importance_chart(seen), parallel_chart(seen)]
    if seen.learning:
        charts.append(learning_chart(seen))
    return charts


def about_candidate(seen: SeenSearch, item: SeenCandidate) -> list[str]:
    """A candidate in a few lines: its name, objectives, state, and most important parameters."""
    lines = [item.name]
    for goal in seen.objectives:
        if goal.name in item.values:
            measure = seen.column(goal.name)
            value = measure.text(measure.factor * item.values[goal.name])
            lines.append(f"{measure.label}: {value}{f' {measure.unit}' if measure.unit else ''}")
    trained = f", trained for {item.trained:g}" if item.trained is not None else ""
    lines.append(f"number {item.number}, iteration {item.iteration}, {item.state}{trained}")
    if item.name != item.arch_id:
        lines.append(item.arch_id)
    first = [one.parameter for one in seen.importances if one.parameter in item.parameters]
    names = list(dict.fromkeys([*first, *item.parameters]))[:MOST_PARAMETERS]
    if names:
        lines.append(", ".join(f"{name} {item.parameters[name]}" for name in names))
    return lines


def _candidate_line(seen: SeenSearch, item: SeenCandidate) -> str:
    return "; ".join(about_candidate(seen, item))


def _axes(seen: SeenSearch, front: SeenFront) -> tuple[Column, Column]:
    measures = [seen.column(objective.name) for objective in front.objectives]
    if len(measures) == 1:
        return Column("number", "number", "", label="candidate"), measures[0]
    return measures[0], measures[1]


def _candidate_points(
    seen: SeenSearch, front: SeenFront, links: Mapping[int, str]
) -> list[dict[str, Any]]:
    x, y = _axes(seen, front)
    points = []
    for item in seen.candidates:
        if not _has_results(item, front.objectives[:2]) or item.state not in (
            "complete",
            "stopped",
        ):
            continue
        numbers = {"number": float(item.number), **item.values}
        point: dict[str, Any] = {
            "x": x.factor * numbers[x.name],
            "y": y.factor * numbers[y.name],
            "iteration": item.iteration,
            "trained": item.trained,
            "state": item.state,
            "front": front.name in item.fronts,
            "about": _candidate_line(seen, item),
        }
        if item.number in links:
            point["link"] = links[item.number]
        points.append(point)
    return points


def _has_results(item: SeenCandidate, objectives: Sequence[Objective]) -> bool:
    return all(math.isfinite(item.values.get(one.name, math.nan)) for one in objectives)


def _subtitle(front: SeenFront, points: Sequence[Mapping[str, Any]]) -> str:
    complete = sum(point["state"] == "complete" for point in points)
    stopped = len(points) - complete
    on = sum(point["front"] for point in points)
    text = f"large: the front, {on} of {count_of(complete, 'candidate')} with a result"
    goals = "; ".join(
        f"{search_measure(o.name).label}: {'less' if o.goal == 'min' else 'more'} is better"
        for o in front.objectives
    )
    return f"{text}{f'; hollow: {stopped} stopped early' if stopped else ''}; {goals}"


def _as_lines(text: str) -> list[str]:
    return textwrap.wrap(text, _LINE)


def _chip(name: str) -> str:
    return name.rpartition(":")[2]


def _cycle(count: int) -> list[str]:
    return [OKABE_ITO[place % len(OKABE_ITO)] for place in range(count)]


class _ParameterAxis:
    """Values of a parameter between 0 and 1: numbers in order, texts by name. Candidates with the
    same value lie side by side, in the order in which they are given, so that lines stay apart. One
    that does not have the parameter crosses no point of the axis."""

    def __init__(self, name: str, items: Sequence[SeenCandidate]) -> None:
        self.title = name
        having = [item for item in items if name in item.parameters]
        values = {item.parameters[name] for item in having}
        is_numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        ordered = sorted(values, key=(lambda v: v) if is_numeric else str)
        room = 1 / max(len(ordered), 1)
        middle = {value: (place + 0.5) * room for place, value in enumerate(ordered)}
        shown = ordered if len(ordered) <= _MOST_TICKS else [ordered[0], ordered[-1]]
        self.ticks = [(middle[value], f"{value}") for value in shown]
        self._at = {}
        for value in ordered:
            same = [item.number for item in having if item.parameters[name] == value]
            for place, candidate in enumerate(same):
                aside = (place + 0.5) / len(same) - 0.5
                self._at[candidate] = middle[value] + 0.7 * room * aside

    def position(self, item: SeenCandidate) -> float | None:
        return self._at.get(item.number)


class _ObjectiveAxis:
    """Values of an objective between 0 and 1, the best at the top."""

    def __init__(self, measure: Column, goal: str, items: Sequence[SeenCandidate]) -> None:
        self.title, self._name = _short(measure), measure.name
        values = [item.values[measure.name] for item in items]
        ends = (max(values), min(values)) if goal == "min" else (min(values), max(values))
        self._from, self._to = ends
        texts = [measure.text(measure.factor * end) for end in ends]
        self.ticks = [(0.0, texts[0]), (1.0, texts[1])] if ends[0] != ends[1] else [(1.0, texts[0])]

    def position(self, item: SeenCandidate) -> float | None:
        span = self._to - self._from
        return (item.values[self._name] - self._from) / span if span else 1.0


def _short(measure: Column) -> str:
    """For an axis: without what the page says anyway."""
    label = measure.label.partition(" on ")[0].partition(" after ")[0].removeprefix("estimated ")
    return f"{label} ({measure.unit})" if measure.unit else label


# A scatter plot in plain characters, as wide as the terminal.


PLOT_LINES = 16
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


def plot(pareto: Pareto, width: int, height: int = PLOT_LINES, marks: Marks = UNICODE) -> str:
    """The first two objectives; empty if there is nothing to show. Where several rows share a
    character, the front wins."""
    if not pareto.rows:
        return ""
    axes = chart_axes(pareto)
    x, y = axes.measures[:2]
    across, up = axes.ranges
    xs, ys = ((factor * pareto.values[:, n]).tolist() for n, factor in enumerate(axes.factors[:2]))
    left, right = _ends(xs, across)
    low, high = _ends(ys, up)
    edge = max(len(y.text(value)) for value in (low, high))
    columns = min(max(width, _LEAST_WIDTH), _MOST_WIDTH) - edge - 2
    grid = [[" "] * columns for _ in range(height)]
    for index in sorted(range(len(xs)), key=lambda index: pareto.is_front[index]):
        if not (across.shows(xs[index]) and up.shows(ys[index])):
            continue
        column = _cell(xs[index], left, right, columns, across.is_log)
        line = height - 1 - _cell(ys[index], low, high, height, up.is_log)
        grid[line][column] = marks.other
        if pareto.is_front[index]:
            is_estimated = _estimated(pareto, index)
            grid[line][column] = marks.front_estimate if is_estimated else marks.front
    lines = [f"{y.text(high):>{edge}} {marks.up}{''.join(grid[0])}"]
    lines += [f"{'':>{edge}} {marks.up}{''.join(line)}" for line in grid[1:-1]]
    lines += [f"{y.text(low):>{edge}} {marks.up}{''.join(grid[-1])}"]
    lines += [f"{'':>{edge}} {marks.corner}{marks.across * columns}"]
    name = f"{x.heading}, logarithmic" if across.is_log else x.heading
    lines += [" " * (edge + 2) + _between(x.text(left), name, x.text(right), columns)]
    title = f"{y.heading}, logarithmic" if up.is_log else y.heading
    return "\n".join([title, *(line.rstrip() for line in lines), _legend(pareto, axes, marks)])


def _estimated(pareto: Pareto, index: int) -> bool:
    seen = seen_from(pareto.latency, pareto.rows[index])
    return bool(pareto.latency) and is_estimate(seen)


def _legend(pareto: Pareto, axes: ChartAxes, marks: Marks) -> str:
    kinds = {_estimated(pareto, i) for i, is_front in enumerate(pareto.is_front) if is_front}
    parts = [f"{marks.front} front"] if False in kinds else []
    parts += [f"{marks.front_estimate} front, latency estimated"] if True in kinds else []
    parts += [f"{marks.other} others"] if len(pareto.front) < len(pareto.rows) else []
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
