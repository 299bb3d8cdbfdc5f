"""Columns as people see them: names, units, and whether less or more is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

from edgeloop.errors import BadInput
from edgeloop.models.columns import (
    COLUMNS,
    SCORE_COLUMNS,
    SHOWN_AS,
    ScoreMeaning,
    column_named,
    is_estimate,
    is_lower_bound,
    mean_latency_ms,
)

Goal = Literal["min", "max"]
Row = Mapping[str, object]

LATENCY = "mean"
ESTIMATE, MEASURED = "estimate", "measured"


@dataclass(frozen=True)
class Measure:
    """A column: the value in the table times `factor`. `shown` is its name if that is another one
    for these values than SHOWN_AS says."""

    column: str
    label: str
    goal: Goal | None = None
    unit: str = ""
    factor: float = 1.0
    shown: str = ""

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def heading(self) -> str:
        return self.shown or SHOWN_AS.get(self.column, self.column)

    def of(self, row: Row) -> float:
        """NaN if the row has no finite number: empty, `n/a`, NaN, infinity."""
        if self.column == LATENCY:
            return _latency_ms(row)
        return number(self.factor * number(row.get(self.column)))

    def text(self, value: float) -> str:
        if math.isnan(value):
            return ""
        if self.column in _FOUR_PLACES and abs(value) < 1000:
            return f"{value:.4f}"
        if self.column == "cosine":
            return f"{value:.5f}"
        return f"{value:.4g}"


_WELL_BELOW_MS, _MOST_IN_US = 0.5, 10.0
_FOUR_PLACES = (*SCORE_COLUMNS, "val_iou", "final_val_iou", "top1_agreement")
_KNOWN = (
    Measure(LATENCY, "latency", "min", "ms", 1e3),
    Measure("onnx_latency", "latency on the host's CPU", "min", "ms", 1e3),
    Measure("stdev", "spread of the runs", "min", "% of the mean"),
    Measure("macs", "multiply-accumulates", "min", "millions", 1e-6),
    Measure("params", "parameters", "min", "millions", 1e-6),
    Measure("size", "size of the model", "min", "MB", 1e-6),
    Measure("peak_memory_bytes", "peak activations", "min", "MB", 1e-6),
    Measure("weight_bytes", "weights as quantized", "min", "MB", 1e-6),
    Measure("ddr_bytes", "DDR traffic per inference", "min", "MB", 1e-6),
    Measure("peak_rss_bytes", "peak memory on the board", "min", "MB", 1e-6),
    Measure("power_mw", "power", "min", "mW"),
    Measure("training_time", "training", "min", "s"),
    Measure("epochs", "training", "min", "epochs"),
    Measure("f1_1k", "F1 on the device, quantized, 1k images", "max"),
    Measure("f1_10k", "F1 on the device, quantized, 10k images", "max"),
    Measure("f1_1k_f", "F1 of the float model, 1k images", "max"),
    Measure("f1_onnx", "F1 of the float ONNX model, 10k images", "max"),
    Measure("sqnr_db", "SQNR against the float model", "max", "dB"),
    Measure("cosine", "cosine similarity with the float model", "max"),
    Measure("max_error", "largest difference from the float model", "min"),
    Measure("top1_agreement", "top-1 agreement with the float model", "max"),
    Measure("val_iou", "mIoU after partial training", "max"),
    Measure("final_val_iou", "mIoU after full training", "max"),
)
MEASURES: Mapping[str, Measure] = {measure.column: measure for measure in _KNOWN}


def measure_of(column: str, meaning: str | ScoreMeaning = "f1") -> Measure:
    """`meaning` is what the columns of scores hold, if that is not F1 on as many images as their
    names say."""
    column = column_named(column)
    found = MEASURES.get(column) or Measure(column, column)
    if column not in SCORE_COLUMNS:
        return found
    scores = meaning if isinstance(meaning, ScoreMeaning) else ScoreMeaning(meaning)
    label = found.label if scores.metric == "f1" else found.label.replace("F1", scores.metric, 1)
    if column in scores.images:
        label = f"{label.rpartition(', ')[0]}, {scores.images[column]} images"
    shown = scores.heading(column)
    return replace(found, label=label, shown="" if shown == column else shown)


def readable(measure: Measure, values: Sequence[float]) -> tuple[Measure, float]:
    """The measure in the unit that reads best, and the factor of its values: microseconds where
    most latencies are well below a millisecond. For people only; programs always get ms."""
    if measure.unit != "ms" or not values:
        return measure, 1.0
    if sorted(values)[len(values) // 2] >= _WELL_BELOW_MS or max(values) >= _MOST_IN_US:
        return measure, 1.0
    shown = measure.heading.removesuffix("_ms") + "_us"
    return replace(measure, unit="µs", factor=1e3 * measure.factor, shown=shown), 1e3


def quality_column(rows: Iterable[Row]) -> str:
    """What fronts show beside latency: F1 of the quantized model, or its agreement with the float
    model where no row has F1 and some have that."""
    columns = ("f1_1k", "sqnr_db")
    every = list(rows)
    has = [any(not math.isnan(number(row.get(column))) for row in every) for column in columns]
    return "sqnr_db" if has == [False, True] else "f1_1k"


@dataclass(frozen=True)
class ColumnObjective:
    """A column, and whether less or more of it is better."""

    column: str
    goal: Goal
    metric: str | ScoreMeaning = "f1"

    @property
    def measure(self) -> Measure:
        return measure_of(self.column, self.metric)

    def of(self, row: Row) -> float:
        return self.measure.of(row)


def objective(column: str, goal: str | None = None) -> ColumnObjective:
    """`COLUMN`, if its goal is known or given, or `COLUMN:min`, `COLUMN:max`. A column is named as
    tables show it, such as `latency_ms`, or as the store has it, such as `mean`."""
    name, colon, said = column.rpartition(":")
    if colon:
        column, goal = name, said
    column = column_named(column)
    chosen = goal or measure_of(column).goal
    if chosen not in ("min", "max"):
        near = get_close_matches(column, [*MEASURES, *SHOWN_AS.values()], 1)
        hint = f"; or did you mean {near[0]!r}?" if near else ""
        reason = f"say whether less or more of {column!r} is better: {column}:min or {column}:max"
        raise BadInput(reason=reason + hint)
    return ColumnObjective(column, chosen)  # type: ignore[arg-type]


def check_columns(rows: Iterable[Row], objectives: Iterable[ColumnObjective]) -> None:
    """A column that is unknown and that no row has is a typing mistake."""
    present = {name for row in rows for name in row} | {column.name for column in COLUMNS}
    for item in objectives:
        if item.column not in present:
            near = get_close_matches(item.column, [*present, *SHOWN_AS.values()], 1)
            hint = f"did you mean {near[0]!r}?" if near else "'edgeloop status --json' shows all."
            raise BadInput(reason=f"there is no column {item.column!r}; {hint}")


def number(value: object) -> float:
    """A finite number, even if written as text; NaN for everything else."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def kind_of(row: Row) -> str:
    return ESTIMATE if is_estimate(row) else MEASURED


def latency_cell(row: Row, measure: Measure | None = None) -> str:
    """Milliseconds, or the unit of `measure`, as people read them: `0.61 ± 0.02`, `0.61 est`,
    `≥ 0.61 est`."""
    measure = measure or MEASURES[LATENCY]
    factor = measure.factor / MEASURES[LATENCY].factor
    if is_lower_bound(row):
        return f"≥ {measure.text(factor * mean_latency_ms(row))} est"  # type: ignore[arg-type]
    text, sigma = measure.text(factor * _latency_ms(row)), factor * sigma_ms(row)
    if not text:
        return ""
    spread = f" ± {sigma:.2g}" if sigma > 0 else ""
    return f"{text}{spread}{' est' if is_estimate(row) else ''}"


def sigma_ms(row: Row) -> float:
    """One standard deviation of the runs; the table holds it as percent of the mean."""
    return number(_latency_ms(row) * number(row.get("stdev")) / 100.0)


def _latency_ms(row: Row) -> float:
    """NaN for a lower bound, which cannot be compared with a latency."""
    if is_lower_bound(row):
        return math.nan
    mean = number(row.get(LATENCY))
    return number(1e3 * mean if not math.isnan(mean) else mean_latency_ms(row) or math.nan)  # type: ignore[arg-type]
