"""The Pareto front as a chart, and its evolution, for notebooks, reports, the portal and files.

A chart has no background of its own: `write_chart` and `spec_of` apply a theme. Like all charts
here, these accept an empty table and then say what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgeloop.models.columns import (
    SCORE_COLUMNS,
    interval_heading,
    is_estimate,
    latency_interval,
    score_meaning,
    shared_metric,
)
from edgeloop.view.front import Pareto, pareto_of
from edgeloop.view.measures import (
    ESTIMATE,
    LATENCY,
    MEASURED,
    ColumnObjective,
    Row,
    kind_of,
    measure_of,
    number,
    objective,
    sigma_ms,
)
from edgeloop.view.style import (
    BLUE,
    DISC,
    GREY,
    HEIGHT,
    NAME_SIZE,
    PLACES,
    RING,
    VERMILLION,
    WIDTH,
    ChartAxes,
    altair,
    axis,
    by_iteration,
    chart_axes,
    count_of,
    data,
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

if TYPE_CHECKING:
    from edgeloop.view.style import Chart


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

    Only pairs on the same test images are compared: 1k (`f1_1k_f`, `f1_1k`) or 10k (`f1_onnx`,
    `f1_10k`), whichever more models have.
    """
    every = list(rows)
    pairs = [("f1_1k_f", "f1_1k", "1k"), ("f1_onnx", "f1_10k", "10k")]
    found = []
    for one, two, images in pairs:
        both = [(str(r.get("name", "")), number(r.get(one)), number(r.get(two))) for r in every]
        both = [line for line in both if not math.isnan(line[1] + line[2])]
        found.append((sorted(both, key=lambda line: (line[2] - line[1], line[0])), images))
    losses, images = max(found, key=lambda item: len(item[0]))
    if not losses:
        return empty_chart("No model has F1 of both its float and its quantized form yet.")
    a = altair()
    metric = shared_metric(every)
    column = "f1_1k" if images == "1k" else "f1_10k"
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
    x = a.X("f1:Q", title=f"{named} ({images} test images)", scale=a.Scale(zero=False, nice=True))
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
    subtitle = (
        f"{count_of(len(losses), 'model')}{of}; quantizing costs {mean:.4f} of {named} on average"
    )
    return sized(chart, "Float and quantized", subtitle, height=lines_high(len(shown)))


def agreement_chart(rows: Iterable[Row]) -> Chart:
    """How well quantized models agree with their float form, the worst on top: SQNR, in dB."""
    measure, top1 = measure_of("sqnr_db"), measure_of("top1_agreement")
    named = [(str(row.get("name", "")), measure.of(row), top1.of(row)) for row in rows]
    found = sorted(item for item in named if not math.isnan(item[1]))
    if not found:
        return empty_chart("No model was compared with its float form yet.")
    a = altair()
    shown = sorted(found, key=lambda item: item[1])[:MOST_LINES]
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
    of = f" (the worst {len(shown)})" if len(shown) < len(found) else ""
    subtitle = (
        f"{count_of(len(found), 'model')}{of}; the worst output of each, quantized on the device"
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
    known = intervals or {}
    points = [
        {
            "name": name,
            "f1": value,
            **dict(zip(("low", "high"), known.get(name, ()), strict=False)),
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
    """How busy each device was, by day, from the rows of `edgeloop usage --json`: `device`, `day`,
    `seconds` and `uses`."""
    rows = [
        {
            "device": str(use.get("device", "")),
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
            scale=a.Scale(domainMin=0, nice=True),
            axis=a.Axis(tickCount=3, titleFontSize=11),
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
