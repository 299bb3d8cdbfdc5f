"""The status table as CSV, there and back.

A spreadsheet runs a cell that begins with =, +, - or @ as a formula, so such texts get an
apostrophe in front, which it shows as text; reading takes it off again. Numbers stay numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from edgeloop.errors import BadCsv
from edgeloop.models.row import KINDS
from edgeloop.store import Value, Values

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(rows: Iterable[Values], columns: Sequence[str], file: TextIO) -> None:
    writer = csv.writer(_Lines(file), lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([cell(column, row.get(column)) for column in columns] for row in rows)


def read_csv(path: Path) -> list[dict[str, Value]]:
    """Rows as they were written; an empty cell is a column that is not filled."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            return [
                {name: _value(name, text) for name, text in row.items() if text} for row in reader
            ]
    except (OSError, ValueError, csv.Error, TypeError, AttributeError) as error:
        raise BadCsv(file=path, reason=str(error)) from None


def cell(column: str, value: Value | None) -> str:
    """A text that reading would take for a number gets the apostrophe too."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value) if isinstance(value, float) else str(value)
    if value.startswith((*_FORMULA_STARTS, "'")) or (value and _value(column, value) != value):
        return "'" + value
    return value


@dataclass(frozen=True)
class _Lines:
    """csv quotes a lone CR or LF only if both end its lines; Unix tools want lines to end in LF."""

    file: TextIO

    def write(self, line: str) -> int:
        return self.file.write(line.removesuffix("\r\n") + "\n")


def _value(column: str, text: str) -> Value:
    """By the column's kind; a column we do not know is text, unless it reads as a plain number."""
    if text.startswith("'"):
        return text[1:]
    kind = KINDS.get(column)
    if kind in ("text", "json"):
        return text
    if text in ("True", "False"):
        return text == "True"
    for convert in (int, float):
        try:
            number = convert(text)
        except ValueError:
            continue
        if str(number) == text or kind is not None:
            return number
    return text
