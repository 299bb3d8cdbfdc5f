"""State in SQLite (the embedded default) or PostgreSQL.

Compare-and-set is an UPDATE that names the version; `queries.sql` has every statement.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from edgeloop.errors import BadInput, RowChanged, RowExists
from edgeloop.store.base import (
    FIRST_DUE,
    NEXT_DUE,
    Blobs,
    Changes,
    Condition,
    Drift,
    Rank,
    ReadRow,
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
from edgeloop.store.sql.database import Database, EncodedRow

PAGE = 5_000
INSERT_BATCH = 1_000
FEW = 50  # rows that are read by their keys at once
MOST = 4  # a scan reads this many rows in the time that one row by the index takes
MANY = 1_000  # from here on reading all rows is quicker than reading some, and costs the same
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class SqlStore(Store):
    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self.blobs = blobs

    @property
    def description(self) -> str:
        return self._database.description

    def models(self, experiment: str) -> Table:
        return SqlTable(self._database, f"models/{experiment}")

    def queue(self, experiment: str) -> Table:
        return SqlTable(self._database, f"queue/{experiment}")

    def usage(self) -> Table:
        return SqlTable(self._database, "usage")

    def now(self) -> float:
        if self._database.dialect == "sqlite":
            return super().now()
        return float(self._database.read("now", {})[0][0])

    def experiments(self) -> list[str]:
        """Steps from one space to the next on the key, so the cost is one lookup per space."""
        found: list[str] = []
        last, end = "models/", after_prefix("models/")
        while True:
            rows = self._database.read("next_space", {"last": last, "end": end})
            if not rows or rows[0][0] is None:
                return found
            last = rows[0][0]
            found.append(last.removeprefix("models/"))

    def close(self) -> None:
        self._database.close()


class SqlTable(Table):
    is_atomic = True

    def __init__(self, database: Database, space: str) -> None:
        self._database = database
        self._space = space

    def get(self, key: str) -> Record | None:
        rows = self._database.read("get", {"space": self._space, "key": key})
        return _record(rows[0]) if rows else None

    def insert(self, key: str, values: Values) -> Record:
        record = _new(key, values)
        _, version, document = _encoded(record)
        columns = {"space": self._space, "key": key, "version": version, "data": document}
        try:
            self._database.write("insert", columns)
        except RowExists:
            raise RowExists(key=key) from None
        return record

    def insert_many(self, rows: Iterable[tuple[str, Values]]) -> None:
        encoded = (_encoded(_new(key, values)) for key, values in rows)
        while batch := list(itertools.islice(encoded, INSERT_BATCH)):
            self._database.insert_missing(self._space, batch)

    def update(self, record: Record, changes: Changes) -> Record:
        changed, values = self._change(record, changes)
        if self._database.write("update", values) != 1:
            raise RowChanged(key=record.key)
        return changed

    def update_with(
        self, record: Record, changes: Changes, other: Table, rows: Mapping[str, Values | None]
    ) -> Record:
        if not isinstance(other, SqlTable) or other._database is not self._database:
            return super().update_with(record, changes, other, rows)
        changed, values = self._change(record, changes)
        put = [_encoded(_new(key, row)) for key, row in rows.items() if row is not None]
        removed_keys = [key for key, row in rows.items() if row is None]
        if not self._database.update_with(values, other._space, put, removed_keys):
            raise RowChanged(key=record.key)
        return changed

    def delete(self, record: Record) -> None:
        this = {"space": self._space, "key": record.key, "version": record.version}
        if self._database.write("delete", this) != 1 and self.get(record.key):
            raise RowChanged(key=record.key)

    def query(
        self,
        prefix: str = "",
        *,
        after: str = "",
        where: Sequence[Condition] = (),
        limit: int | None = None,
    ) -> Iterator[Record]:
        clauses = ""
        values: dict[str, object] = {}
        for number, condition in enumerate(where):
            if not condition.column.isidentifier():  # it becomes part of the statement
                raise BadInput(reason=f"{condition.column!r} is not a column name")
            operator = "=" if condition.operator == "==" else "!="
            clauses += f"AND {self._database.column(condition.column)} {operator} :value{number} "
            values[f"value{number}"] = condition.value
        return self._pages(prefix, after, clauses, values, limit)

    def marked(self, prefix: str, column: str) -> Iterator[Record]:
        """JSON's true is 1 in SQLite."""
        is_true = f"AND CAST({self._database.column(column)} AS TEXT) IN ('true', '1') "
        found = self._pages(prefix, "", is_true, {}, None)
        return (record for record in found if record.values.get(column) is True)

    def _pages(
        self,
        prefix: str,
        after: str,
        clauses: str,
        values: dict[str, object],
        limit: int | None,
    ) -> Iterator[Record]:
        """Page by page, so that no connection is held while the caller works."""
        values |= {"space": self._space, "first": prefix}
        if prefix:
            clauses += "AND key < :end "
            values["end"] = after_prefix(prefix)
        while limit is None or limit > 0:
            size = PAGE if limit is None else min(PAGE, limit)
            page = self._database.read("page", {**values, "after": after, "size": size}, clauses)
            yield from map(_record, page)
            if len(page) < size:
                return
            limit = None if limit is None else limit - size
            after = page[-1][0]

    def due(
        self, now: float, about: Table, prefix: str, rank: Rank, crowd: int = 1
    ) -> Iterator[tuple[Record, ReadRow]]:
        if not isinstance(about, SqlTable) or about._database is not self._database:
            yield from super().due(now, about, prefix, rank, crowd)
            return
        values: dict[str, Any] = {"space": self._space, "other_space": about._space, "now": now}
        values |= {"after": prefix, "end": after_prefix(prefix), "size": FIRST_DUE}
        if crowd > 1:
            page = self._database.read("due", {**values, "skip": random.randrange(crowd)})
            for row in page:
                if rank(row[0]) == rank(row[6]):
                    yield _record(row[:3]), functools.partial(_record_or_none, row[3:6])
        while True:
            page = self._database.read("due", {**values, "skip": 0})
            for row in page:
                yield _record(row[:3]), functools.partial(_record_or_none, row[3:6])
            if len(page) < values["size"]:
                return
            values |= {"after": page[-1][0], "size": NEXT_DUE}

    def prioritized(self, below: float, finished: Sequence[str]) -> Iterator[Record]:
        """By an index of rows with a priority of their own that are neither complete nor failed."""
        self._database.index_priorities()
        rows = self._database.read("prioritized", {"space": self._space, "below": below})
        records = map(_record, rows)
        return (row for row in records if row.values.get("status") not in finished)

    def drift(self, known: Mapping[str, str], mark: str = "") -> Drift:
        """Versions alone first, and not even those where the database says that nothing happened.
        The mark is taken before: what is committed meanwhile is seen now, or told apart next time.
        """
        fresh = self._database.mark()
        if mark and fresh == mark:
            return Drift(mark=mark)
        query = "versions_by_scan" if self._is_most_of_all(len(known)) else "versions"
        versions: dict[str, str] = dict(self._database.read(query, {"space": self._space}))
        changed = [key for key, version in versions.items() if known.get(key) != version]
        gone = [key for key in known if key not in versions]
        return Drift(self._read_all(changed), gone, fresh)

    def _is_most_of_all(self, count: int) -> bool:
        """Whether this table's rows are a good part of all that SQLite's file holds."""
        if self._database.dialect != "sqlite":
            return False
        rows = self._database.read("highest_row", {})
        return bool(rows) and MOST * count > (rows[0][0] or 0)

    def _read_all(self, keys: Sequence[str]) -> list[Record]:
        if len(keys) > MANY:
            wanted = set(keys)
            return [record for record in self.query() if record.key in wanted]
        found: list[Record] = []
        for start in range(0, len(keys), FEW):
            batch = self._database.array(keys[start : start + FEW])
            rows = self._database.read("rows_of_keys", {"space": self._space, "keys": batch})
            found += map(_record, rows)
        return found

    def _change(self, record: Record, changes: Changes) -> tuple[Record, dict[str, object]]:
        """The record after the changes, and the parameters of `update`."""
        changed = _new(record.key, merged(record.values, changes))
        _, version, document = _encoded(changed)
        this = {"space": self._space, "key": record.key, "version": record.version}
        return changed, {**this, "new_version": version, "new_data": document}


def open_sqlite(location: SqliteLocation) -> SqlStore:
    from edgeloop.store.sql.sqlite import SqliteDatabase

    return SqlStore(SqliteDatabase(location), FolderBlobs(location.folder / "blobs"))


def open_postgresql(location: PostgresLocation) -> SqlStore:
    from edgeloop.store.sql.postgres import PostgresDatabase

    return SqlStore(PostgresDatabase(location), url_blobs(location.blobs))


def _new(key: str, values: Values) -> Record:
    check_values(key, values)
    return Record(key, merged(values, {}), os.urandom(8).hex())


def _encoded(record: Record) -> EncodedRow:
    return record.key, record.version, _dumps(record.values)


def _record(row: tuple[Any, ...]) -> Record:
    key, version, data = row
    return Record(key, _loads(data), version)


def _record_or_none(row: tuple[Any, ...]) -> Record | None:
    return None if row[0] is None else _record(row)


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
