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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from edgeloop.errors import BadInput, RowChanged, RowExists, StoreDamaged
from edgeloop.store.base import (
    FIRST_DUE,
    MODELS_TABLE,
    NEXT_DUE,
    QUEUE_TABLE,
    USAGE_TABLE,
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
    is_unicode,
    merged,
)
from edgeloop.store.blobs import FolderBlobs, url_blobs
from edgeloop.store.damage import Place, checked_record, values_of_json
from edgeloop.store.location import PostgresLocation, SqliteLocation
from edgeloop.store.sql.database import Database, EncodedRow, OddDocument, Rows

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
        return SqlTable(self._database, f"{MODELS_TABLE}{experiment}")

    def queue(self, experiment: str) -> Table:
        return SqlTable(self._database, f"{QUEUE_TABLE}{experiment}")

    def usage(self) -> Table:
        return SqlTable(self._database, USAGE_TABLE)

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
            space = rows[0][0]
            if type(space) is not str or not is_unicode(space) or space <= last:
                reason = "its experiments are out of order"
                raise StoreDamaged(store=self.description, reason=reason)
            last = space
            found.append(last.removeprefix("models/"))

    def check(self) -> Iterator[str]:
        yield from self._database.check()
        spaces = [row[0] for row in self._database.read("spaces", {})]
        for space in spaces:
            known = (MODELS_TABLE, QUEUE_TABLE)
            if not (isinstance(space, str) and (space.startswith(known) or space == USAGE_TABLE)):
                yield f"there are rows of an unknown table {space!r:.100}"

    def saved_rows(self) -> Iterator[tuple[str, Record]]:
        places: dict[str, Place] = {}
        for space, *row in self._database.saved_rows():
            if isinstance(space, str) and (space.startswith(MODELS_TABLE) or space == USAGE_TABLE):
                place = places.setdefault(space, Place(self.description, space))
                yield from ((space, found) for found in place.readable([tuple(row)], _record))

    def close(self) -> None:
        self._database.close()


class SqlTable(Table):
    is_atomic = True

    def __init__(self, database: Database, space: str) -> None:
        self._database = database
        self._space = space
        self._place = Place(database.description, space)

    def get(self, key: str) -> Record | None:
        rows = self._database.read("get", {"space": self._space, "key": key})
        return self._place.required(rows[0], _record) if rows else None

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

    def put(self, key: str, values: Values | None) -> None:
        """Without a look at what is there, which need not be readable."""
        if values is None:
            self._database.write("remove", {"space": self._space, "key": key, "keys": [key]})
            return
        _, version, document = _encoded(_new(key, values))
        columns = {"space": self._space, "key": key, "version": version, "data": document}
        self._database.write("put", columns)

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
        is_wanted = functools.partial(_meets, where)
        for number, condition in enumerate(where):
            if not condition.column.isidentifier():  # it becomes part of the statement
                raise BadInput(reason=f"{condition.column!r} is not a column name")
            operator = "=" if condition.operator == "==" else "!="
            clauses += f"AND {self._database.column(condition.column)} {operator} :value{number} "
            values[f"value{number}"] = condition.value
        return self._pages(prefix, after, clauses, values, limit, is_wanted)

    def marked(self, prefix: str, column: str) -> Iterator[Record]:
        """JSON's true is 1 in SQLite."""
        is_true = f"AND CAST({self._database.column(column)} AS TEXT) IN ('true', '1') "
        return self._pages(
            *(prefix, "", is_true, {}, None), lambda record: record.values.get(column) is True
        )

    def _pages(
        self,
        prefix: str,
        after: str,
        clauses: str,
        values: dict[str, object],
        limit: int | None,
        is_wanted: Callable[[Record], bool],
    ) -> Iterator[Record]:
        """Page by page, so that no connection is held while the caller works. `is_wanted` says the
        same as the clauses, for when the database cannot: one row that is no JSON fails them."""
        values |= {"space": self._space, "first": prefix}
        keys = ""
        if prefix:
            keys = "AND key < :end "
            values["end"] = after_prefix(prefix)
        while limit is None or limit > 0:
            size = PAGE if limit is None else min(PAGE, limit)
            try:
                query = {**values, "after": after, "size": size}
                page = self._database.read("page", query, keys + clauses)
            except OddDocument:
                if not clauses:
                    raise self._out_of_order() from None
                clauses = ""
                continue
            found = filter(is_wanted, self._place.readable(page, _record))
            for record in itertools.islice(found, limit):
                limit = None if limit is None else limit - 1
                yield record
            if len(page) < size:
                return
            after = self._last_key(page, after)

    def _last_key(self, page: Rows, before: str) -> str:
        """Where to read on: never where it was read already, whatever a damaged file says."""
        keys = [row[0] for row in page if type(row[0]) is str and is_unicode(row[0])]
        if not keys or keys[-1] <= before:
            raise self._out_of_order()
        return keys[-1]

    def _out_of_order(self) -> StoreDamaged:
        reason = f"the rows of {self._space} are out of order"
        return StoreDamaged(store=self._database.description, reason=reason)

    def due(
        self, now: float, about: Table, prefix: str, rank: Rank, crowd: int = 1
    ) -> Iterator[tuple[Record, ReadRow]]:
        if not isinstance(about, SqlTable) or about._database is not self._database:
            yield from super().due(now, about, prefix, rank, crowd)
            return
        try:
            yield from self._due_with_rows(now, about, prefix, rank, crowd)
        except OddDocument:
            yield from super().due(now, about, prefix, rank, crowd)

    def _due_with_rows(
        self, now: float, about: SqlTable, prefix: str, rank: Rank, crowd: int
    ) -> Iterator[tuple[Record, ReadRow]]:
        values: dict[str, Any] = {"space": self._space, "other_space": about._space, "now": now}
        values |= {"after": prefix, "end": after_prefix(prefix), "size": FIRST_DUE}
        if crowd > 1:
            page = self._database.read("due", {**values, "skip": random.randrange(crowd)})
            best = [row for row in page if rank(str(row[0])) == rank(str(row[6]))]
            yield from self._with_rows(best, about)
        while True:
            page = self._database.read("due", {**values, "skip": 0})
            yield from self._with_rows(page, about)
            if len(page) < values["size"]:
                return
            values |= {"after": self._last_key(page, values["after"]), "size": NEXT_DUE}

    def _with_rows(self, page: Rows, about: SqlTable) -> Iterator[tuple[Record, ReadRow]]:
        for row in page:
            for hint in self._place.readable([row[:3]], _record):
                if row[3] is None:
                    yield hint, lambda: None
                for record in about._place.readable([row[3:6]] if row[3] else (), _record):
                    yield hint, functools.partial(_same, record)

    def prioritized(self, below: float, finished: Sequence[str]) -> Iterator[Record]:
        """By an index of rows with a priority of their own that are neither complete nor failed."""
        self._database.index_priorities()
        try:
            rows = self._database.read("prioritized", {"space": self._space, "below": below})
        except OddDocument:
            return super().prioritized(below, finished)
        records = self._place.readable(rows, _record)
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
            found += self._place.readable(rows, _record)
        return found

    def _change(self, record: Record, changes: Changes) -> tuple[Record, dict[str, object]]:
        """The record after the changes, and the parameters of `update`."""
        check_values(record.key, changes, record.values)
        changed = _fresh(record.key, merged(record.values, changes))
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
    return _fresh(key, merged(values, {}))


def _fresh(key: str, values: Values) -> Record:
    return Record(key, values, os.urandom(8).hex())


def _encoded(record: Record) -> EncodedRow:
    return record.key, record.version, _dumps(record.values)


def _record(row: tuple[Any, ...]) -> Record:
    key, version, data = row
    return checked_record(key, version, values_of_json(key, data))


def _same(record: Record) -> Record | None:
    return record


def _meets(where: Sequence[Condition], record: Record) -> bool:
    for condition in where:
        value = record.values.get(condition.column)
        if value is None or (value == condition.value) != (condition.operator == "=="):
            return False
    return True


def _dumps(values: Values) -> str:
    """Columns are flat, so an object in a column's place is free to stand for NaN and infinity."""

    def plain(value: Value) -> object:
        special = isinstance(value, float) and not math.isfinite(value)
        return {"float": str(value)} if special else value

    return _ENCODER.encode({name: plain(value) for name, value in values.items()})
