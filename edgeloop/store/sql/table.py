"""State in SQLite (the embedded default) or PostgreSQL: one code, through SQLAlchemy Core.

All tables of the store are one SQL table of documents; `space` tells them apart. Every operation
is one statement, committed by itself: compare-and-set is an UPDATE that names the version.
"""

from __future__ import annotations

import itertools
import json
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from edgeloop.errors import BadInput, RowChanged, RowExists
from edgeloop.store.base import (
    Blobs,
    Changes,
    Condition,
    Drift,
    Record,
    Store,
    Table,
    Value,
    Values,
    after_prefix,
    check_values,
    merged,
)
from edgeloop.store.blobs import FolderBlobs, url_blobs
from edgeloop.store.location import PostgresLocation, SqliteLocation
from edgeloop.store.sql.database import Database, postgresql_database, sqlite_database

PAGE = 5_000
INSERT_BATCH = 1_000
FEW = 50  # rows that are read by their keys at once
MOST = 4  # a scan reads this many rows in the time that one row by the index takes
MANY = 1_000  # from here on reading all rows is quicker than reading some, and costs the same
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

# Keys sort by their bytes everywhere; PostgreSQL would otherwise use the locale's order.
_KeyText = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_ROWS = sa.Table(
    "edgeloop_rows",
    sa.MetaData(),
    sa.Column("space", _KeyText, primary_key=True),
    sa.Column("key", _KeyText, primary_key=True),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
)

# Built once, and compiled once for each database.
_THIS_KEY = (_ROWS.c.space == sa.bindparam("at_space"), _ROWS.c.key == sa.bindparam("at_key"))
_THIS_ROW = (*_THIS_KEY, _ROWS.c.version == sa.bindparam("at_version"))
_GET = sa.select(_ROWS).where(*_THIS_KEY)
_INSERT = _ROWS.insert()
_UPDATE = (
    _ROWS.update()
    .where(*_THIS_ROW)
    .values(version=sa.bindparam("new_version"), data=sa.bindparam("new_data"))
)
_DELETE = _ROWS.delete().where(*_THIS_ROW)
_PAGE = (
    sa.select(_ROWS)
    .where(_ROWS.c.space == sa.bindparam("at_space"))
    .where(_ROWS.c.key > sa.bindparam("after"), _ROWS.c.key >= sa.bindparam("first"))
    .order_by(_ROWS.c.key)
    .limit(sa.bindparam("size"))
)
_NEXT_SPACE = sa.select(sa.func.min(_ROWS.c.space)).where(
    _ROWS.c.space > sa.bindparam("last"), _ROWS.c.space < sa.bindparam("end")
)
_VERSIONS = sa.select(_ROWS.c.key, _ROWS.c.version).where(_ROWS.c.space == sa.bindparam("at_space"))
# Every row in the order of the file: SQLite's way from an index to its rows costs more than that,
# unless they are few of many. The plus keeps it from using the index.
_VERSIONS_BY_SCAN = sa.select(_ROWS.c.key, _ROWS.c.version).where(
    sa.literal_column("+space") == sa.bindparam("at_space")
)
_HIGHEST_ROW: sa.Select[Any] = sa.select(sa.func.max(sa.literal_column("rowid"))).select_from(_ROWS)
_THESE_KEYS = sa.select(_ROWS).where(
    _ROWS.c.space == sa.bindparam("at_space"),
    _ROWS.c.key.in_([sa.bindparam(f"key{number}") for number in range(FEW)]),
)
_PAGE_OF_PREFIX = _PAGE.where(_ROWS.c.key < sa.bindparam("end"))


class SqlStore(Store):
    def __init__(self, database: Database, blobs: Blobs, description: str) -> None:
        self._database = database
        self._description = description
        self.blobs = blobs

    @property
    def description(self) -> str:
        return self._description

    def models(self, experiment: str) -> Table:
        return SqlTable(self._database, f"models/{experiment}")

    def queue(self, experiment: str) -> Table:
        return SqlTable(self._database, f"queue/{experiment}")

    def usage(self) -> Table:
        return SqlTable(self._database, "usage")

    def experiments(self) -> list[str]:
        """Steps from one space to the next on the key, so the cost is one look-up a space."""
        found: list[str] = []
        last, end = "models/", after_prefix("models/")
        while True:
            rows = self._database.read(_NEXT_SPACE, {"last": last, "end": end})
            if not rows or rows[0][0] is None:
                return found
            last = rows[0][0]
            found.append(last.removeprefix("models/"))

    def close(self) -> None:
        self._database.close()


class SqlTable(Table):
    def __init__(self, database: Database, space: str) -> None:
        self._database = database
        self._space = space

    def get(self, key: str) -> Record | None:
        rows = self._database.read(_GET, {"at_space": self._space, "at_key": key})
        return _record(rows[0]) if rows else None

    def insert(self, key: str, values: Values) -> Record:
        record = _new(key, values)
        try:
            self._database.write(_INSERT, self._columns(record))
        except RowExists:
            raise RowExists(key=key) from None
        return record

    def insert_many(self, rows: Iterable[tuple[str, Values]]) -> None:
        records = (self._columns(_new(key, values)) for key, values in rows)
        while batch := list(itertools.islice(records, INSERT_BATCH)):
            self._database.write_batch(_insert_or_ignore(self._database.dialect), batch)

    def update(self, record: Record, changes: Changes) -> Record:
        changed = _new(record.key, merged(record.values, changes))
        new = {"new_version": changed.version, "new_data": _dumps(changed.values)}
        if self._database.write(_UPDATE, {**self._this(record), **new}) != 1:
            raise RowChanged(key=record.key)
        return changed

    def delete(self, record: Record) -> None:
        if self._database.write(_DELETE, self._this(record)) != 1 and self.get(record.key):
            raise RowChanged(key=record.key)

    def query(
        self,
        prefix: str = "",
        *,
        after: str = "",
        where: Sequence[Condition] = (),
        limit: int | None = None,
    ) -> Iterator[Record]:
        """Page by page, so that no connection is held while the caller works."""
        statement = _PAGE_OF_PREFIX if prefix else _PAGE
        values: dict[str, object] = {"at_space": self._space, "first": prefix}
        for number, condition in enumerate(where):
            statement = statement.where(_clause(condition, number, self._database.dialect))
            values |= {f"value{number}": condition.value}
        if prefix:
            values["end"] = after_prefix(prefix)
        while limit is None or limit > 0:
            size = PAGE if limit is None else min(PAGE, limit)
            page = self._database.read(statement, {**values, "after": after, "size": size})
            yield from map(_record, page)
            if len(page) < size:
                return
            limit = None if limit is None else limit - size
            after = page[-1][1]

    def drift(self, known: Mapping[str, str], mark: str = "") -> Drift:
        """Versions alone first, and not even those where the database says that nothing happened.
        The mark is taken before: what is committed meanwhile is seen now, or told apart next time.
        """
        fresh = self._database.mark()
        if mark and fresh == mark:
            return Drift(mark=mark)
        statement = _VERSIONS_BY_SCAN if self._is_most_of_all(len(known)) else _VERSIONS
        versions = dict(self._database.read(statement, {"at_space": self._space}))
        changed = [key for key, version in versions.items() if known.get(key) != version]
        gone = [key for key in known if key not in versions]
        return Drift(self._read_all(changed), gone, fresh)

    def _is_most_of_all(self, count: int) -> bool:
        """Whether this table's rows are a good part of all that SQLite's file holds."""
        if self._database.dialect != "sqlite":
            return False
        rows = self._database.read(_HIGHEST_ROW, {})
        return bool(rows) and MOST * count > (rows[0][0] or 0)

    def _read_all(self, keys: Sequence[str]) -> list[Record]:
        if len(keys) > MANY:
            wanted = set(keys)
            return [record for record in self.query() if record.key in wanted]
        found: list[Record] = []
        for start in range(0, len(keys), FEW):
            batch = keys[start : start + FEW]
            padded = [*batch, *[batch[-1]] * (FEW - len(batch))]
            values = {f"key{number}": key for number, key in enumerate(padded)}
            rows = self._database.read(_THESE_KEYS, {"at_space": self._space, **values})
            found += map(_record, rows)
        return found

    def _this(self, record: Record) -> dict[str, object]:
        return {"at_space": self._space, "at_key": record.key, "at_version": record.version}

    def _columns(self, record: Record) -> dict[str, object]:
        return {
            "space": self._space,
            "key": record.key,
            "version": record.version,
            "data": _dumps(record.values),
        }


def open_sqlite(location: SqliteLocation) -> SqlStore:
    database = sqlite_database(location, _ROWS)
    return SqlStore(database, FolderBlobs(location.folder / "blobs"), str(location))


def open_postgresql(location: PostgresLocation) -> SqlStore:
    database = postgresql_database(location, _ROWS)
    return SqlStore(database, url_blobs(location.blobs), str(location))


def _new(key: str, values: Values) -> Record:
    check_values(key, values)
    return Record(key, merged(values, {}), secrets.token_hex(8))


def _record(row: tuple[Any, ...]) -> Record:
    _, key, version, data = row
    return Record(key, _loads(data), version)


def _clause(condition: Condition, number: int, dialect: str) -> sa.ColumnElement[bool]:
    """Only identifiers become part of the text; values are always bound."""
    if not condition.column.isidentifier():
        raise BadInput(reason=f"{condition.column!r} is no column")
    column: sa.ColumnElement[Any]
    if dialect == "sqlite":
        path: sa.ColumnElement[str] = sa.literal_column(f"'$.{condition.column}'")
        column = sa.func.json_extract(_ROWS.c.data, path)
    else:
        data = sa.cast(_ROWS.c.data, sa.JSON)
        name: sa.ColumnElement[str] = sa.literal_column(f"'{condition.column}'")
        column = sa.func.json_extract_path_text(data, name)
    value: sa.BindParameter[Any] = sa.bindparam(f"value{number}")
    return column == value if condition.operator == "==" else column != value


def _insert_or_ignore(dialect: str) -> sa.Insert:
    from sqlalchemy.dialects import postgresql, sqlite

    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert(_ROWS).on_conflict_do_nothing()


def _dumps(values: Values) -> str:
    """Columns are flat, so an object in a column's place is free to stand for NaN and infinity."""

    def plain(value: Value) -> object:
        special = isinstance(value, float) and not math.isfinite(value)
        return {"float": str(value)} if special else value

    return _ENCODER.encode({name: plain(value) for name, value in values.items()})


def _loads(text: str) -> dict[str, Value]:
    values: dict[str, Any] = json.loads(text)
    if any(type(value) is dict for value in values.values()):
        return {n: float(v["float"]) if type(v) is dict else v for n, v in values.items()}
    return values
