"""A store in memory that passes the same contract suites as the real ones."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence

from edgeloop.errors import RowChanged, RowExists
from edgeloop.store import Blobs, Changes, Condition, Record, Store, Table, Values
from edgeloop.store.base import check_values, merged, projected


class MemoryTable(Table):
    def __init__(self) -> None:
        self._rows: dict[str, Record] = {}
        self._versions = itertools.count(1)
        self._lock = threading.Lock()

    def get(self, key: str) -> Record | None:
        return self._rows.get(key)

    def insert(self, key: str, values: Values) -> Record:
        with self._lock:
            if key in self._rows:
                raise RowExists(key=key)
            return self._write(key, values)

    def update(self, record: Record, changes: Changes) -> Record:
        with self._lock:
            if self._rows.get(record.key) != record:
                raise RowChanged(key=record.key)
            return self._write(record.key, merged(record.values, changes))

    def delete(self, record: Record) -> None:
        with self._lock:
            if self._rows.get(record.key, record) != record:
                raise RowChanged(key=record.key)
            self._rows.pop(record.key, None)

    def query(
        self,
        prefix: str = "",
        *,
        after: str = "",
        where: Sequence[Condition] = (),
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Record]:
        keys = sorted(key for key in self._rows if key.startswith(prefix) and key > after)
        rows = (self._rows[key] for key in keys if key in self._rows)
        matching = (projected(row, columns) for row in rows if _meets(row.values, where))
        return itertools.islice(matching, limit)

    def _write(self, key: str, values: Values) -> Record:
        check_values(key, values)
        record = Record(key, merged(values, {}), str(next(self._versions)))
        self._rows[key] = record
        return record


class MemoryStore(Store):
    def __init__(self) -> None:
        self._tables: dict[str, MemoryTable] = {}
        self.blobs = memory_blobs()

    @property
    def description(self) -> str:
        return "memory"

    def models(self, experiment: str) -> Table:
        return self._table(f"models/{experiment}")

    def queue(self, experiment: str) -> Table:
        return self._table(f"queue/{experiment}")

    def usage(self) -> Table:
        return self._table("usage")

    def experiments(self) -> list[str]:
        filled = [name for name, table in self._tables.items() if next(table.query(), None)]
        names = [name for name in filled if name.startswith("models/")]
        return sorted(name.removeprefix("models/") for name in names)

    def close(self) -> None:
        """Nothing to release."""

    def _table(self, name: str) -> MemoryTable:
        return self._tables.setdefault(name, MemoryTable())


def memory_blobs() -> Blobs:
    from obstore.store import MemoryStore as ObjectMemory

    from edgeloop.store.files import ObjectBlobs

    return ObjectBlobs(ObjectMemory(), "memory")


def _meets(values: Values, where: Sequence[Condition]) -> bool:
    return all(
        condition.column in values
        and (values[condition.column] == condition.value) == (condition.operator == "==")
        for condition in where
    )
