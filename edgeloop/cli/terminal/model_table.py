"""The table of `status`: its columns, what each of them shows, and the order of the rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeloop._util.units import duration_text
from edgeloop.cli.output import short_count
from edgeloop.cli.terminal.tables import Screen, TableColumn, fit, totals

if TYPE_CHECKING:
    from edgeloop.store import Value, Values

INTERVAL, RECOVERY = "interval", "recovery"
OF_TRAINING = ("val_iou", "final_val_iou")  # shown where a model has one
STATES = ("running", "failed", "uploading", "new", "waiting", "queued", "candidate", "complete")
_WEIGHTS = {
    **{"name": 100, "status": 95, "mean": 90, "f1_1k": 85, "sqnr_db": 84, "final_val_iou": 80},
    **{"val_iou": 75, "macs": 70, "device": 68, "node": 65, INTERVAL: 60, "f1_onnx": 55},
    **{"f1_10k": 50, "f1_1k_f": 45, "top1_agreement": 44, "cosine": 43, "max_error": 42},
}
_LEAST = {"name": 20, "status": 24, "node": 12, "device": 12}
_COUNTS = ("macs", "params")
_FACTORS = {"ms": 1e3, "m": 1e-6, "mb": 1e-6}


def model_table(
    rows: Sequence[Values], screen: Screen, chosen: Sequence[str] = (), live: bool = False
) -> str:
    """As much of it as the screen has room for; a terminal also gets the totals. A live table ends
    with the screen."""
    now = time.time()
    names = list(chosen) or _usual_columns(rows)
    cells = [[_cell(name, row, now) for name in names] for row in rows]
    states = [_state(row, now)[1] for row in rows]
    titles = _titles(rows, names)
    columns = [
        _column(name, title, bool(chosen)) for name, title in zip(names, titles, strict=True)
    ]
    table = fit(columns, cells, screen, states, "status")
    if screen.width is None:
        return table.text(screen)
    words = ["running" if state == "stalled" else state for state in states]
    below = [totals("model", words, STATES), *table.remark]
    most = screen.height - len(below) - 3 if live and screen.height else None
    return table.text(screen, below, most)


def in_order(rows: Sequence[Values], sort: str) -> list[Values]:
    """By `COLUMN` or `COLUMN:desc`; `state` is running and failed ones first. Names are in the
    order that people count in, and rows without a value come last."""
    from edgeloop.models import attention_rank, column_named, natural_key

    name, _, way = sort.partition(":")
    by_name = sorted(rows, key=lambda row: natural_key(str(row.get("name", ""))))
    if name in ("state", "status"):
        ranks = [attention_rank(str(row.get("status", ""))) for row in by_name]
        order = sorted(range(len(by_name)), key=ranks.__getitem__, reverse=way == "desc")
        return [by_name[place] for place in order]
    keyed = [(_sort_key(column_named(name), row), row) for row in by_name]
    present = [(key, row) for key, row in keyed if key is not None]
    present.sort(key=lambda pair: pair[0], reverse=way == "desc")
    return [row for _, row in present] + [row for key, row in keyed if key is None]


def known_columns(rows: Sequence[Values]) -> list[str]:
    """What a column may be called, as the store has it and as it is shown."""
    from edgeloop.models import COLUMNS, SHOWN_AS, visible_columns

    usual = (column.name for column in COLUMNS)
    return list(dict.fromkeys([*usual, *SHOWN_AS.values(), *visible_columns(rows)]))


def _usual_columns(rows: Sequence[Values]) -> list[str]:
    from edgeloop.models import latency_interval, recovery_of, shown_scores

    trained = [name for name in OF_TRAINING if any(isinstance(r.get(name), float) for r in rows)]
    several = len({row["device"] for row in rows if row.get("device")}) > 1
    return [
        *("name", "macs", "mean"),
        *([INTERVAL] if any(map(latency_interval, rows)) else []),
        *(["device"] if several else []),
        *trained,
        *shown_scores(rows),
        *([RECOVERY] if any(map(recovery_of, rows)) else []),
        *("status", "node"),
    ]


def _titles(rows: Sequence[Values], names: Sequence[str]) -> list[str]:
    from edgeloop.models import SCORE_COLUMNS, SHOWN_AS, interval_heading, score_meaning

    meaning = score_meaning(rows)
    special = {
        **{name: name for name in _COUNTS},
        **{name: meaning.heading(name) for name in SCORE_COLUMNS},
        INTERVAL: interval_heading(rows),
    }
    return [special.get(name) or SHOWN_AS.get(name, name) for name in names]


def _column(name: str, title: str, is_chosen: bool) -> TableColumn:
    from edgeloop.models import KINDS

    is_number = KINDS.get(name) in ("integer", "number") or name == INTERVAL
    weight = 50 if is_chosen and name != "name" else _WEIGHTS.get(name, 30)
    least = _LEAST.get(name, None if is_number or name in (INTERVAL, RECOVERY) else 12)
    return TableColumn(title, weight, least, right=is_number)


def _cell(name: str, row: Values, now: float) -> str:
    from edgeloop.models import (
        AGREEMENT_COLUMNS,
        SCORE_COLUMNS,
        SHOWN_AS,
        latency_interval,
        recovery_of,
    )

    value = row.get(name)
    if name == "status":
        return _state(row, now)[0]
    if name == "mean":
        return _latency(row)
    if name == INTERVAL:
        return str(latency_interval(row) or "")
    if name == RECOVERY:
        found = recovery_of(row)
        return found.short if found else ""
    if name in _COUNTS:
        return short_count(value)
    if name in (*SCORE_COLUMNS, *AGREEMENT_COLUMNS, *OF_TRAINING):
        return _score(name, value)
    if isinstance(value, int | float) and not isinstance(value, bool) and _number(value):
        factor = _FACTORS.get(SHOWN_AS.get(name, "").rpartition("_")[2], 1.0)
        return f"{factor * value:.4g}" if isinstance(value, float) or factor != 1 else str(value)
    return "" if value is None else " ".join(str(value).split())


def _latency(row: Values) -> str:
    """An estimate is always marked as one, and so is a lower bound."""
    from edgeloop.models import is_estimate, is_lower_bound, mean_latency_ms

    latency_ms = mean_latency_ms(row)
    if not latency_ms:
        return ""
    text = f"{latency_ms:.3g} est" if is_estimate(row) else f"{latency_ms:.3g}"
    return f"≥ {text}" if is_lower_bound(row) else text


def _score(column: str, value: Value | None) -> str:
    if isinstance(value, float) and column in ("sqnr_db", "max_error"):
        return f"{value:.3g}"
    if isinstance(value, float):
        return f"{value:.3f}".removeprefix("0")
    return "" if value is None else str(value)


def _state(row: Values, now: float) -> tuple[str, str]:
    """The current stage, since when, and the last error, `running f1_1k (12 s)`; and its word."""
    from edgeloop.models import records_of

    text = str(row.get("status", ""))
    word = text.partition(" ")[0]
    held = [record for record in records_of(row).values() if record.is_held]
    if held and text not in ("error", "complete"):
        silent = max(record.expires for record in held) < now
        seconds = now - min(record.since for record in held)
        text += " (stalled)" if silent else f" ({duration_text(seconds)})"
        word = "stalled" if silent else word
    if row.get("error"):
        error = " ".join(str(row["error"]).split())
        text += f": {error}" if text == "error" else f" (last error: {error})"
    return text, word


def _sort_key(column: str, row: Values) -> tuple[int, float, str] | None:
    """Numbers before texts."""
    from edgeloop.models import mean_latency_ms, natural_key

    value = mean_latency_ms(row) or None if column == "mean" else row.get(column)
    if value is None or value == "":
        return None
    if isinstance(value, int | float):
        number = _number(value)
        return None if number is None else (0, number, "")
    return (1, 0.0, natural_key(str(value)))


def _number(value: float) -> float | None:
    """None for what is no number to compare or to show: NaN, infinity, an integer without end."""
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
