"""Output for terminals and as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util import values

if TYPE_CHECKING:
    from edgeloop.store import Value


LONGEST_SENTENCE = 1_500
_LONGEST_END = 200
plural = values.plural


def print_json(rows: Iterable[Mapping[str, object]]) -> None:
    """An array of objects. NaN and infinity, which JSON lacks, become null."""
    click.echo(json.dumps([_plain(row) for row in rows], indent=2, ensure_ascii=False))


def _plain(item: object) -> object:
    from edgeloop.store import json_safe

    if isinstance(item, Mapping):
        return {name: _plain(inner) for name, inner in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(inner) for inner in item]
    return json_safe(item) if isinstance(item, float) else item


def printable(text: str) -> str:
    """No control characters from a row, a file's name or a board reach the terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def one_line(sentence: str) -> str:
    """An error for the terminal. Names of files and tensors are part of it, and may hold anything;
    its end says what to do."""
    line = printable(" ".join(sentence.split("\n")).strip())
    if len(line) <= LONGEST_SENTENCE:
        return line
    return f"{line[: LONGEST_SENTENCE - _LONGEST_END]} … {line[-_LONGEST_END:]}"


def shown(place: str) -> str:
    """A folder below the current one, relative to it."""
    with contextlib.suppress(ValueError):
        return str(Path(place).relative_to(Path.cwd()))
    return place


def short_count(value: Value | None) -> str:
    """`412M`, `1.6G`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "" if value is None else str(value)
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:g}"
