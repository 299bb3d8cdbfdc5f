"""Objectives, and columns as people see them: in which unit, and what a score is of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from edgeloop._util.values import did_you_mean
from edgeloop.errors import BadInput
from edgeloop.models.columns import (
    COLUMNS,
    Column,
    Goal,
    Row,
    ScoreMeaning,
    column_named,
    column_names,
    column_of,
    is_estimate,
    number,
)

ESTIMATE, MEASURED = "estimate", "measured"
_QUALITIES = ("f1_1k", "sqnr_db", "f1_10k", "f1_onnx", "final_val_iou", "val_iou")


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


def quality_column(rows: Iterable[Row]) -> str:
    """What fronts show beside latency: F1 of the quantized model, or the next best that some row
    has: agreement with the float model, another test, or what a search knew after training."""
    missing = set(_QUALITIES)
    for row in rows:
        missing -= {name for name in missing if not math.isnan(number(row.get(name)))}
        if _QUALITIES[0] not in missing:
            break
    return next((name for name in _QUALITIES if name not in missing), _QUALITIES[0])


@dataclass(frozen=True)
class ColumnObjective:
    """A column, and whether less or more of it is better. Values that differ by less than the share
    `apart` cannot be told apart."""

    column: str
    goal: Goal
    metric: str | ScoreMeaning = "f1"
    apart: float = 0.0

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
