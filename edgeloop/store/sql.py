"""State in SQLite (the embedded default) or PostgreSQL: one code, through SQLAlchemy Core.

All tables of the store are one SQL table of documents; `space` tells them apart. Every operation
is one statement, committed by itself: compare-and-set is an UPDATE that names the version.
"""

from __future__ import annotations

import itertools
import json
import math
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.schema import CreateTable

from edgeloop.errors import (
    EdgeloopError,
    RowChanged,
    RowExists,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.location import PostgresLocation, SqliteLocation
from edgeloop.store.base import (
    Blobs,
    Changes,
    Condition,
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

Result = TypeVar("Result")

PAGE = 5_000
INSERT_BATCH = 1_000
BUSY_TIMEOUT_S = 30
STATEMENT_TIMEOUT_S = 60
_SCHEMA_LOCK = 0x656467656C6F6F70  # "edgeloop": one creator at a time on PostgreSQL

# Keys sort by their bytes everywhere; PostgreSQL would otherwise use the locale's order.
_KeyText = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_ROWS = sa.Table(
    "edgeloop_rows",
    sa.MetaData(),
    sa.Column("space", _KeyText, primary_key=True),
    sa.Column("key", _KeyText, primary_key=True),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
)

# Built once: SQLAlchemy then finds their SQL again without taking them apart.
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
            first = sa.select(_ROWS.c.space).where(_ROWS.c.space > last, _ROWS.c.space < end)
            rows = self._database.read(first.order_by(_ROWS.c.space).limit(1))
            if not rows:
                return found
            last = rows[0].space
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
        except exc.IntegrityError:
            raise RowExists(key=key) from None
        return record

    def insert_many(self, rows: Iterable[tuple[str, Values]]) -> None:
        records = (self._columns(_new(key, values)) for key, values in rows)
        while batch := list(itertools.islice(records, INSERT_BATCH)):
            self._database.write_batch(self._database.insert_or_ignore(), batch)

    def update(self, record: Record, changes: Changes) -> Record:
        changed = _new(record.key, merged(record.values, changes))
        new = {"new_version": changed.version, "new_data": changed.values}
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
        if where:
            statement = statement.where(*map(_clause, where))
        values: dict[str, object] = {"at_space": self._space, "first": prefix}
        if prefix:
            values["end"] = after_prefix(prefix)
        while limit is None or limit > 0:
            size = PAGE if limit is None else min(PAGE, limit)
            page = self._database.read(statement, {**values, "after": after, "size": size})
            yield from map(_record, page)
            if len(page) < size:
                return
            limit = None if limit is None else limit - size
            after = page[-1].key

    def _this(self, record: Record) -> dict[str, object]:
        return {"at_space": self._space, "at_key": record.key, "at_version": record.version}

    def _columns(self, record: Record) -> dict[str, object]:
        return {
            "space": self._space,
            "key": record.key,
            "version": record.version,
            "data": record.values,
        }


class Database:
    """An engine, its schema made when it is first written to, and its errors put into our words."""

    def __init__(self, engine: sa.Engine, description: str, file: Path | None = None) -> None:
        self._engine = engine
        self._description = description
        self._file = file
        self._has_schema = False

    def read(
        self, statement: sa.Select[Any], values: dict[str, object] | None = None
    ) -> Sequence[sa.Row[Any]]:
        if self._file is not None and not self._file.exists():
            return []
        try:
            return self._on_connection(lambda link: link.execute(statement, values).all())
        except _NoSchema:
            return []

    def write(self, statement: sa.Insert | sa.Update | sa.Delete, values: dict[str, object]) -> int:
        return self._with_schema(
            lambda: self._on_connection(lambda link: link.execute(statement, values).rowcount)
        )

    def write_batch(self, statement: sa.Insert, rows: list[dict[str, object]]) -> None:
        """Many rows in one transaction. The schema comes first: psycopg sends such a batch in a
        pipeline, and complains aloud when one breaks."""

        def insert(link: sa.Connection) -> None:
            level = "SERIALIZABLE" if link.dialect.name == "sqlite" else "READ COMMITTED"
            with link.execution_options(isolation_level=level).begin():
                link.execute(statement, rows)

        if not self._has_schema:
            self._with_schema(lambda: self._on_connection(_create_schema))
            self._has_schema = True
        self._with_schema(lambda: self._on_connection(insert))

    def insert_or_ignore(self) -> sa.Insert:
        from sqlalchemy.dialects import postgresql, sqlite

        insert = sqlite.insert if self._engine.dialect.name == "sqlite" else postgresql.insert
        return insert(_ROWS).on_conflict_do_nothing()

    def close(self) -> None:
        self._engine.dispose()

    def _with_schema(self, action: Callable[[], Result]) -> Result:
        try:
            if self._file is not None and not self._file.exists():
                self._file.parent.mkdir(parents=True, exist_ok=True)
            return action()
        except _NoSchema:
            self._on_connection(_create_schema)
            return action()
        except OSError as error:
            raise _explain_file(str(error.strerror), self._description) from None

    def _on_connection(self, action: Callable[[sa.Connection], Result]) -> Result:
        try:
            with self._engine.connect() as link:
                return action(link)
        except exc.IntegrityError:
            raise
        except exc.DBAPIError as error:
            raise self._explain(error) from None
        except exc.TimeoutError:
            reason = "all connections are in use"
            raise StoreUnavailable(store=self._description, reason=reason) from None

    def _explain(self, error: exc.DBAPIError) -> Exception:
        text = str(error.orig).strip().partition("\n")[0]
        if "no such table" in text or getattr(error.orig, "sqlstate", None) == "42P01":
            return _NoSchema()
        if isinstance(error.orig, sqlite3.Error):
            return _explain_file(text, self._description)
        if getattr(error.orig, "sqlstate", None) == "53100":
            return StoreFull(store=self._description, reason="no space left on the server")
        if _is_refusal(getattr(error.orig, "sqlstate", None), text):
            return StoreRefused(store=self._description, reason=_short(text))
        if isinstance(error, (exc.OperationalError, exc.InterfaceError)):
            return StoreUnavailable(store=self._description, reason=_short(text))
        return StoreError(store=self._description, reason=_short(text))


class _NoSchema(Exception):
    """The database is there, our table is not."""


def open_sqlite(location: SqliteLocation) -> SqlStore:
    file = location.folder / "store.db"
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(file)),
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": BUSY_TIMEOUT_S},
        pool_reset_on_return=None,  # every statement is its own transaction
        hide_parameters=True,
        json_serializer=_dumps,
        json_deserializer=_loads,
    )
    sa.event.listen(engine, "connect", _prepare_sqlite)
    database = Database(engine, str(location), file)
    return SqlStore(database, FolderBlobs(location.folder / "blobs"), str(location))


def open_postgresql(location: PostgresLocation) -> SqlStore:
    try:
        engine = sa.create_engine(
            location.url,
            isolation_level="AUTOCOMMIT",
            connect_args={
                "connect_timeout": 5,
                "options": f"-c statement_timeout={STATEMENT_TIMEOUT_S * 1000}",
                "keepalives_idle": 15,
                "keepalives_interval": 5,
                "keepalives_count": 3,
            },
            pool_timeout=BUSY_TIMEOUT_S,
            pool_reset_on_return=None,
            hide_parameters=True,
            json_serializer=_dumps,
            json_deserializer=_loads,
        )
    except (exc.ArgumentError, ValueError):
        reason = "the postgresql: URL cannot be read"
        raise StoreError(store="postgresql", reason=reason) from None
    return SqlStore(Database(engine, str(location)), url_blobs(location.blobs), str(location))


def _prepare_sqlite(link: sqlite3.Connection, _: object) -> None:
    """WAL lets readers go on while one writes. Two processes that switch a new file to it at
    once get 'locked' without the usual patience, so this one is patient itself."""
    link.execute("PRAGMA synchronous=FULL")
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            link.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _create_schema(link: sa.Connection) -> None:
    if link.dialect.name == "sqlite":
        link.execute(CreateTable(_ROWS, if_not_exists=True))
        return
    with link.execution_options(isolation_level="READ COMMITTED").begin():
        link.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
        link.execute(CreateTable(_ROWS, if_not_exists=True))


def _new(key: str, values: Values) -> Record:
    check_values(key, values)
    return Record(key, merged(values, {}), secrets.token_hex(8))


def _record(row: sa.Row[Any]) -> Record:
    return Record(row.key, row.data, row.version)


def _clause(condition: Condition) -> sa.ColumnElement[bool]:
    column: sa.ColumnElement[str] = _ROWS.c.data[condition.column].as_string()
    return column == condition.value if condition.operator == "==" else column != condition.value


def _dumps(values: dict[str, Value]) -> str:
    """Columns are flat, so an object in a column's place is free to stand for NaN and infinity."""

    def plain(value: Value) -> object:
        special = isinstance(value, float) and not math.isfinite(value)
        return {"float": str(value)} if special else value

    columns = {name: plain(value) for name, value in values.items()}
    return json.dumps(columns, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _loads(text: str | bytes) -> dict[str, Value]:
    values: dict[str, Any] = json.loads(text)
    if any(type(value) is dict for value in values.values()):
        return {n: float(v["float"]) if type(v) is dict else v for n, v in values.items()}
    return values


def _explain_file(text: str, folder: str) -> EdgeloopError:
    lowered = text.lower()
    if (
        "full" in lowered
        or "no space" in lowered
        or "quota" in lowered
        or _is_full(lowered, folder)
    ):
        return StoreFull(store=folder, reason="no space left on the device")
    if "readonly" in lowered or "read-only" in lowered or "permission" in lowered:
        return StoreRefused(store=folder, reason="the folder is read-only")
    if "unable to open" in lowered:
        return StoreRefused(store=folder, reason="its database cannot be opened")
    if "locked" in lowered:
        reason = f"another process kept it locked for {BUSY_TIMEOUT_S} s"
        return StoreUnavailable(store=folder, reason=reason)
    return StoreError(store=folder, reason=text)


def _is_full(text: str, folder: str) -> bool:
    """SQLite calls it an I/O error when there is no room for the memory its readers share."""
    return "disk i/o error" in text and shutil.disk_usage(folder).free < 64 * 1024


def _is_refusal(sqlstate: str | None, text: str) -> bool:
    """Classes 28 and 42501: wrong password, no such user, no right. 3D000: no such database.
    A refused connection carries no state, only its text."""
    if sqlstate is not None:
        return sqlstate.startswith("28") or sqlstate in ("42501", "3D000", "25006")
    texts = ("authentication failed", "no pg_hba.conf", "does not exist", "no password supplied")
    return any(part in text for part in texts)


def _short(text: str) -> str:
    return text.removeprefix("connection failed: ").rstrip(".")
