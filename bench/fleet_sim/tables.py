"""Tables and files in memory that cost what the real ones cost.

Each call is counted as the real store sends it: SQL statements, or requests to Azure Tables and
Blobs. The effect of a call happens at one moment, so compare-and-set conflicts are true ones.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sortedcontainers import SortedList

from bench.fleet_sim.backends import PAGE_ENTITIES, Backend
from bench.fleet_sim.kernel import EPOCH
from edgeloop.errors import RowChanged, RowExists
from edgeloop.store import (
    Access,
    BlobInfo,
    Blobs,
    Changes,
    Condition,
    Rank,
    ReadRow,
    Record,
    Store,
    Table,
    Values,
    merged,
    projected,
)
from edgeloop.store.base import FIRST_DUE, NEXT_DUE

SQL_PAGE = 5_000
_MODIFIED = datetime.fromtimestamp(EPOCH, UTC)


class Shelf:
    """The keys of one capability's hints, in order: all of them, and those that may be taken."""

    def __init__(self) -> None:
        self.all: SortedList[str] = SortedList()
        self.open: SortedList[str] = SortedList()
        self._hidden: list[tuple[float, str]] = []
        self._until: dict[str, float] = {}

    def put(self, key: str, until: float, now: float) -> None:
        if key not in self._until:
            self.all.add(key)
        elif self._until[key] == 0.0:
            self.open.remove(key)
        if until <= now:
            self._until[key] = 0.0
            self.open.add(key)
        else:
            self._until[key] = until
            heapq.heappush(self._hidden, (until, key))

    def remove(self, key: str) -> None:
        self.all.remove(key)
        if self._until.pop(key) == 0.0:
            self.open.remove(key)

    def refresh(self, now: float) -> None:
        """What was hidden until now is open."""
        while self._hidden and self._hidden[0][0] <= now:
            until, key = heapq.heappop(self._hidden)
            if self._until.get(key) == until:
                self._until[key] = 0.0
                self.open.add(key)


class SimTable(Table):
    """`partition` is what Azure's limit on entities counts."""

    def __init__(self, backend: Backend, name: str, is_queue: bool = False) -> None:
        self._backend, self._name, self._kernel = backend, name, backend.kernel
        self.is_atomic = backend.is_atomic
        self.rows: dict[str, Record] = {}
        self._versions = itertools.count(1)
        self._shelves: dict[str, Shelf] | None = {} if is_queue else None
        self._keys: SortedList[str] = SortedList()

    def get(self, key: str) -> Record | None:
        self._enter("get")
        found = self.rows.get(key)
        self._backend.leave(rows=1)
        return found

    def insert(self, key: str, values: Values) -> Record:
        self._enter("insert")
        is_taken = key in self.rows
        record = None if is_taken else self._write(key, merged(values, {}))
        self._backend.leave(writes=True)
        if record is None:
            raise RowExists(key=key)
        return record

    def update(self, record: Record, changes: Changes) -> Record:
        """On Azure a column that goes needs the whole entity, which is read first."""
        requests = 1 if self.is_atomic or not _removes(record, changes) else 2
        self._enter("update", requests, requests)
        changed = self._update(record, changes)
        self._backend.leave(requests=requests, writes=True)
        if changed is None:
            raise RowChanged(key=record.key)
        return changed

    def update_with(
        self, record: Record, changes: Changes, other: Table, rows: Mapping[str, Values | None]
    ) -> Record:
        """PostgreSQL: one statement, or a transaction of four where hints come and go."""
        if not self.is_atomic:
            return super().update_with(record, changes, other, rows)
        assert isinstance(other, SimTable)
        is_mixed = len({values is None for values in rows.values()}) > 1
        self._enter("update_with", requests := 4 if is_mixed else 1)
        changed = self._update(record, changes)
        if changed is not None:
            for key, values in rows.items():
                other.assign(key, values)
        self._backend.leave(requests=requests, writes=True)
        if changed is None:
            raise RowChanged(key=record.key)
        return changed

    def put(self, key: str, values: Values | None) -> None:
        self._enter("put")
        self.assign(key, values)
        self._backend.leave(writes=True)

    def delete(self, record: Record) -> None:
        self._enter("delete")
        found = self.rows.get(record.key)
        is_same = found is None or found.version == record.version
        if found is not None and is_same:
            self.assign(record.key, None)
        self._backend.leave(writes=True)
        if not is_same:
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
        """Page by page; the rows of a page are read at one moment."""
        left = limit
        size = SQL_PAGE if self.is_atomic else PAGE_ENTITIES
        while left is None or left > 0:
            wanted = size if left is None else min(size, left)
            page, scanned = self._page(prefix, after, where, wanted)
            self._enter("query", entities=max(len(page), 1))
            self._backend.leave(rows=len(page), scanned=scanned)
            yield from (projected(record, columns) for record in page)
            if len(page) < wanted:
                return
            left, after = None if left is None else left - len(page), page[-1].key

    def due(
        self, now: float, about: Table, prefix: str, rank: Rank, crowd: int = 1
    ) -> Iterator[tuple[Record, ReadRow]]:
        """As `SqlTable.due`: open hints alone, each with its row."""
        if not self.is_atomic:
            yield from super().due(now, about, prefix, rank, crowd)
            return
        assert isinstance(about, SimTable)
        if crowd > 1:
            skip = random.randrange(crowd)
            page, best = self._open(prefix, prefix, skip, FIRST_DUE)
            for hint, row in self._read_with(page, about):
                if rank(hint.key) == rank(best):
                    yield hint, lambda row=row: row
        after, size = prefix, FIRST_DUE
        while True:
            page, _ = self._open(prefix, after, 0, size)
            for hint, row in self._read_with(page, about):
                yield hint, lambda row=row: row
            if len(page) < size:
                return
            after, size = page[-1].key, NEXT_DUE

    def marked(self, prefix: str, column: str) -> Iterator[Record]:
        """Filtered by the server, or the service."""
        keys = list(self._keys_after(prefix, ""))
        found = [row for key in keys if (row := self.rows[key]).values.get(column)]
        self._enter("marked", entities=max(len(found), 1))
        self._backend.leave(rows=len(found), scanned=len(keys) - len(found))
        yield from found

    def _due(self, now: float, prefix: str, size: int) -> Iterator[Record]:
        """As `AzureTable._due`: the service leaves out what is hidden."""
        after = prefix
        while True:
            page, _ = self._open(prefix, after, 0, size)
            yield from page
            if len(page) < size:
                return
            after, size = page[-1].key, NEXT_DUE

    def prioritized(self, below: float, finished: Sequence[str]) -> Iterator[Record]:
        """An index in SQL; on Azure a filter that the service applies to the whole partition."""
        scanned = 0 if self.is_atomic else len(self.rows)
        self._enter("prioritized")
        self._backend.leave(scanned=scanned)
        yield from ()  # no simulated model has a priority of its own

    def insert_many(self, rows: Iterable[tuple[str, Values]]) -> None:
        """SQL: 1,000 at once, those that are there left out. Azure: 100 at once if none of them is
        there, else one by one."""
        pending, size = iter(rows), 1_000 if self.is_atomic else 100
        while batch := list(itertools.islice(pending, size)):
            fresh = [(key, values) for key, values in batch if key not in self.rows]
            if not self.is_atomic and len(fresh) < len(batch):
                self._enter("insert_many")
                self._backend.leave()
                super().insert_many(batch)
                continue
            self._enter("insert_many", entities=len(batch))
            for key, values in fresh:
                self._write(key, merged(values, {}))
            self._backend.leave(rows=len(batch), writes=True)

    def assign(self, key: str, values: Values | None) -> None:
        """The effect of `put`, without its cost."""
        if values is not None:
            self._write(key, merged(values, {}))
        elif self.rows.pop(key, None) is not None:
            if self._shelves is None:
                self._keys.remove(key)
            else:
                self._shelf(key).remove(key)

    def open_count(self, capabilities: Iterable[str]) -> int:
        """How much could be taken now; for the report, at no cost."""
        return sum(len(shelf.open) for c in capabilities if (shelf := self._fresh(f"{c}|")))

    def _enter(self, what: str, requests: int = 1, entities: int = 1) -> None:
        self._backend.enter(f"{self._name}.{what}", self._name, requests, entities)

    def _update(self, record: Record, changes: Changes) -> Record | None:
        found = self.rows.get(record.key)
        if found is None or found.version != record.version:
            return None
        return self._write(record.key, merged(record.values, changes))

    def _write(self, key: str, values: Mapping[str, Any]) -> Record:
        record = Record(key, values, str(next(self._versions)))
        if self._shelves is not None:
            self._shelf(key).put(key, float(values.get("until", 0.0)), self._kernel.now)
        elif key not in self.rows:
            self._keys.add(key)
        self.rows[key] = record
        return record

    def _shelf(self, key: str) -> Shelf:
        assert self._shelves is not None
        return self._shelves.setdefault(key.partition("|")[0], Shelf())

    def _fresh(self, prefix: str) -> Shelf | None:
        shelf = (self._shelves or {}).get(prefix.rstrip("|"))
        if shelf is not None:
            shelf.refresh(self._kernel.now)
        return shelf

    def _open(self, prefix: str, after: str, skip: int, size: int) -> tuple[list[Record], str]:
        """A page of hints that may be taken, and the best one's key. The rows that the statement
        passed over on its way are counted."""
        shelf = self._fresh(prefix)
        if shelf is None:
            self._enter("due")
            self._backend.leave()
            return [], ""
        first = shelf.open.bisect_right(after)
        keys = list(shelf.open[first + skip : first + skip + size])
        page = [self.rows[key] for key in keys]
        end = shelf.all.bisect_right(keys[-1]) if len(keys) == size else len(shelf.all)
        passed = end - shelf.all.bisect_right(after) - len(keys)
        best = shelf.open[first] if first < len(shelf.open) else ""
        self._enter("due", entities=max(len(keys), 1))
        self._backend.leave(rows=2 * len(keys), scanned=passed)
        return page, best

    def _read_with(
        self, page: Sequence[Record], about: SimTable
    ) -> list[tuple[Record, Record | None]]:
        return [(hint, about.rows.get(str(hint.values.get("model")))) for hint in page]

    def _page(
        self, prefix: str, after: str, where: Sequence[Condition], size: int
    ) -> tuple[list[Record], int]:
        page: list[Record] = []
        scanned = 0
        for key in self._keys_after(prefix, after):
            row = self.rows[key]
            if where and not _meets(row.values, where):
                scanned += 1
                continue
            page.append(row)
            if len(page) == size:
                break
        return page, scanned

    def _keys_after(self, prefix: str, after: str) -> Iterator[str]:
        if self._shelves is None:
            lists: list[Any] = [self._keys]
        elif prefix:
            shelf = self._shelves.get(prefix.partition("|")[0])
            lists = [shelf.all] if shelf else []
        else:
            lists = [self._shelves[name].all for name in sorted(self._shelves)]
        for keys in lists:
            first = max(keys.bisect_right(after), keys.bisect_left(prefix))
            for key in keys.islice(first):
                if not key.startswith(prefix):
                    break
                yield key


class SimBlobs(Blobs):
    """Keys by folder; contents are only sizes."""

    def __init__(self, backend: Backend, files: Mapping[str, Any]) -> None:
        self._backend, self._files = backend, files
        self._folders: dict[str, dict[str, None]] = {}

    def put(self, key: str, source: Path | bytes) -> None:
        self._call("blobs.put", lambda: self._folder(key).update({key: None}), self._seconds(1))

    def put_many(self, files: Mapping[str, Path]) -> None:
        """At once, up to 16."""
        for key in files:
            self._folder(key)[key] = None
        self._call("blobs.put", lambda: None, self._seconds(len(files)), len(files))

    def get_many(self, files: Mapping[str, Path]) -> None:
        if files:
            self._call("blobs.get", lambda: None, self._seconds(len(files)), len(files))

    def create(self, key: str, content: bytes) -> bool:
        folder = self._folder(key)
        is_new = key not in folder
        folder[key] = None
        self._call("blobs.create", lambda: None)
        return is_new

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        self._call("blobs.list", lambda: None)
        folder = self._folders.get(_folder_of(prefix), {})
        found = [key for key in folder if key.startswith(prefix)]
        return (BlobInfo(key, 1_000, _MODIFIED, "1") for key in found)

    def delete(self, keys: Iterable[str]) -> None:
        gone = list(keys)
        for key in gone:
            self._folder(key).pop(key, None)
        if gone:
            self._call("blobs.delete", lambda: None, requests=len(gone))

    # No part of a runner's scheduling calls these; one that begins to must fail here.

    def read(self, key: str) -> bytes:
        raise NotImplementedError

    def get(self, key: str, target: Path) -> None:
        raise NotImplementedError

    def size(self, key: str) -> int | None:
        raise NotImplementedError

    def read_range(self, key: str, start: int, length: int) -> bytes:
        raise NotImplementedError

    def link(self, key: str, seconds: int) -> str:
        raise NotImplementedError

    def access(self, seconds: int) -> Access:
        raise NotImplementedError

    def place(self, key: str) -> None:
        """A file that lies there from the start."""
        self._folder(key)[key] = None

    def _call(self, what: str, effect: Any, extra_s: float = 0.0, requests: int = 1) -> None:
        """Requests of one call run side by side, so that they take the time of one."""
        self._backend.enter(what, "", requests, 0)
        effect()
        self._backend.leave()
        if extra_s:
            self._backend.kernel.sleep(extra_s)

    def _seconds(self, files: int) -> float:
        return float(files * self._files["model_mb"] / self._files["transfer_mb_s"])

    def _folder(self, key: str) -> dict[str, None]:
        return self._folders.setdefault(_folder_of(key), {})


class SimStore(Store):
    def __init__(self, backend: Backend, files: Mapping[str, Any]) -> None:
        self.backend = backend
        self.blobs: SimBlobs = SimBlobs(backend, files)
        self._tables: dict[str, SimTable] = {}

    @property
    def description(self) -> str:
        return f"simulated {self.backend.name}"

    def models(self, experiment: str) -> SimTable:
        return self._table(f"models/{experiment}")

    def queue(self, experiment: str) -> SimTable:
        return self._table(f"queue/{experiment}", is_queue=True)

    def runners(self) -> SimTable:
        return self._table("runners")

    def usage(self) -> SimTable:
        return self._table("usage")

    def now(self) -> float:
        self.backend.enter("runners.now", "runners")
        self.backend.leave()
        return self.backend.kernel.now

    def experiments(self) -> list[str]:
        names = [name for name, table in self._tables.items() if table.rows]
        return sorted(n.removeprefix("models/") for n in names if n.startswith("models/"))

    def close(self) -> None:
        """Nothing to release."""

    def _table(self, name: str, is_queue: bool = False) -> SimTable:
        if name not in self._tables:
            self._tables[name] = SimTable(self.backend, name, is_queue)
        return self._tables[name]


def _folder_of(key: str) -> str:
    return "/".join(key.split("/", 2)[:2])


def _removes(record: Record, changes: Changes) -> bool:
    return any(value is None and name in record.values for name, value in changes.items())


def _meets(values: Values, where: Sequence[Condition]) -> bool:
    return all(
        condition.column in values
        and (values[condition.column] == condition.value) == (condition.operator == "==")
        for condition in where
    )
