"""PostgreSQL, through psycopg."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from edgeloop.errors import (
    RowExists,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.store.location import PostgresLocation
from edgeloop.store.sql import Action, Database, EncodedRow, NoSchema, OddDocument, Result

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 60
ANSWER_TIMEOUT_S = 75  # by then the server has ended a statement, and its answer has arrived
ACKNOWLEDGED_WITHIN_S = 30  # else the kernel takes the connection for lost
_SCHEMA_LOCK = 0x656467656C6F6F70  # "edgeloop": one process at a time creates the table
_REFUSED = ("42501", "3D000", "25006")  # no right, no such database, read-only
_REFUSED_TEXTS = (
    "authentication failed",
    "no pg_hba.conf",
    "does not exist",
    "no password supplied",
)
_DAMAGED = ("42703", "42804", "42883")  # no such column, or one of another type
_ROLLED_BACK = ("40001", "40P01")  # serialization failure, deadlock


class PostgresDatabase(Database):
    dialect = "postgresql"
    parameter = r"%(\1)s"
    errors = (psycopg.Error,)

    def __init__(self, location: PostgresLocation) -> None:
        super().__init__(str(location))
        try:
            self._parameters: dict[str, Any] = conninfo_to_dict(location.url)
        except psycopg.Error:  # its text would show the password
            reason = "the postgresql: URL cannot be read"
            raise StoreError(store="postgresql", reason=reason) from None
        # Every query follows the primary key; a bitmap would read a whole queue to sort it.
        options = f"-c statement_timeout={STATEMENT_TIMEOUT_S * 1000} -c enable_bitmapscan=off"
        self._parameters |= {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "options": f"{self._parameters.get('options', '')} {options}".strip(),
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": ACKNOWLEDGED_WITHIN_S * 1000,
        }

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            return psycopg.connect(autocommit=True, **self._parameters)
        except OSError as error:  # of psycopg's own selector, which needs one more descriptor
            raise psycopg.OperationalError(error.strerror or str(error)) from None

    def run(self, action: Action[Result]) -> Result:
        def watched(connection: psycopg.Connection[Any]) -> Result:
            with WATCH.over(connection.fileno(), ANSWER_TIMEOUT_S):
                return action(connection)

        return super().run(watched)

    def create_schema(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            connection.execute(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
            connection.execute(self.text("create_table"))

    def insert_missing(self, space: str, rows: Sequence[EncodedRow]) -> None:
        self.write("insert_missing", {"space": space, **_columns(rows)})

    def update_with(
        self,
        values: Mapping[str, object],
        other_space: str,
        put: Sequence[EncodedRow],
        removed_keys: Sequence[str],
    ) -> bool:
        if not put:
            removed = {"other_space": other_space, "removed_keys": list(removed_keys)}
            return self.write("update_and_remove", {**values, **removed}) == 1
        changed = {**values, "other_space": other_space, **_columns(put)}
        if not removed_keys:
            return self.write("update_and_put", changed) == 1

        def change(connection: psycopg.Connection[Any]) -> bool:
            with connection.transaction():
                if connection.execute(self.text("update_and_put"), changed).rowcount != 1:
                    return False
                removed = {"space": other_space, "keys": list(removed_keys)}
                connection.execute(self.text("remove"), removed)
                return True

        return self.run_with_schema(change)

    def mark(self) -> str:
        return str(self.read("snapshot", {})[0][0])

    def column(self, name: str) -> str:
        return f"json_extract_path_text(CAST(data AS json), '{name}')"

    def projection(self, columns: Sequence[str]) -> str:
        """`json` and not `jsonb`, which would turn 1e22 into a whole number."""
        names = ", ".join(f"'{name}'" for name in columns) or "NULL"
        pairs = "json_each(CAST(data AS json)) AS pair (name, value)"
        chosen = f"SELECT json_object_agg(name, value) FROM {pairs} WHERE name IN ({names})"  # noqa: S608 - identifiers only
        return f"CAST(COALESCE(({chosen}), '{{}}') AS text)"

    def array(self, values: Sequence[str]) -> list[str]:
        return list(values)

    def was_rolled_back(self, error: Exception) -> bool:
        return getattr(error, "sqlstate", None) in _ROLLED_BACK

    def explain(self, error: Exception) -> Exception:
        state = getattr(error, "sqlstate", None)
        reason = str(error).strip().partition("\n")[0]
        reason = reason.removeprefix("connection failed: ").rstrip(".")
        if state == "42P01":
            return NoSchema()
        if (state or "").startswith("22"):  # a text that is not what a query casts it to
            return OddDocument(reason)
        if state in _DAMAGED or (state or "").startswith("XX"):
            return StoreDamaged(store=self.description, reason=reason)
        if state == "23505":
            return RowExists(key="")
        if state == "53100":
            return StoreFull(store=self.description, reason="no space left on the server")
        # A refused connection carries no state, only its text. Class 28: wrong user or password.
        is_refused = any(text in reason for text in _REFUSED_TEXTS) if state is None else False
        if is_refused or (state or "").startswith("28") or state in _REFUSED:
            return StoreRefused(store=self.description, reason=reason)
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return StoreUnavailable(store=self.description, reason=reason)
        return StoreError(store=self.description, reason=reason)


def _columns(rows: Sequence[EncodedRow]) -> dict[str, list[str]]:
    """The rows as one array per column."""
    return {
        "keys": [key for key, _, _ in rows],
        "versions": [version for _, version, _ in rows],
        "documents": [document for _, _, document in rows],
    }


# An end to waiting for a server that is no longer heard of.
#
# The server limits how long a statement takes, but a client whose requests or answers are swallowed
# on the way, for example by a firewall or a pooler, would wait for ever.


LOOK_EVERY_S = 1.0


class ConnectionWatch:
    """Ends sockets over which an answer has been awaited for too long: their users then meet the
    error of a lost connection. One thread serves all, and a forked child starts its own."""

    _thread: threading.Thread | None
    _deadlines: dict[object, tuple[float, int]]

    def __init__(self) -> None:
        self.reset()

    @contextlib.contextmanager
    def over(self, descriptor: int, limit_s: float) -> Iterator[None]:
        """The socket is in use meanwhile. It is never ended after this: another may have its number
        by then."""
        use = object()
        with self._lock:
            self._deadlines[use] = time.monotonic() + limit_s, descriptor
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="connections", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._deadlines.pop(use, None)

    def reset(self) -> None:
        """Also in a forked child, where the parent's thread is not."""
        self._lock = threading.Lock()
        self._thread = None
        self._deadlines = {}

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            with self._lock:
                now = time.monotonic()
                for deadline, descriptor in self._deadlines.values():
                    if deadline < now:
                        _end(descriptor)


def _end(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)


WATCH = ConnectionWatch()
os.register_at_fork(after_in_child=WATCH.reset)
