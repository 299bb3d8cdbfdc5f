"""Charts of a whole table: partial and full training, float and quantized, use of devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgeloop.models import score_meaning, shared_metric
from edgeloop.report.measures import Row, measure_of, number
from edgeloop.report.style import (
    BLUE,
    DISC,
    GREY,
    HEIGHT,
    VERMILLION,
    altair,
    axis,
    by_iteration,
    count_of,
    data,
    empty_chart,
    lines_high,
    numbers,
    or_null,
    padded,
    sized,
)

if TYPE_CHECKING:
    from edgeloop.report.style import Chart

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
