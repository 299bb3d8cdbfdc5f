"""Rows out of a damaged SQLite file, from a copy of it: the file itself is not touched.

First by SQLite, range by range: what it cannot read is left out, down to single rows. Where it
cannot even open the file, or finds nothing in it, the pages are read without it, by the file
format: https://www.sqlite.org/fileformat2.html. That also finds rows of pages that are no longer
in use, so it comes last.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Cells = tuple[Any, Any, Any, Any]  # space, key, version, document

_ALL = "SELECT space, key, version, data FROM edgeloop_rows NOT INDEXED WHERE rowid BETWEEN ? AND ?"
_LAST = "SELECT max(rowid) FROM edgeloop_rows"
_LARGEST_ROW = 8_000_000  # bytes; ours have a million at most
_MOST_ROWS = 50_000_000
_MOST_FAILURES, _MOST_IN_VAIN = 100_000, 2_000
_LEAF = 0x0D  # the type of a page that holds rows
_TABLES = re.compile(r"models/.+|usage", re.DOTALL)


def salvaged(file: Path) -> Sequence[Cells]:
    with tempfile.TemporaryDirectory(prefix="edgeloop-salvage-") as folder:
        copy = Path(folder) / file.name
        for ending in ("", "-wal"):
            source = file.with_name(file.name + ending)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(source, copy.with_name(copy.name + ending))
        return _by_sqlite(copy) or _by_pages(file)


def _by_sqlite(file: Path) -> list[Cells]:
    found: list[Cells] = []
    connection = sqlite3.connect(file)
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        last = _last_row(connection, file.stat().st_size)
        for cells in _in_range(connection, 1, last):
            found.append(cells)
    except (sqlite3.Error, UnicodeDecodeError):
        return found
    else:
        return found
    finally:
        connection.close()


def _last_row(connection: sqlite3.Connection, size: int) -> int:
    """Where a page on the way to the last row is lost: as many as the file could hold, at most."""
    with contextlib.suppress(sqlite3.Error):
        last = connection.execute(_LAST).fetchone()[0]
        if isinstance(last, int) and last < _MOST_ROWS:
            return last
    return min(size // 16, _MOST_ROWS)


def _in_range(connection: sqlite3.Connection, first: int, last: int) -> Iterator[Cells]:
    """Halves a range that cannot be read, until what is lost are single rows. Raises where nothing
    can be read at all."""
    pending = [(first, last)] if first <= last else []
    failures, has_rows = 0, False
    while pending:
        first, last = pending.pop()
        if failures > (_MOST_FAILURES if has_rows else _MOST_IN_VAIN):
            raise sqlite3.DatabaseError("too much of it is lost")
        try:
            rows = connection.execute(_ALL, (first, last)).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if "no such table" in str(error) or "not a database" in str(error):
                raise
            failures += 1
            if first < last:
                middle = (first + last) // 2
                pending += [(middle + 1, last), (first, middle)]
            continue
        has_rows = has_rows or bool(rows)
        yield from rows


def _by_pages(file: Path) -> list[Cells]:
    content = file.read_bytes()
    size = _page_size(content)
    found: dict[tuple[str, str], Cells] = {}
    for number in range(len(content) // size):
        start = number * size
        for cells in _rows_of_page(content, start, start + (100 if number == 0 else 0), size):
            found[cells[0], cells[1]] = cells
    return list(found.values())


def _page_size(content: bytes) -> int:
    """As the header says, if that can be true."""
    said = int.from_bytes(content[16:18], "big")
    said = 65_536 if said == 1 else said
    return said if 512 <= said <= 65_536 and said & (said - 1) == 0 else 4_096


def _rows_of_page(content: bytes, start: int, header: int, size: int) -> Iterator[Cells]:
    if content[header] != _LEAF:
        return
    count = int.from_bytes(content[header + 3 : header + 5], "big")
    for number in range(min(count, size // 2)):
        at = header + 8 + 2 * number
        place = int.from_bytes(content[at : at + 2], "big")
        with contextlib.suppress(IndexError, ValueError, struct.error):
            cells = _row(_payload(content, start + place, size))
            if cells is not None:
                yield cells


def _payload(content: bytes, at: int, size: int) -> bytes:
    """The bytes of a row. Long ones continue on other pages, each of which names the next."""
    length, at = _number(content, at)
    _, at = _number(content, at)  # the row's id
    if length > _LARGEST_ROW:
        raise ValueError
    most = size - 35
    if length <= most:
        return content[at : at + length]
    least = (size - 12) * 32 // 255 - 23
    local = least + (length - least) % (size - 4)
    local = local if local <= most else least
    parts, missing = [content[at : at + local]], length - local
    page = int.from_bytes(content[at + local : at + local + 4], "big")
    while missing > 0 and 0 < page <= len(content) // size:
        start = (page - 1) * size
        parts.append(content[start + 4 : start + 4 + min(missing, size - 4)])
        missing -= size - 4
        page = int.from_bytes(content[start : start + 4], "big")
    return b"".join(parts)


def _row(payload: bytes) -> Cells | None:
    """The four texts of a row of ours; None if it is something else."""
    end, at = _number(payload, 0)
    kinds: list[int] = []
    while at < end and len(kinds) < 5:
        kind, at = _number(payload, at)
        kinds.append(kind)
    if len(kinds) != 4 or any(kind < 13 or kind % 2 == 0 for kind in kinds):
        return None
    texts, at = [], end
    for kind in kinds:
        length = (kind - 13) // 2
        texts.append(payload[at : at + length].decode(errors="surrogateescape"))
        at += length
    if at > len(payload) or not _TABLES.fullmatch(texts[0]):
        return None
    return texts[0], texts[1], texts[2], texts[3]


def _number(content: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for index in range(8):
        byte = content[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | content[at + 8], at + 9
