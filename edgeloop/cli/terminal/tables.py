"""Tables that fit the terminal: which columns stay, what is shortened, and the colours of states.

Output that goes elsewhere (a file, a pipe) has every column in full and no colour: it does not
depend on the window that a command was typed in.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import click

from edgeloop.cli.output import plural, printable

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
