"""One database: its connections, its schema, and its errors put into our words.

SQLAlchemy makes the SQL, knows the two dialects and keeps the connections. Statements run on its
plain connections: a claim is half a dozen tiny statements, and the way through SQLAlchemy's results
would cost more than the statements themselves.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.schema import CreateTable

from edgeloop.errors import (
    EdgeloopError,
    RowExists,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.store.location import PostgresLocation, SqliteLocation
from edgeloop.store.sql.marks import POSTGRESQL_MARK, SqliteMark

Result = TypeVar("Result")
Parameters = dict[str, object]

BUSY_TIMEOUT_S = 30
STATEMENT_TIMEOUT_S = 60
_SCHEMA_LOCK = 0x656467656C6F6F70  # "edgeloop": one creator at a time on PostgreSQL


class Database:
    """`file` is SQLite's; it and `table` are made when the database is first written to."""

    def __init__(
        self, engine: sa.Engine, table: sa.Table, description: str, file: Path | None = None
    ) -> None:
        self._engine = engine
        self._table = table
        self._description = description
        self._file = file
        self._sqlite_mark = SqliteMark(file, BUSY_TIMEOUT_S) if file is not None else None
        self._has_schema = False
        self._compiled: dict[sa.ClauseElement, _Sql] = {}
        self._errors: type[Exception] = engine.dialect.loaded_dbapi.Error

    @property
    def dialect(self) -> str:
        return self._engine.dialect.name

    def read(self, statement: sa.Select[Any], values: Parameters) -> Sequence[tuple[Any, ...]]:
        if self._file is not None and not self._file.exists():
            return []
        sql = self._sql(statement)

        def fetch(cursor: DBAPICursor) -> Sequence[tuple[Any, ...]]:
            cursor.execute(sql.text, sql.arranged(values))
            return cursor.fetchall()

        try:
            return self._with_cursor(fetch)
        except _NoSchema:
            return []

    def write(self, statement: sa.Insert | sa.Update | sa.Delete, values: Parameters) -> int:
        """One statement, committed by itself; how many rows it changed."""
        sql = self._sql(statement)

        def execute(cursor: DBAPICursor) -> int:
            cursor.execute(sql.text, sql.arranged(values))
            return cursor.rowcount

        return self._with_schema(execute)

    def write_batch(self, statement: sa.Insert, rows: Sequence[Parameters]) -> None:
        """Many rows in one transaction. The schema comes first: psycopg sends such a batch in a
        pipeline, and complains aloud when one breaks."""
        sql = self._sql(statement)

        def execute(cursor: DBAPICursor) -> None:
            with _transaction(cursor):
                cursor.executemany(sql.text, [sql.arranged(row) for row in rows])

        if not self._has_schema:
            self._with_schema(self._create_schema)
            self._has_schema = True
        self._with_schema(execute)

    def mark(self) -> str:
        """Equal to an earlier one: nothing was committed since. Empty where that cannot be said."""
        if self._sqlite_mark is None:
            rows = self.read(POSTGRESQL_MARK, {})
            return str(rows[0][0]) if rows else ""
        try:
            return self._sqlite_mark.read()
        except sqlite3.Error as error:
            raise self._explain(error) from None
        except OSError as error:
            raise _explain_file(str(error.strerror), self._description) from None

    def close(self) -> None:
        if self._sqlite_mark is not None:
            self._sqlite_mark.close()
        self._engine.dispose()

    def _sql(self, statement: sa.ClauseElement) -> _Sql:
        """Statements that live as long as the module are compiled once; others each time."""
        if statement not in self._compiled:
            compiled = _Sql(statement, self._engine.dialect)
            if len(self._compiled) > 50:
                return compiled
            self._compiled[statement] = compiled
        return self._compiled[statement]

    def _with_schema(self, action: Callable[[DBAPICursor], Result]) -> Result:
        try:
            if self._file is not None and not self._file.exists():
                self._file.parent.mkdir(parents=True, exist_ok=True)
            return self._with_cursor(action)
        except _NoSchema:
            self._with_cursor(self._create_schema)
            return self._with_cursor(action)
        except OSError as error:
            raise _explain_file(str(error.strerror), self._description) from None

    def _create_schema(self, cursor: DBAPICursor) -> None:
        create = str(CreateTable(self._table, if_not_exists=True).compile(self._engine))
        if self.dialect == "sqlite":
            cursor.execute(create)
            return
        with _transaction(cursor):
            cursor.execute(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
            cursor.execute(create)

    def _with_cursor(self, action: Callable[[DBAPICursor], Result]) -> Result:
        """A connection of the pool for one action; if it broke, none of the pool is used again."""
        try:
            link = self._engine.raw_connection()
        except exc.DBAPIError as error:
            raise self._explain(error.orig) from None
        except exc.TimeoutError:
            reason = "all connections are in use"
            raise StoreUnavailable(store=self._description, reason=reason) from None
        except self._errors as error:  # from the hook that prepares a new connection
            raise self._explain(error) from None
        cursor = link.cursor()
        try:
            return action(cursor)
        except self._errors as error:
            dialect = self._engine.dialect
            if dialect.is_disconnect(error, link.dbapi_connection, cursor):  # type: ignore[arg-type]
                link.invalidate(error)
                self._engine.dispose()  # the others of the pool went to the same server
            raise self._explain(error) from None
        finally:
            if link.is_valid:
                cursor.close()
            link.close()

    def _explain(self, error: BaseException | None) -> Exception:
        text = str(error).strip().partition("\n")[0]
        state = getattr(error, "sqlstate", None)
        if "no such table" in text or state == "42P01":
            return _NoSchema()
        if state == "23505" or isinstance(error, sqlite3.IntegrityError):
            return RowExists(key="")
        if isinstance(error, sqlite3.Error):
            return _explain_file(text, self._description)
        if state == "53100":
            return StoreFull(store=self._description, reason="no space left on the server")
        if _is_refusal(state, text):
            return StoreRefused(store=self._description, reason=_short(text))
        if _is_passing(error):
            return StoreUnavailable(store=self._description, reason=_short(text))
        return StoreError(store=self._description, reason=_short(text))


class _Sql:
    """A statement as text in a dialect, and its values in the order or by the names it wants."""

    def __init__(self, statement: sa.ClauseElement, dialect: sa.Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self.text = str(compiled)
        self._order = getattr(compiled, "positiontup", None)
        self._own = {name: value for name, value in compiled.params.items() if value is not None}

    def arranged(self, values: Parameters) -> Any:
        """`_own`: values that the dialect put in itself, as SQLite's OFFSET 0."""
        complete = {**self._own, **values}
        return complete if self._order is None else [complete[name] for name in self._order]


class _NoSchema(Exception):
    """The database is there, our table is not."""


def sqlite_database(location: SqliteLocation, table: sa.Table) -> Database:
    file = location.folder / "store.db"
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(file)),
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": BUSY_TIMEOUT_S},
        pool_reset_on_return=None,  # every statement is its own transaction
    )
    sa.event.listen(engine, "connect", _prepare_sqlite)
    return Database(engine, table, str(location), file)


def postgresql_database(location: PostgresLocation, table: sa.Table) -> Database:
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
        )
    except (exc.ArgumentError, ValueError):
        reason = "the postgresql: URL cannot be read"
        raise StoreError(store="postgresql", reason=reason) from None
    return Database(engine, table, str(location))


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


@contextmanager
def _transaction(cursor: DBAPICursor) -> Iterator[None]:
    cursor.execute("BEGIN")
    try:
        yield
        cursor.execute("COMMIT")
    except BaseException:
        with suppress(Exception):  # the connection may be gone; the first error is the one to tell
            cursor.execute("ROLLBACK")
        raise


def _is_passing(error: BaseException | None) -> bool:
    """Operational and interface errors: the server, the network or the connection is away."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"OperationalError", "InterfaceError"})


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
