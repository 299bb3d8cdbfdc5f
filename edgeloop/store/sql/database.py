"""What SQLite and PostgreSQL have in common: named queries, pooled connections, a schema that is
created by the first write, and errors put into our words."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from edgeloop.errors import EdgeloopError, StoreUnavailable

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
    def array(self, values: Sequence[str]) -> object:
        """Several texts as one parameter."""

    def read(self, query: str, values: Mapping[str, object], clauses: str = "") -> Rows:
        text = self.text(query)
        if "{clauses}" in text:
            text = text.replace("{clauses}", _in_dialect(clauses, self.parameter))
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
