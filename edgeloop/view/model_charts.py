"""One model: what its files add to its row, and charts of its layers, classes and PR curves."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgeloop.errors import BlobMissing
from edgeloop.models.columns import AGREEMENT_COLUMNS
from edgeloop.models.files import ModelFile
from edgeloop.view.drawing import drawable
from edgeloop.view.measures import ESTIMATE, MEASURED, number
from edgeloop.view.style import (
    BLUE,
    GREEN,
    HEIGHT,
    OKABE_ITO,
    VERMILLION,
    altair,
    count_of,
    data,
    empty_chart,
    lines_high,
    sized,
)
from edgeloop.workspace import Workspace

if TYPE_CHECKING:
    from edgeloop.view.style import Chart


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


def evidence_charts(found: Evidence) -> list[tuple[str, Callable[[], Chart]]]:
    """The charts that a model has data for, each with its title and a function that draws it."""
    charts: list[tuple[str, Callable[[], Chart]]] = []
    layers, stage = found.layers, found.stage
    if layers and layers.times_us:
        charts.append(("Layer times", lambda: layers_chart(layers)))
    if class_metrics(found.scores):
        charts.append(("Classes", lambda: classes_chart(found.scores, f"Classes, {stage}")))
    if found.curves:
        title = f"Precision and recall, {stage}"
        average = found.scores.get("AP") or found.scores.get("AP50")
        charts.append((title, lambda: pr_chart(found.curves, title, average)))
    return charts


def png_address(content: bytes) -> str:
    """A PNG as a data: address; empty without one."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}" if content else ""


def _run(name: str) -> int:
    found = re.fullmatch(r"perf_results_?(\d*)\.csv", name)
    return int(found[1] or 0) if found else -1


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
    found = [
        metric
        for metric, values in scores.items()
        if any(name != "overall" and not math.isnan(value) for name, value in values.items())
    ]
    known = [metric for metric in METRICS if metric in found]
    return [*known, *(metric for metric in found if metric not in known)][:MOST_METRICS]


def read_curves(text: str) -> dict[str, Curve]:
    """A `pr_curve_*.csv`: class → recalls and precisions. Lines without both are skipped."""
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
