"""SQLite: one file in write-ahead mode, so that readers go on while one process writes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edgeloop.errors import (
    EdgeloopError,
    RowExists,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.store.location import SqliteLocation
from edgeloop.store.sql.database import (
    BUSY_TIMEOUT_S,
    INHERITED,
    Action,
    Database,
    EncodedRow,
    NoSchema,
    Result,
    Rows,
)


class SqliteDatabase(Database):
    """The file `store.db` of a folder; both are created by the first write."""

    dialect = "sqlite"
    parameter = r":\1"
    errors = sqlite3.Error

    def __init__(self, location: SqliteLocation) -> None:
        super().__init__(str(location))
        self._file = location.folder / "store.db"
        self._mark = _Mark(self._file)

    def connect(self) -> sqlite3.Connection:
        connection = _open(self._file)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            _switch_to_wal(connection)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def read(self, query: str, values: Mapping[str, object], clauses: str = "") -> Rows:
        return super().read(query, values, clauses) if self._file.exists() else []

    def run_with_schema(self, action: Action[Result]) -> Result:
        try:
            if not self._file.exists():
                self._file.parent.mkdir(parents=True, exist_ok=True)
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
        except sqlite3.Error as error:
            raise self.explain(error) from None
        except OSError as error:
            raise self._explain_file(str(error.strerror)) from None

    def column(self, name: str) -> str:
        return f"json_extract(data, '$.{name}')"

    def array(self, values: Sequence[str]) -> str:
        return json.dumps(values)

    def explain(self, error: Exception) -> Exception:
        text = str(error).strip().partition("\n")[0]
        if "no such table" in text:
            return NoSchema()
        if isinstance(error, sqlite3.IntegrityError):
            return RowExists(key="")
        return self._explain_file(text)

    def close(self) -> None:
        self._mark.close()
        super().close()

    def _explain_file(self, reason: str) -> EdgeloopError:
        text, store = reason.lower(), self.description
        # SQLite calls it an I/O error when there is no room for the memory its readers share.
        is_full = "disk i/o error" in text and shutil.disk_usage(store).free < 64 * 1024
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
            except sqlite3.Error:
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


def _open(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        file, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Two processes that switch a new file at once get 'locked' without SQLite's usual waiting, so
    the waiting is done here."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


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
