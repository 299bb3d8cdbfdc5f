"""How things look on a terminal, and as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from edgeloop.store import Value, json_safe


def print_json(rows: Iterable[Mapping[str, object]]) -> None:
    """An array of objects; NaN and infinity, which JSON does not have, are null."""
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    click.echo(json.dumps(plain, indent=2, ensure_ascii=False))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> str:
    """Aligned columns. Plain text on purpose: it starts fast, and pipes and logs can read it."""
    lines = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]

    def aligned(line: list[str]) -> str:
        cells = zip(line, widths, headings, strict=True)
        return "  ".join(
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in cells
        ).rstrip()

    return "\n".join(map(aligned, lines))


def printable(text: str) -> str:
    """No control characters from a row, a file's name or a board reach the terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def shown(place: str) -> str:
    """A folder at or below the one we stand in, as a person would say it."""
    with contextlib.suppress(ValueError):
        return str(Path(place).relative_to(Path.cwd()))
    return place


def short_count(value: Value | None) -> str:
    """412M, 1.6G: as people say it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "" if value is None else str(value)
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:g}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _plain(value: object) -> object:
    return json_safe(value) if isinstance(value, float) else value
