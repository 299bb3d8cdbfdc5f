"""Tables in memory whose every operation is a request that somebody else answers.

The explorer answers one request at a time, whichever it likes to try next. Asked directly, the same
tables pass the contract suite that the real stores pass. `is_atomic` ones behave like SQLite and
PostgreSQL, where a row and its hints change together; the others like Azure, where each write is
one of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from edgeloop.errors import RowChanged, RowExists
from edgeloop.store import Blobs, Changes, Condition, ReadRow, Record, Store, Table, Value, Values
from edgeloop.store.base import Access, BlobInfo, Rank, check_values, merged, projected

Frozen = tuple[tuple[str, Value | None], ...]
Row = tuple[str, int, Frozen | None]  # key, version, columns; None: deleted, its versions used up
WRITES = frozenset({"insert", "insert_many", "update", "update_with", "delete", "put"})


class Request(NamedTuple):
    """One operation on a table; all of it can be hashed."""

    table: str
    operation: str
    arguments: tuple[Any, ...]

    @property
    def is_write(self) -> bool:
        return self.operation in WRITES


Ask = Callable[[Request], Any]


def frozen(values: Changes) -> Frozen:
    return tuple(sorted(values.items()))


class Sheet:
    """The rows of one table. A version is never used again, not even after a delete."""

    def __init__(self, rows: Iterable[Row] = (), reuses_versions: bool = False) -> None:
        self.rows = {key: (version, columns) for key, version, columns in rows}
        self._reuses_versions = reuses_versions

    def frozen(self) -> tuple[Row, ...]:
        return tuple((key, *self.rows[key]) for key in sorted(self.rows))

    def get(self, key: str) -> Record | None:
        version, columns = self.rows.get(key, (0, None))
        return None if columns is None else Record(key, dict(columns), str(version))  # type: ignore[arg-type]

    def insert(self, key: str, values: Frozen) -> Record:
        if self.get(key) is not None:
            raise RowExists(key=key)
        return self.write(key, dict(values))

    def update(self, key: str, version: str, changes: Frozen) -> Record:
        record = self.get(key)
        if record is None or record.version != version:
            raise RowChanged(key=key)
        return self.write(key, {**record.values, **dict(changes)})

    def delete(self, key: str, version: str) -> None:
        record = self.get(key)
        if record is not None and record.version != version:
            raise RowChanged(key=key)
        self.remove(key)

    def put(self, key: str, values: Frozen | None) -> None:
        if values is None:
            self.remove(key)
        else:
            self.write(key, dict(values))

    def remove(self, key: str) -> None:
        if self.get(key) is not None:
            version, _ = self.rows[key]
            self.rows[key] = (0 if self._reuses_versions else version, None)

    def write(self, key: str, values: Changes) -> Record:
        check_values(key, values)
        version, _ = self.rows.get(key, (0, None))
        self.rows[key] = (version + 1, frozen(merged(values, {})))  # type: ignore[arg-type]
        record = self.get(key)
        assert record is not None
        return record

    def query(
        self, prefix: str, after: str, where: tuple[Condition, ...], limit: int | None
    ) -> list[Record]:
        keys = sorted(key for key in self.rows if key.startswith(prefix) and key > after)
        records = (self.get(key) for key in keys)
        return [row for row in records if row is not None and _meets(row.values, where)][:limit]


def perform(sheets: Mapping[str, Sheet], request: Request) -> Any:
    """Answer a request at once: what a store does within one transaction."""
    sheet = sheets[request.table]
    if request.operation == "update_with":
        key, version, changes, other, rows = request.arguments
        record = sheet.update(key, version, changes)
        for other_key, values in rows:
            sheets[other].put(other_key, values)
        return record
    if request.operation == "insert_many":
        for key, values in request.arguments:
            if sheet.get(key) is None:
                sheet.write(key, dict(values))
        return None
    if request.operation == "due":
        now, prefix, about = request.arguments
        hints = sheet.query(prefix, "", (), None)
        due = (hint for hint in hints if not float(hint.values.get("until", 0.0)) > now)
        return [(hint, sheets[about].get(str(hint.values.get("model")))) for hint in due]
    return getattr(sheet, request.operation)(*request.arguments)


class AskingTable(Table):
    def __init__(self, name: str, ask: Ask, is_atomic: bool) -> None:
        self.name = name
        self._ask = ask
        self.is_atomic = is_atomic

    def get(self, key: str) -> Record | None:
        found: Record | None = self._say("get", key)
        return found

    def insert(self, key: str, values: Values) -> Record:
        check_values(key, values)
        record: Record = self._say("insert", key, frozen(merged(values, {})))
        return record

    def update(self, record: Record, changes: Changes) -> Record:
        check_values(record.key, changes)
        changed: Record = self._say("update", record.key, record.version, frozen(changes))
        return changed

    def update_with(
        self, record: Record, changes: Changes, other: Table, rows: Mapping[str, Values | None]
    ) -> Record:
        if not (self.is_atomic and isinstance(other, AskingTable)):
            return super().update_with(record, changes, other, rows)
        given = tuple((k, None if row is None else frozen(row)) for k, row in rows.items())
        arguments = (record.key, record.version, frozen(changes), other.name, given)
        changed: Record = self._say("update_with", *arguments)
        return changed

    def put(self, key: str, values: Values | None) -> None:
        self._say("put", key, None if values is None else frozen(values))

    def delete(self, record: Record) -> None:
        self._say("delete", record.key, record.version)

    def query(
        self,
        prefix: str = "",
        *,
        after: str = "",
        where: Sequence[Condition] = (),
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Record]:
        records = self._say("query", prefix, after, tuple(where), limit)
        return (projected(record, columns) for record in records)

    def due(
        self, now: float, about: Table, prefix: str, rank: Rank, crowd: int = 1
    ) -> Iterator[tuple[Record, ReadRow]]:
        if not (self.is_atomic and isinstance(about, AskingTable)):
            yield from super().due(now, about, prefix, rank, crowd)
            return
        for hint, row in self._say("due", now, prefix, about.name):
            yield hint, partial(_same, row)

    def insert_many(self, rows: Iterable[tuple[str, Values]]) -> None:
        if not self.is_atomic:
            super().insert_many(rows)
        elif given := tuple((key, frozen(values)) for key, values in rows):
            self._say("insert_many", *given)

    def _say(self, operation: str, *arguments: Any) -> Any:
        return self._ask(Request(self.name, operation, arguments))


class AskingStore(Store):
    """A store of one experiment. Its files are none of the protocol's business."""

    def __init__(self, ask: Ask, is_atomic: bool) -> None:
        self.blobs = NoBlobs()
        self._tables = {name: AskingTable(name, ask, is_atomic) for name in ("models", "hints")}

    @property
    def description(self) -> str:
        return "a model of a store"

    def models(self, experiment: str) -> Table:
        return self._tables["models"]

    def queue(self, experiment: str) -> Table:
        return self._tables["hints"]

    def usage(self) -> Table:
        raise NotImplementedError

    def experiments(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing to release."""


class NoBlobs(Blobs):
    """Takes every file and keeps none."""

    def put(self, key: str, source: Any) -> None:
        """Taken."""

    def read(self, key: str) -> bytes:
        return b""

    def get(self, key: str, target: Any) -> None:
        """Nobody asks for one."""

    def create(self, key: str, content: bytes) -> bool:
        return True

    def size(self, key: str) -> int | None:
        return None

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return b""

    def link(self, key: str, seconds: int) -> str:
        return ""

    def access(self, seconds: int) -> Access:
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        return iter(())

    def delete(self, keys: Iterable[str]) -> None:
        """Gone already."""

    def put_many(self, files: Mapping[str, Any]) -> None:
        """Taken."""


def direct(sheets: Mapping[str, Sheet]) -> Ask:
    """Answers every request at once."""
    lock = threading.Lock()

    def ask(request: Request) -> Any:
        with lock:
            return perform(sheets, request)

    return ask


def _same(row: Record | None) -> Record | None:
    return row


def _meets(values: Values, where: Sequence[Condition]) -> bool:
    return all(
        each.column in values and (values[each.column] == each.value) == (each.operator == "==")
        for each in where
    )
