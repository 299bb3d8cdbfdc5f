"""Some models side by side: what differs between them first, and which of them is best at it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from edgeloop.models import COLUMNS, SCORE_COLUMNS, is_estimate, natural_key, visible_columns
from edgeloop.portal.feed import Row
from edgeloop.portal.shapes import CompareCell, CompareRow, CompareView
from edgeloop.portal.state import Portal, frame_of
from edgeloop.portal.views.table import NUMBERS, cell_text, line_of
from edgeloop.report import LATENCY, Measure, measure_of

MOST_MODELS = 12
_ELSEWHERE = frozenset({"name", "status", "node", "tags", "since", "error"})  # in the head
_KINDS = {column.name: column.kind for column in COLUMNS}
_MEANINGS = {column.name: column.meaning for column in COLUMNS}


def compare_view(portal: Portal, experiment: str | None, names: Sequence[str]) -> CompareView:
    """Models that are not there are named in `missing`, and those beyond the limit left out."""
    snapshot = portal.rows(experiment)
    wanted = list(dict.fromkeys(names))
    rows = [snapshot.rows[name] for name in wanted if name in snapshot.rows][:MOST_MODELS]
    columns = [name for name in visible_columns(row.values for row in rows) if _is_shown(name)]
    found = [row for column in columns if (row := _row(rows, column)) is not None]
    first = {name: place for place, name in enumerate(NUMBERS)}
    ranked = sorted(
        found, key=lambda row: (not row.is_number, not row.has_goal, first.get(row.column, 99))
    )
    now = time.time()
    return CompareView(
        frame=frame_of(portal, experiment),
        lines=tuple(line_of(row, now) for row in rows),
        differing=tuple(row for row in ranked if not row.is_same),
        equal=tuple(sorted((r for r in found if r.is_same), key=lambda r: natural_key(r.title))),
        missing=tuple(name for name in wanted if name not in snapshot.rows),
        left_out=max(0, len([n for n in wanted if n in snapshot.rows]) - MOST_MODELS),
        devices=tuple(sorted({row.text("device") for row in rows if row.text("device")})),
    )


def _is_shown(column: str) -> bool:
    return column not in _ELSEWHERE and _KINDS.get(column) != "json"


def _row(rows: Sequence[Row], column: str) -> CompareRow | None:
    """None if no model has a value."""
    measure = measure_of(column)
    values = [measure.of(row.values) for row in rows]
    texts = [cell_text(row, column) for row in rows]
    if not any(texts):
        return None
    is_number = any(not math.isnan(value) for value in values)
    is_same = len(set(texts)) == 1
    best = _best(measure, values) if not is_same else None
    return CompareRow(
        column=column,
        title=measure.label if measure.label != column else column,
        unit=measure.unit,
        meaning=_MEANINGS.get(column, ""),
        is_number=is_number,
        has_goal=measure.goal is not None,
        is_same=is_same,
        cells=tuple(
            CompareCell(
                text,
                _difference(measure, values[0], value) if number else "",
                not math.isnan(value) and value == best,
                column == LATENCY and bool(text) and is_estimate(row.values),
            )
            for number, (row, text, value) in enumerate(zip(rows, texts, values, strict=True))
        ),
    )


def _best(measure: Measure, values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    if measure.goal is None or len(known) < 2:
        return None
    return min(known) if measure.goal == "min" else max(known)


def _difference(measure: Measure, first: float, value: float) -> str:
    """From the first model: in points for scores, in percent for all else."""
    if math.isnan(first) or math.isnan(value) or measure.goal is None or value == first:
        return ""
    if measure.column in SCORE_COLUMNS or measure.column.endswith("_iou"):
        return f"{value - first:+.4f}".replace("-", "−")
    return f"{100 * (value / first - 1):+.3g} %".replace("-", "−") if first > 0 else ""
