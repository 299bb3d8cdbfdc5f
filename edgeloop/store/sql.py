"""State in SQLite or PostgreSQL."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import random
import re
import shutil
import sqlite3
import stat
import struct
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from edgeloop._util.files import make_folder
from edgeloop._util.retry import retry
from edgeloop.errors import (
    BadInput,
    EdgeloopError,
    RowChanged,
    RowExists,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.node.files import NOT_A_FOLDER, FolderBlobs
from edgeloop.store.base import (
    FIRST_DUE,
    MODELS_TABLE,
    NEXT_DUE,
    QUEUE_TABLE,
    READ_IN_PART,
    USAGE_TABLE,
    Blobs,
    Changes,
    Condition,
    Drift,
    Place,
    Rank,
    ReadRow,
    Record,
    Store,
    Table,
    Value,
    Values,
    after_prefix,
    check_values,
    checked_record,
    is_unicode,
    merged,
    parsed,
    plain_values,
    projected,
    values_of_json,
)
from edgeloop.store.location import PostgresLocation, SqliteLocation

# State in SQLite (the embedded default) or PostgreSQL.
#
# Compare-and-set is an UPDATE that names the version; `queries.sql` has every statement.


PAGE = 250  # rows in memory at a time: they may be of 8 kB, and up to 1 MB, each
PROJECTED_PAGE = 5_000
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
        names: list[str] = []
        last, end = "models/", after_prefix("models/")
        while True:
            rows = self._database.read("next_space", {"last": last, "end": end})
            if not rows or rows[0][0] is None:
                return names
            space = rows[0][0]
            if type(space) is not str or not is_unicode(space) or space <= last:
                reason = "its experiments are out of order"
                raise StoreDamaged(store=self.description, reason=reason)
            last = space
            names.append(last.removeprefix("models/"))

    def check(self) -> Iterator[str]:
        yield from self._database.check()
        spaces = [row[0] for row in self._database.read("spaces", {})]
        for space in spaces:
            prefixes = (MODELS_TABLE, QUEUE_TABLE)
            if not (
                isinstance(space, str) and (space.startswith(prefixes) or space == USAGE_TABLE)
            ):
                yield f"there are rows of an unknown table {space!r:.100}"

    def saved_rows(self) -> Iterator[tuple[str, Record]]:
        places: dict[str, Place] = {}
        for space, *row in self._database.saved_rows():
            if isinstance(space, str) and (space.startswith(MODELS_TABLE) or space == USAGE_TABLE):
                place = places.setdefault(space, Place(self.description, space))
                yield from ((space, record) for record in place.readable([tuple(row)], _record))

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
        columns: Sequence[str] | None = None,
    ) -> Iterator[Record]:
        clauses = ""
        values: dict[str, object] = {}
        is_wanted = functools.partial(_meets, where)
        for name in (*(condition.column for condition in where), *(columns or ())):
            if not name.isidentifier():  # it becomes part of the statement
                raise BadInput(reason=f"{name!r} is not a column name")
        for number, condition in enumerate(where):
            operator = "=" if condition.operator == "==" else "!="
            clauses += f"AND {self._database.column(condition.column)} {operator} :value{number} "
            values[f"value{number}"] = condition.value
        return self._pages(
            prefix,
            after=after,
            clauses=clauses,
            values=values,
            limit=limit,
            is_wanted=is_wanted,
            columns=columns,
        )

    def marked(self, prefix: str, column: str) -> Iterator[Record]:
        """JSON's true is 1 in SQLite."""
        is_true = f"AND CAST({self._database.column(column)} AS TEXT) IN ('true', '1') "
        return self._pages(
            prefix,
            after="",
            clauses=is_true,
            values={},
            limit=None,
            is_wanted=lambda record: record.values.get(column) is True,
        )

    def _pages(
        self,
        prefix: str,
        *,
        after: str,
        clauses: str,
        values: dict[str, object],
        limit: int | None,
        is_wanted: Callable[[Record], bool],
        columns: Sequence[str] | None = None,
    ) -> Iterator[Record]:
        """Page by page, so that no connection is held while the caller works. `is_wanted` says the
        same as the clauses, for when the database cannot: one row that is no JSON fails them, and
        the choice of columns too."""
        values |= {"space": self._space, "first": prefix}
        keys = ""
        if prefix:
            keys = "AND key < :end "
            values["end"] = after_prefix(prefix)
        by_database = columns
        while limit is None or limit > 0:
            most = PAGE if by_database is None else PROJECTED_PAGE
            size = most if limit is None else min(most, limit)
            query = {**values, "after": after, "size": size}
            try:
                page = self._database.page(query, keys + clauses, by_database)
            except OddDocument:
                if not clauses and by_database is None:
                    raise self._out_of_order() from None
                clauses, by_database = "", None
                continue
            records: Iterator[Record]
            if by_database is None:
                whole = filter(is_wanted, self._place.readable(page, _record))
                records = (projected(record, columns) for record in whole)
            else:  # the clauses have been applied
                decode = functools.partial(_projected_record, by_database)
                records = self._place.readable(page, decode)
            for record in itertools.islice(records, limit):
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
        if not known:
            return Drift(self.query(), (), fresh)
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

    def _read_all(self, keys: Sequence[str]) -> Iterable[Record]:
        if len(keys) > MANY:
            changed_keys = set(keys)
            return (record for record in self.query() if record.key in changed_keys)
        records: list[Record] = []
        for start in range(0, len(keys), FEW):
            batch = self._database.array(keys[start : start + FEW])
            rows = self._database.read("rows_of_keys", {"space": self._space, "keys": batch})
            records += self._place.readable(rows, _record)
        return records

    def _change(self, record: Record, changes: Changes) -> tuple[Record, dict[str, object]]:
        """The record after the changes, and the parameters of `update`."""
        check_values(record.key, changes, record.values)
        changed = _fresh(record.key, merged(record.values, changes))
        _, version, document = _encoded(changed)
        this = {"space": self._space, "key": record.key, "version": record.version}
        return changed, {**this, "new_version": version, "new_data": document}


def open_sqlite(location: SqliteLocation) -> SqlStore:
    return SqlStore(SqliteDatabase(location), FolderBlobs(location.folder / "blobs"))


def open_postgresql(location: PostgresLocation) -> SqlStore:
    from edgeloop.store.files import url_blobs
    from edgeloop.store.postgres import PostgresDatabase

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


def _projected_record(columns: Sequence[str], row: tuple[Any, ...]) -> Record:
    """`Database.projection` gives an object of these columns, or a list with null for none."""
    key, _, data = row
    document = parsed(key, data)
    if type(document) is list:
        pairs = zip(columns, document, strict=False)
        document = {name: value for name, value in pairs if value is not None}
    return checked_record(key, READ_IN_PART, plain_values(key, document, data))


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


# What SQLite and PostgreSQL have in common: named queries, pooled connections, a schema that is
# created by the first write, and errors put into our words.


Result = TypeVar("Result")
Rows = Sequence[tuple[Any, ...]]
EncodedRow = tuple[str, str, str]  # key, version, document
Action = Callable[[Any], Result]  # given a connection of sqlite3 or psycopg

BUSY_TIMEOUT_S = 30
CONNECTIONS = 15
IDLE_CONNECTIONS = 5
SAVED_PAGE = 1_000
ATTEMPTS = 4  # of a transaction that the server rolled back because of others


class NoSchema(Exception):
    """The database exists, our table does not."""


class OddDocument(Exception):
    """A query that looks into documents met one that is no JSON."""


class Database(ABC):
    """One database. Every method is one transaction."""

    dialect: str
    parameter: str  # how a named parameter is written in this dialect
    errors: tuple[type[Exception], ...]

    def __init__(self, description: str) -> None:
        self.description = description
        self.pool = Pool(self.connect, description)
        self._has_index = False

    @abstractmethod
    def connect(self) -> Any:
        """A new connection in autocommit mode."""

    @abstractmethod
    def explain(self, error: Exception) -> Exception:
        """Our error for one of the driver's; NoSchema where our table is missing."""

    @abstractmethod
    def create_schema(self, connection: Any) -> None:
        """Create our table unless it exists."""

    @abstractmethod
    def insert_missing(self, space: str, rows: Sequence[EncodedRow]) -> None:
        """Insert the rows whose keys are free."""

    @abstractmethod
    def update_with(
        self,
        values: Mapping[str, object],
        other_space: str,
        put: Sequence[EncodedRow],
        removed_keys: Sequence[str],
    ) -> bool:
        """The query `update` with these values and, if it changes a row, overwrite and remove rows
        of another space in the same transaction. False where the row has another version."""

    @abstractmethod
    def mark(self) -> str:
        """Equal to an earlier one: nothing was committed since. Empty where that is unknown."""

    @abstractmethod
    def column(self, name: str) -> str:
        """An expression for a column of the document as text; `name` is an identifier."""

    @abstractmethod
    def projection(self, columns: Sequence[str]) -> str:
        """An expression for these columns of the document: a JSON object, or a JSON array in their
        order. The document is parsed once for all of them."""

    @abstractmethod
    def array(self, values: Sequence[str]) -> object:
        """Several texts as one parameter."""

    def page(
        self, values: Mapping[str, object], clauses: str, columns: Sequence[str] | None
    ) -> Rows:
        """The next rows of a space, with these columns or whole."""
        document = "data" if columns is None else self.projection(columns)
        return self.read("page", values, clauses, document)

    def read(
        self,
        query: str,
        values: Mapping[str, object],
        clauses: str = "",
        document: str = "data",
    ) -> Rows:
        text = self.text(query)
        if "{clauses}" in text:
            text = text.replace("{clauses}", _in_dialect(clauses, self.parameter))
            text = text.replace("{document}", document)
        try:
            return self.run(lambda connection: connection.execute(text, values).fetchall())
        except NoSchema:
            self.check_begun()
            return []

    def write(self, query: str, values: Mapping[str, object]) -> int:
        """How many rows the query changed."""
        text = self.text(query)

        def execute(connection: Any) -> int:
            return int(connection.execute(text, values).rowcount)

        return self.run_with_schema(execute)

    def index_priorities(self) -> None:
        """Stores of older versions have no such index. Where we may not create one, or the table
        is still missing, queries do without."""
        if self._has_index:
            return
        with contextlib.suppress(EdgeloopError, NoSchema):
            if not self.read("has_priorities_index", {}):
                with contextlib.suppress(OddDocument):  # queries do without, until it is repaired
                    self.run(lambda connection: connection.execute(self.text("index_priorities")))
            self._has_index = True

    def check(self) -> Iterator[str]:
        """What the database says is wrong with itself."""
        return iter(())

    def saved_rows(self) -> Iterator[Sequence[Any]]:
        """Space, key, version and document of every row that can be reached."""
        last: Mapping[str, object] = {"space": "", "key": ""}
        while page := self.read("everything", {**last, "size": SAVED_PAGE}):
            yield from page
            last = {"space": page[-1][0], "key": page[-1][1]}

    def text(self, query: str) -> str:
        return _queries(self.dialect, self.parameter)[query]

    def run_with_schema(self, action: Action[Result]) -> Result:
        try:
            return self.run(action)
        except NoSchema:
            self.check_begun()
            self.run(self.create_schema)
            return self.run(action)

    def run(self, action: Action[Result]) -> Result:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self.pool.run(action)
            except self.errors as error:
                if attempt < ATTEMPTS and self.was_rolled_back(error):
                    continue
                raise self.explain(error) from None
        raise AssertionError

    def check_begun(self) -> None:  # noqa: B027 - a server's database may well be another's, too
        """Raises StoreDamaged where our table is missing although it must have been there."""

    def was_rolled_back(self, error: Exception) -> bool:
        """Whether the server ended this transaction for the sake of others; it may be repeated."""
        return False

    def close(self) -> None:
        self.pool.close()


class Pool:
    """Connections for any number of threads. A forked child leaves its parent's alone, and opens
    its own."""

    _idle: list[Any]

    def __init__(self, connect: Callable[[], Any], description: str) -> None:
        self._connect = connect
        self._description = description
        self._start_empty()
        _POOLS.add(self)

    def run(self, action: Action[Result]) -> Result:
        """Lends a connection to the action."""
        if not self._free.acquire(timeout=BUSY_TIMEOUT_S):
            reason = "all connections are in use"
            raise StoreUnavailable(store=self._description, reason=reason)
        try:
            with self._lock:
                idle = self._idle
                connection = idle.pop() if idle else None
            if connection is None:
                connection = self._connect()
            is_usable = True
            try:
                return action(connection)
            except BaseException as error:
                is_usable = isinstance(error, Exception)
                raise
            finally:
                self._give_back(connection, idle, is_usable)
        finally:
            self._free.release()

    def close(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def leave_to_parent(self) -> None:
        """In a forked child: closing these connections would end the parent's sessions."""
        INHERITED.append(self._idle)
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._idle = []

    def _give_back(self, connection: Any, idle: list[Any], is_usable: bool) -> None:
        """A connection that broke takes the idle ones with it: they went to the same server. One
        whose action was interrupted may be in the middle of a statement, and is closed."""
        if getattr(connection, "closed", False):
            self.close()
        with self._lock:
            is_kept = is_usable and idle is self._idle and len(idle) < IDLE_CONNECTIONS
            if is_kept:
                idle.append(connection)
        if not is_kept:
            connection.close()


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
INHERITED: list[Any] = []  # a parent's connections, kept from being closed with their last user


def _leave_connections_to_parent() -> None:
    for pool in _POOLS:
        pool.leave_to_parent()


os.register_at_fork(after_in_child=_leave_connections_to_parent)


@functools.cache
def _queries(dialect: str, parameter: str) -> dict[str, str]:
    """The queries of `queries.sql` by name, comments left out, in this dialect."""
    content = Path(__file__).with_name("queries.sql").read_text(encoding="utf-8")
    queries = {}
    for block in content.split("\n-- name: ")[1:]:
        name, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        text = "\n".join(lines).strip().removesuffix(";")
        name, _, only = name.partition(".")
        if only in ("", dialect):
            queries[name] = _in_dialect(text, parameter)
    return queries


def _in_dialect(text: str, parameter: str) -> str:
    return re.sub(r"(?<!:):([a-z]\w*)", parameter, text)


# SQLite: one file in write-ahead mode, so that readers continue while one process writes.


_INTEGRITY = "PRAGMA integrity_check(20)"
_OTHERS = "SELECT 1 FROM sqlite_master LIMIT 1"
_OURS = "SELECT 1 FROM sqlite_master WHERE name = 'edgeloop_rows'"
DAMAGED = (11, 18, 24, 26)  # corrupt, too big, of another format, no database
NO_ROOM = (8, 10, 13, 14)  # read-only, I/O error, full, cannot be opened
SHORT_READ = 522  # the file ends before it should
WRONG = 1  # a statement or the schema; the statements are ours, and right
NEW_S = 10.0  # a file may be empty for this long: another process is about to write to it
ALONE_S = 1.0


class OddText(Exception):
    """A text in the file is not UTF-8."""


class SqliteDatabase(Database):
    """The file `store.db` of a folder; both are created by the first write.

    Where there is no room for the files that SQLite keeps beside it, or the folder is read-only, it
    is opened without them, so that a full disk can be looked at and cleared.
    """

    dialect = "sqlite"
    parameter = r":\1"
    errors = (sqlite3.Error, UnicodeDecodeError)  # the latter: an error that quotes odd bytes

    def __init__(self, location: SqliteLocation) -> None:
        super().__init__(str(location))
        self._file = location.folder / "store.db"
        self._mark = _Mark(self._file)
        self._takes_any_text = False

    def connect(self) -> sqlite3.Connection:
        connection = _connected(self._file)
        if self._takes_any_text:
            connection.text_factory = _any_text
        return connection

    def read(
        self,
        query: str,
        values: Mapping[str, object],
        clauses: str = "",
        document: str = "data",
    ) -> Rows:
        if not self._is_there():
            return []
        try:
            return super().read(query, values, clauses, document)
        except OddText:
            self._takes_any_text = True
            self.pool.close()
            return super().read(query, values, clauses, document)

    def run_with_schema(self, action: Action[Result]) -> Result:
        try:
            if not self._is_there():
                make_folder(self._file.parent)
            return super().run_with_schema(action)
        except OSError as error:
            raise self._explain_file(str(error.strerror)) from None

    def create_schema(self, connection: sqlite3.Connection) -> None:
        connection.execute(self.text("create_table"))

    def insert_missing(self, space: str, rows: Sequence[EncodedRow]) -> None:
        parameters = [_parameters(space, row) for row in rows]

        def insert(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.executemany(self.text("insert_missing"), parameters)

        self.run_with_schema(insert)

    def update_with(
        self,
        values: Mapping[str, object],
        other_space: str,
        put: Sequence[EncodedRow],
        removed_keys: Sequence[str],
    ) -> bool:
        def change(connection: sqlite3.Connection) -> bool:
            with _transaction(connection):
                if connection.execute(self.text("update"), values).rowcount != 1:
                    return False
                for key in removed_keys:
                    connection.execute(self.text("remove"), {"space": other_space, "key": key})
                for row in put:
                    connection.execute(self.text("put"), _parameters(other_space, row))
                return True

        return self.run_with_schema(change)

    def mark(self) -> str:
        try:
            return self._mark.read()
        except self.errors as error:
            raise self.explain(error) from None
        except OSError as error:
            raise self._explain_file(str(error.strerror)) from None

    def column(self, name: str) -> str:
        return f"json_extract(data, '$.{name}')"

    def projection(self, columns: Sequence[str]) -> str:
        """With one path, json_extract gives the value itself and not an array."""
        names = list(columns) or ["name"]
        paths = [f"'$.{name}'" for name in (names if len(names) > 1 else names * 2)]
        return f"json_extract(data, {', '.join(paths)})"

    def array(self, values: Sequence[str]) -> str:
        return json.dumps(values)

    def explain(self, error: Exception) -> Exception:
        text = str(error).strip().partition("\n")[0]
        if isinstance(error, UnicodeDecodeError):
            return self._damaged("its store.db cannot be read (its schema is no text)")
        code = getattr(error, "sqlite_errorcode", 0)
        if "no such table" in text:
            return NoSchema()
        if "malformed JSON" in text:
            return OddDocument()
        if "decode to UTF-8" in text:
            return OddText()
        if isinstance(error, sqlite3.IntegrityError):
            return RowExists(key="")
        is_wrong = code == WRONG and "no such function: json" not in text  # SQLite may lack them
        if is_wrong or code & 0xFF in DAMAGED or code == SHORT_READ:
            return self._damaged(f"its store.db cannot be read ({text})")
        return self._explain_file(text)

    def close(self) -> None:
        self._mark.close()
        super().close()

    def check(self) -> Iterator[str]:
        """By SQLite itself. Each line says what is wrong with one page, row or index."""
        if not self._is_there():
            return
        report = self.run(lambda connection: connection.execute(_INTEGRITY).fetchall())
        for (line,) in report:
            if line != "ok":
                yield f"store.db: {line}"

    def saved_rows(self) -> Iterator[Sequence[Any]]:

        return iter(salvaged(self._file)) if self._is_there() else iter(())

    def check_begun(self) -> None:
        others = self.run(lambda connection: connection.execute(_OTHERS).fetchall())
        if others and self.run(lambda connection: connection.execute(_OURS).fetchall()) == []:
            raise self._damaged("store.db has no table 'edgeloop_rows'")

    def _is_there(self) -> bool:
        """Whether there is a database. Raises if something else is in its place."""
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            raise StoreError(store=self.description, reason=NOT_A_FOLDER) from None
        if not stat.S_ISREG(status.st_mode):
            reason = "its store.db is not a file: move that away, or name another store"
            raise StoreError(store=self.description, reason=reason)
        if not status.st_size and abs(time.time() - status.st_mtime) > NEW_S:
            raise self._damaged("its store.db is empty: it was cut off")
        return True

    def _damaged(self, reason: str) -> StoreDamaged:
        return StoreDamaged(store=self.description, reason=reason)

    def _explain_file(self, reason: str) -> EdgeloopError:
        text, store = reason.lower(), self.description
        # SQLite calls it an I/O error when there is no room for the memory its readers share.
        is_full = "disk i/o error" in text and _free_bytes(Path(store)) < 64 * 1024
        if is_full or any(word in text for word in ("full", "no space", "quota")):
            return StoreFull(store=store, reason="no space left on the device")
        if any(word in text for word in ("readonly", "read-only", "permission")):
            return StoreRefused(store=store, reason="the folder is read-only")
        if "unable to open" in text:
            return StoreRefused(store=store, reason="its database cannot be opened")
        if "locked" in text:
            reason = f"another process kept it locked for {BUSY_TIMEOUT_S} s"
            return StoreUnavailable(store=store, reason=reason)
        return StoreError(store=store, reason=reason)


class _Mark:
    """`PRAGMA data_version` changes with every commit of another connection, so this has one of
    its own that never writes. The file is looked at as well: it may have been restored from a
    copy, and an open connection would continue with the old one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity = ""
        self._process = os.getpid()

    def read(self) -> str:
        """Empty if there is no file yet. Raises sqlite3.Error and OSError."""
        with self._lock:
            try:
                status = self._file.stat()
            except FileNotFoundError:
                self._drop()
                return ""
            identity = f"{status.st_dev}:{status.st_ino}"
            if self._process != os.getpid():  # forked: the connection is the parent's
                INHERITED.append(self._connection)
                self._connection, self._process = None, os.getpid()
            if self._connection is None or not self._identity.startswith(f"{identity}:"):
                self._drop()
                self._connection = _open(self._file)
                self._identity = f"{identity}:{os.urandom(4).hex()}"
            try:
                version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            except Exception:
                self._drop()
                raise
            return f"{self._identity}:{version}"

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None


def _connected(file: Path) -> sqlite3.Connection:
    try:
        return _begun(_open(file), _switch_to_wal)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in NO_ROOM:
            raise
        with contextlib.suppress(sqlite3.Error):
            return _begun(_open(file, timeout=ALONE_S), _stay_alone)
        wal = file.with_name(f"{file.name}-wal")
        if not wal.exists() or not wal.stat().st_size:  # else there is more than the file says
            with contextlib.suppress(sqlite3.Error):
                return _begun(_open(f"file:{quote(str(file))}?immutable=1"), _look)
        raise


def _begun(
    connection: sqlite3.Connection, begin: Callable[[sqlite3.Connection], None]
) -> sqlite3.Connection:
    try:
        begin(connection)  # first: any other statement opens the files beside the database
        connection.execute("PRAGMA synchronous=FULL")
    except Exception:
        connection.close()
        raise
    return connection


def _stay_alone(connection: sqlite3.Connection) -> None:
    """What readers share is then kept in memory. It fails while another process has the file."""
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    _look(connection)


def _look(connection: sqlite3.Connection) -> None:
    connection.execute(_OTHERS).fetchall()


def _any_text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _free_bytes(folder: Path) -> int:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def _open(file: Path | str, timeout: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    return sqlite3.connect(
        file,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        uri=isinstance(file, str),
    )


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Two processes that switch a new file at once get 'locked' without SQLite's usual waiting, so
    the waiting is done here."""
    retry(
        lambda: connection.execute("PRAGMA journal_mode=WAL"),
        sqlite3.OperationalError,
        BUSY_TIMEOUT_S,
        first_s=0.02,
        longest_s=0.02,
        unless=lambda error: "locked" not in str(error),
    )


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # the first error is the one to report
            connection.execute("ROLLBACK")
        raise


def _parameters(space: str, row: EncodedRow) -> dict[str, str]:
    key, version, document = row
    return {"space": space, "key": key, "version": version, "data": document}


# Rows out of a damaged SQLite file, from a copy of it: the file itself is not touched.
#
# First by SQLite, range by range: what it cannot read is left out, down to single rows. Where it
# cannot even open the file, or finds nothing in it, the pages are read without it, by the file
# format: https://www.sqlite.org/fileformat2.html. That also finds rows of pages that are no longer
# in use, so it comes last.
#
# SQLite's own `.recover` would replace all of this, but it is an extension that is compiled into
# the `sqlite3` program only: Python's module has no access to it, and many machines have no such
# program, or one that was built without it.


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
    rows: list[Cells] = []
    connection = sqlite3.connect(file)
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        last = _last_row(connection, file.stat().st_size)
        for cells in _in_range(connection, 1, last):
            rows.append(cells)
    except (sqlite3.Error, UnicodeDecodeError):
        return rows
    else:
        return rows
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
    rows: dict[tuple[str, str], Cells] = {}
    for number in range(len(content) // size):
        start = number * size
        for cells in _rows_of_page(content, start, start + (100 if number == 0 else 0), size):
            rows[cells[0], cells[1]] = cells
    return list(rows.values())


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
