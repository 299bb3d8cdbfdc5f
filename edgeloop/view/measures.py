"""Objectives, and columns as people see them: in which unit, and what a score is of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edgeloop._util.values import did_you_mean
from edgeloop.errors import BadInput
from edgeloop.models.columns import (
    COLUMNS,
    LATENCY,
    Column,
    Goal,
    Row,
    ScoreMeaning,
    column_named,
    column_names,
    column_of,
    is_estimate,
    is_lower_bound,
    latency_ms,
    mean_latency_ms,
    number,
    split_place,
    unplaced,
)

ESTIMATE, MEASURED = "estimate", "measured"
_WELL_BELOW_MS, _MOST_IN_US = 0.5, 10.0


def measure_of(name: str, meaning: str | ScoreMeaning = "f1") -> Column:
    """A column as people see it. `meaning` is what scores are, if not F1 on as many images as the
    names of their columns say."""
    column = column_of(name)
    if column.group != "score" or meaning == "f1":
        return column
    scores = meaning if isinstance(meaning, ScoreMeaning) else ScoreMeaning(meaning)
    label = column.label if scores.metric == "f1" else column.label.replace("F1", scores.metric, 1)
    if column.name in scores.images:
        label = f"{label.rpartition(', ')[0]}, {scores.images[column.name]} images"
    shown = scores.heading(column.name)
    return replace(column, label=label, shown="" if shown == column.name else shown)


def readable(measure: Column, values: Sequence[float]) -> tuple[Column, float]:
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
    def measure(self) -> Column:
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
        with_goal = [name for name in column_names() if column_of(name).goal]
        hint = did_you_mean(column, with_goal)
        if hint:
            reason = f"there is no column {column!r} with a known goal: {hint} For a column of "
            reason += f"your own, add the goal: {column}:min or {column}:max"
            raise BadInput(reason=reason)
        reason = f"say whether less or more of {column!r} is better: {column}:min or {column}:max"
        raise BadInput(reason=reason)
    return ColumnObjective(column, chosen)  # type: ignore[arg-type]


def check_columns(rows: Iterable[Row], objectives: Iterable[ColumnObjective]) -> None:
    """A column that is unknown and that no row has is a typing mistake."""
    present = {name for row in rows for name in row} | COLUMNS.keys()
    for item in objectives:
        if item.column not in present:
            names = [*present, *column_names()]
            hint = did_you_mean(item.column, names, "'edgeloop status --json' shows all.")
            raise BadInput(reason=f"there is no column {item.column!r}; {hint}")


def kind_of(row: Row) -> str:
    return ESTIMATE if is_estimate(row) else MEASURED


def is_latency(column: str) -> bool:
    """Whether it is the latency on any device."""
    return split_place(column)[0] == LATENCY


def seen_from(column: str, row: Row) -> Row:
    """The row as the device has it that a column is of: a further one has columns of its own."""
    _, suffix = split_place(column)
    return unplaced(row, suffix) if suffix else row


def latency_cell(row: Row, measure: Column | None = None) -> str:
    """Milliseconds, or the unit of `measure`, as people read them: `0.61 ± 0.02`, `0.61 est`,
    `≥ 0.61 est`."""
    measure = measure or COLUMNS[LATENCY]
    row = seen_from(measure.name, row)
    factor = measure.factor / COLUMNS[LATENCY].factor
    if is_lower_bound(row):
        return f"≥ {measure.text(factor * mean_latency_ms(row))} est"
    text, sigma = measure.text(factor * latency_ms(row)), factor * sigma_ms(row)
    if not text:
        return ""
    spread = f" ± {sigma:.2g}" if sigma > 0 else ""
    return f"{text}{spread}{' est' if is_estimate(row) else ''}"


def sigma_ms(row: Row) -> float:
    """One standard deviation of the runs; the table holds it as percent of the mean."""
    return number(latency_ms(row) * number(row.get("stdev")) / 100.0)
