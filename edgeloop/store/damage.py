"""Rows that cannot be read: left out of every answer, named once, and never written over.

Another tool wrote them, or the disk lost some bits. Whoever reads a table gets the others.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from edgeloop.errors import RowDamaged
from edgeloop.store.base import LARGEST_INT, Record, Value, is_unicode

Row = TypeVar("Row")

NAMED = 5  # rows of a table that are named; a disk that dies has thousands
_LOG = logging.getLogger("edgeloop.store")
_PLAIN = {str, int, float, bool}
_MOST_COLUMNS = 10_000
_known_columns: set[str] = set()
_named: dict[tuple[str, str], set[str]] = {}
_left_out = Counter[str]()


@dataclass(frozen=True)
class LostRow:
    """A row that was left out, as the store gave it."""

    table: str
    key: object
    reason: str
    raw: object


_collected: ContextVar[list[LostRow] | None] = ContextVar("collected", default=None)


@contextlib.contextmanager
def lost_rows() -> Iterator[list[LostRow]]:
    """Collects rows that cannot be read, instead of warnings: for whoever checks or saves a
    store, in this thread."""
    found = list[LostRow]()
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def rows_left_out() -> int:
    """How often a row was left out in this process: whoever compares two moments knows whether an
    answer lacks one."""
    return _left_out.total()


class UnreadableRow(Exception):
    """Why a row cannot be read."""


class Place:
    """A table, for those who read it: what its rows are called in messages."""

    def __init__(self, store: str, table: str) -> None:
        self._store = store
        self._table = table

    def readable(self, rows: Iterable[Row], decode: Callable[[Row], Record]) -> Iterator[Record]:
        """The rows that can be decoded; the others are named on stderr."""
        for row in rows:
            try:
                yield decode(row)
            except UnreadableRow as error:
                self.leave_out(row, *error.args)

    def required(self, row: Row, decode: Callable[[Row], Record]) -> Record:
        """The row, or RowDamaged."""
        try:
            return decode(row)
        except UnreadableRow as error:
            key, reason = error.args
            raise RowDamaged(key=key, table=self._table, store=self._store, reason=reason) from None

    def leave_out(self, row: object, key: object, reason: str) -> None:
        collected = _collected.get()
        if collected is not None:
            collected.append(LostRow(self._table, key, reason, row))
            return
        _left_out[self._table] += 1
        named = _named.setdefault((self._store, self._table), set())
        if repr(key) in named or len(named) >= NAMED:
            return
        named.add(repr(key))
        more = "; others will not be named" if len(named) == NAMED else ""
        _LOG.warning(
            "edgeloop: the row %.200r of %s in the store %s is left out, because it cannot be "
            "read: %s%s. 'edgeloop store check' says more.",
            *(key, self._table, self._store, reason, more),
        )


def checked_record(key: object, version: object, values: dict[str, Value]) -> Record:
    """Refuses what nobody could write back."""
    if type(key) is not str or type(version) is not str or not is_unicode(key) or "\0" in key:
        raise UnreadableRow(key, "its key or version is not text")
    if not values.keys() <= _known_columns:
        _check_columns(key, values)
    for value in values.values():
        if type(value) is int and not -LARGEST_INT <= value <= LARGEST_INT:
            raise UnreadableRow(key, "it has a number of more than 64 bits")
    return Record(key, values, version)


def values_of_json(key: object, text: object) -> dict[str, Value]:
    """The columns of a document. A column that is no plain value becomes its JSON."""
    if type(text) is not str:
        raise UnreadableRow(key, "it is not text")
    try:
        values: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableRow(key, "it is not JSON") from None
    if type(values) is not dict:
        raise UnreadableRow(key, "it is not a JSON object")
    if not set(map(type, values.values())) <= _PLAIN:
        values = {name: _plain(value) for name, value in values.items() if value is not None}
    if not text.isascii() or "\\u" in text:
        texts = (part for part in (*values, *values.values()) if type(part) is str)
        if not all(map(is_unicode, texts)):
            raise UnreadableRow(key, "it holds bytes that are no text")
    return values


def _plain(value: Any) -> Value:
    """Columns are flat, so an object in a column's place is free to stand for NaN and infinity."""
    if type(value) in _PLAIN:
        return value  # type: ignore[no-any-return]
    if type(value) is dict and value.get("float") in ("nan", "inf", "-inf"):
        return float(value["float"])
    return json.dumps(value)


def _check_columns(key: object, values: dict[str, Value]) -> None:
    for name in values.keys() - _known_columns:
        if type(name) is not str or not name.isidentifier():
            raise UnreadableRow(key, f"it has a column named {name[:100]!r}")
        if len(_known_columns) < _MOST_COLUMNS:
            _known_columns.add(name)
