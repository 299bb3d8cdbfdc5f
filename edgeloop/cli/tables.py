"""Tables that fit the terminal: which columns stay, what is shortened, and the colours of states.

Output that goes elsewhere (a file, a pipe) has every column in full and no colour: it does not
depend on the window that a command was typed in.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import duration_text
from edgeloop.cli.output import plural, printable, short_count

if TYPE_CHECKING:
    from edgeloop.store import Value, Values


GAP = 2
_SHORTEST = 12  # of a column that may be shortened
_COLOURS: Mapping[str, tuple[str, ...]] = {
    "cyan": ("running", "busy", "preparing"),
    "red": ("error", "failed", "dead", "unauthorized", "offline", "unplugged", "unsupervised"),
    "green": ("complete", "completed", "idle", "ready", "up", "active", "ok", "pass"),
    "yellow": ("stalled", "hot", "canceled", "missing", "going down", "killing"),
}
_COLOUR_OF = {word: colour for colour, words in _COLOURS.items() for word in words}
_SAID = {"error": "failed"}  # of a row: how people say it


@dataclass(frozen=True)
class Screen:
    """The terminal that a text is for; without a width it is none, and nothing is left out."""

    width: int | None = None
    height: int | None = None
    has_colour: bool = False

    @classmethod
    def of_stdout(cls) -> Screen:
        from edgeloop.settings import wants_colour

        if not sys.stdout.isatty():
            return cls()
        size = shutil.get_terminal_size()
        return cls(size.columns, size.lines, wants_colour())

    def clipped(self, line: str) -> str:
        return line if self.width is None else shortened(line, self.width)


@dataclass(frozen=True)
class TableColumn:
    """A column. In a narrow terminal those of the least `weight` are left out first. One with a
    `least` width may be shortened to it; others are shown in full or not at all. The last one may
    continue on the next line instead (`wraps`), where its end is what people must read."""

    heading: str
    weight: int = 50
    least: int | None = None
    right: bool = False
    wraps: bool = False


@dataclass(frozen=True)
class FittedTable:
    """`heading` and `lines` as wide as the screen; `left_out` names the columns without room."""

    heading: str
    lines: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def text(self, screen: Screen, below: Sequence[str] = (), most: int | None = None) -> str:
        """With lines `below` it. At most so many lines of it are shown, and how many are not."""
        hidden = 0 if most is None else max(0, len(self.lines) - max(1, most))
        shown = self.lines[: len(self.lines) - hidden] if hidden else self.lines
        more = [f"… and {hidden} more"] if hidden else []
        return "\n".join([self.heading, *shown, *more, *map(screen.clipped, below)])

    @property
    def remark(self) -> list[str]:
        """For people who look for a column that is not there."""
        names = ", ".join(self.left_out)
        return [f"Not shown for lack of room: {names}"] if names else []


def fit(
    columns: Sequence[TableColumn],
    rows: Iterable[Sequence[str]],
    screen: Screen,
    states: Sequence[str] = (),
    coloured: str = "",
) -> FittedTable:
    """`states` has a word per row, by which its cell in the column `coloured` is coloured."""
    cells = [[printable(cell) for cell in row] for row in rows]
    natural = [
        max([_width(column.heading), *(_width(row[place]) for row in cells)])
        for place, column in enumerate(columns)
    ]
    kept, widths = _room(columns, natural, screen.width)

    last = kept[-1]
    indent = " " * sum(widths[place] + GAP for place in kept[:-1])

    def line(texts: Sequence[str], state: str = "") -> str:
        parts = []
        own, *more = _wrapped(texts[last], widths[last]) if columns[last].wraps else [texts[last]]
        for place in kept:
            text = own if place == last else texts[place]
            text = _padded(text, widths[place], columns[place].right)
            is_coloured = screen.has_colour and columns[place].heading == coloured
            parts.append(painted(text, state) if is_coloured else text)
        first = (" " * GAP).join(parts).rstrip()
        return "\n".join([first, *(indent + text for text in more)])

    heading = line([column.heading for column in columns])
    words = states or [""] * len(cells)
    left_out = [column.heading for place, column in enumerate(columns) if place not in widths]
    lines = tuple(line(row, state) for row, state in zip(cells, words, strict=True))
    return FittedTable(heading, lines, tuple(filter(None, left_out)))


def listing(
    columns: Sequence[TableColumn | str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    screen: Screen | None = None,
    states: Sequence[str] = (),
    coloured: str = "state",
    total: str = "",
) -> str:
    """A table for stdout, or for this screen. A heading alone is a column that matters less than
    those before it, and that may be shortened unless it is to the `right`. A terminal also gets the
    `total` and the names of the columns that it has no room for."""
    screen = screen or Screen.of_stdout()
    whole = [
        _usual_column(item, place, item in right) if isinstance(item, str) else item
        for place, item in enumerate(columns)
    ]
    table = fit(whole, rows, screen, states, coloured)
    if screen.width is None:
        return table.text(screen)
    return table.text(screen, [*filter(None, [total]), *table.remark])


def totals(noun: str, states: Sequence[str], order: Sequence[str]) -> str:
    """`24 models: 3 running, 1 failed, 20 complete`, in this order, then other states by name."""
    words = [_SAID.get(state, state) for state in states]
    rest = sorted(set(words).difference(order))
    counted = ", ".join(f"{words.count(word)} {word}" for word in (*order, *rest) if word in words)
    return f"{plural(len(words), noun)}: {counted}" if counted else plural(len(words), noun)


def painted(text: str, state: str) -> str:
    colour = _COLOUR_OF.get(state)
    return click.style(text, fg=colour) if colour and text.strip() else text


def shortened(text: str, width: int) -> str:
    """To that many columns of a terminal, with … where something is missing."""
    if _width(text) <= width:
        return text
    room, kept = width - 1, ""
    for char in text:
        room -= _width(char)
        if room < 0:
            break
        kept += char
    return f"{kept.rstrip()}…" if width > 0 else ""


def _usual_column(heading: str, place: int, is_right: bool) -> TableColumn:
    return TableColumn(heading, 100 - place, None if is_right else _SHORTEST, is_right)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words; a word that is wider than a line is cut where that ends."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if _width(longer) <= width:
            lines[-1] = longer
            continue
        lines += [""] if lines[-1] else []
        for char in word:
            if _width(lines[-1] + char) > width:
                lines.append("")
            lines[-1] += char
    return lines


def _room(
    columns: Sequence[TableColumn], natural: Sequence[int], width: int | None
) -> tuple[list[int], dict[int, int]]:
    """The places of the columns that stay, and how wide each is."""
    if width is None:
        return list(range(len(columns))), dict(enumerate(natural))
    least = [
        own if column.least is None else min(own, max(column.least, _width(column.heading)))
        for own, column in zip(natural, columns, strict=True)
    ]
    by_weight = sorted(range(len(columns)), key=lambda place: -columns[place].weight)
    kept = list(by_weight)
    while len(kept) > 1 and sum(least[place] + GAP for place in kept) - GAP > width:
        kept.pop()
    spare = width - sum(least[place] + GAP for place in kept) + GAP
    widths = {}
    for place in kept:
        added = max(0, min(spare, natural[place] - least[place]))
        widths[place] = min(least[place] + added, width)
        spare -= added
    return sorted(kept), widths


def _padded(text: str, width: int, right: bool) -> str:
    text = shortened(text, width)
    padding = " " * (width - _width(text))
    return padding + text if right else text + padding


def _width(text: str) -> int:
    """Columns of a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


# The table of `status`: its columns, what each of them shows, and the order of the rows.


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
    from edgeloop.models.columns import attention_rank, column_named, natural_key

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
    from edgeloop.models.columns import COLUMNS, SHOWN_AS, visible_columns

    usual = (column.name for column in COLUMNS)
    return list(dict.fromkeys([*usual, *SHOWN_AS.values(), *visible_columns(rows)]))


def _usual_columns(rows: Sequence[Values]) -> list[str]:
    from edgeloop.models.columns import latency_interval, recovery_of, shown_scores

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
    from edgeloop.models.columns import SCORE_COLUMNS, SHOWN_AS, interval_heading, score_meaning

    meaning = score_meaning(rows)
    special = {
        **{name: name for name in _COUNTS},
        **{name: meaning.heading(name) for name in SCORE_COLUMNS},
        INTERVAL: interval_heading(rows),
    }
    return [special.get(name) or SHOWN_AS.get(name, name) for name in names]


def _column(name: str, title: str, is_chosen: bool) -> TableColumn:
    from edgeloop.models.columns import KINDS

    is_number = KINDS.get(name) in ("integer", "number") or name == INTERVAL
    weight = 50 if is_chosen and name != "name" else _WEIGHTS.get(name, 30)
    least = _LEAST.get(name, None if is_number or name in (INTERVAL, RECOVERY) else 12)
    return TableColumn(title, weight, least, right=is_number)


def _cell(name: str, row: Values, now: float) -> str:
    from edgeloop.models.columns import (
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
    from edgeloop.models.columns import is_estimate, is_lower_bound, mean_latency_ms

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
    from edgeloop.models.plan import records_of

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
    from edgeloop.models.columns import mean_latency_ms, natural_key

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
