"""Charts of one model, drawn from its files: layer times, scores a class, PR curves."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.report.drawing import altair, drawable
from edgeloop.report.measures import ESTIMATE, MEASURED, number
from edgeloop.report.parts import HEIGHT, count_of, data, empty_chart, lines_high, sized
from edgeloop.report.theme import BLUE, GREEN, OKABE_ITO, VERMILLION

if TYPE_CHECKING:
    from edgeloop.report.parts import Chart

MOST_LAYERS = 25
METRICS = ("f1", "iou", "AP")
Curve = tuple[Sequence[float], Sequence[float]]  # recall, precision


@dataclass(frozen=True)
class Layers:
    """What a `perf_results_*.csv` says: times of layers in µs, and under which conditions."""

    times_us: tuple[tuple[str, str, float], ...]  # name, operator, µs
    kind: str
    conditions: Mapping[str, str]


def read_layers(text: str) -> Layers:
    """A file of other tools, with other columns, holds no layer that we know of."""
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
    """A damaged file holds nothing: it must not hide all else that is known of its model."""
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
    """The 95 % interval of F1 that a test wrote down; tests of old versions did not."""
    low, high = (scores.get(m, {}).get("overall", math.nan) for m in ("f1_low", "f1_high"))
    return None if math.isnan(low + high) else (low, high)


def read_curves(text: str) -> dict[str, Curve]:
    """A `pr_curve_*.csv`: class → its recalls and precisions. Lines without both are left out."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in _table(text):
        recall, precision = number(row.get("recall")), number(row.get("precision"))
        if row.get("class") and not math.isnan(recall + precision):
            recalls, precisions = found.setdefault(str(row["class"]), ([], []))
            recalls.append(recall)
            precisions.append(precision)
    return dict(found)


def layers_chart(
    layers: Layers | None, most: int = MOST_LAYERS, title: str = "Layer times"
) -> Chart:
    """The slowest layers, in their order of time; estimates are hollow bars."""
    if layers is None or not layers.times_us:
        return empty_chart("No times of layers are known for this model.")
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
        # Two layers may have one name: lines are told apart by their number.
        y=a.Y("line:N", title=None, axis=a.Axis(labelExpr=_lookup(names), grid=False)),
        tooltip=["layer:N", "operator:N", a.Tooltip("us:Q", format=".4g")],
        description="about:N",
    )
    how = "hollow: estimated" if is_hollow else "measured"
    of = f"the slowest {len(rows)} of " if len(rows) < len(slowest) else ""
    subtitle = f"{of}{count_of(len(slowest), 'layer')} ({total:,.4g} µs together); {how}"
    return sized(chart, title, subtitle, height=lines_high(len(rows)))


def classes_chart(scores: Mapping[str, Mapping[str, float]], title: str = "Classes") -> Chart:
    """F1, IoU and average precision of each class, the weakest on top."""
    rows = [
        {"class": name, "metric": metric, "value": value, "about": f"{name}: {metric} {value:.4f}"}
        for metric in METRICS
        for name, value in scores.get(metric, {}).items()
        if name != "overall" and not math.isnan(value)
    ]
    if not rows:
        return empty_chart("No scores of classes are known for this model.")
    a = altair()
    leading = scores.get("f1") or next(iter(scores.values()))
    order = sorted({str(row["class"]) for row in rows}, key=lambda name: leading.get(name, 0.0))
    overall = {metric: scores.get(metric, {}).get("overall", math.nan) for metric in METRICS}
    said = ", ".join(f"{m} {value:.4f}" for m, value in overall.items() if not math.isnan(value))
    scale = a.Scale(domain=list(METRICS), range=[BLUE, VERMILLION, GREEN])
    shapes = a.Scale(domain=list(METRICS), range=["circle", "diamond", "triangle-up"])
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
    """A line a class, from `read_curves` or from the curves of a score made here. `average` is the
    average precision of classes, as `read_scores(text)["AP"]` has it, for the legend."""
    average = average or {}
    labels = {name: _with_average(name, average.get(name, math.nan)) for name in curves}
    rows = [
        {"class": labels[name], "recall": float(r), "precision": float(p), "at": place}
        for name, (recall, precision) in curves.items()
        for place, (r, p) in enumerate(zip(recall, precision, strict=True))
        if math.isfinite(r) and math.isfinite(p)
    ]
    if not rows:
        return empty_chart("No PR curve: the model gives class numbers, no probabilities.")
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


def _with_average(name: str, value: float) -> str:
    return name if math.isnan(value) else f"{name}  {value:.3f}"


_DASHES = ([1, 0], [6, 3], [2, 3])


def _lookup(names: Mapping[str, object]) -> str:
    """An expression of Vega that turns the number of a line into its text; JSON quotes the text,
    so that a layer's name stays a text whatever is in it."""
    import json

    return f"({json.dumps(names)})[datum.value]"
