"""A store in a folder: a file of JSON lines per table, and a folder of files.

A line is one change: `["key", {columns}]`, or `["key", null]` for a row that was deleted. Lines are
only ever appended, under a lock, so a row's version is the position of its last line: no position
is used twice. A process that dies in the middle of a line leaves no line; the next writer cuts the
rest off.
"""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from edgeloop.errors import BadSetting, RowChanged, RowExists, StoreUnavailable
from edgeloop.store import (
    Changes,
    Condition,
    FolderBlobs,
    PluginLocation,
    Record,
    Store,
    Table,
    Values,
    check_values,
    merged,
    projected,
)


def open_store(location: PluginLocation) -> JsonStore:
    """The entry point: `json:FOLDER`, relative to the project."""
    folder = location.url.partition(":")[2]
    if not folder:
        raise BadSetting(where="EDGELOOP_STORE", reason="json: needs a folder: json:results")
    return JsonStore((location.base / Path(folder).expanduser()).absolute())


class JsonStore(Store):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables: dict[Path, JsonTable] = {}
        self.blobs = FolderBlobs(folder / "blobs")

    @property
    def description(self) -> str:
        return f"json:{self._folder}"

    def models(self, experiment: str) -> Table:
        return self._table(self._folder / "models" / f"{quote(experiment, safe='')}.jsonl")

    def queue(self, experiment: str) -> Table:
        return self._table(self._folder / "queue" / f"{quote(experiment, safe='')}.jsonl")

    def usage(self) -> Table:
        return self._table(self._folder / "usage.jsonl")

    def experiments(self) -> list[str]:
        names = [unquote(file.stem) for file in (self._folder / "models").glob("*.jsonl")]
        return sorted(name for name in names if next(self.models(name).query(), None))

    def close(self) -> None:
        """No file stays open."""

    def _table(self, file: Path) -> JsonTable:
        return self._tables.setdefault(file, JsonTable(file))


class JsonTable(Table):
    """Keeps the rows in memory and reads what was appended since: asking again is cheap."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows: dict[str, Record] = {}
        self._read_to = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Record | None:
        return self._current().get(key)

    def insert(self, key: str, values: Values) -> Record:
        check_values(key, values)
        with self._writing() as file:
            if key in self._rows:
                raise RowExists(key=key)
            return self._append(file, key, merged(values, {}))

    def insert_many(self, rows: Iterable[tuple[str, Values]]) -> None:
        with self._writing() as file:
            for key, values in rows:
                check_values(key, values)
                if key not in self._rows:
                    self._append(file, key, merged(values, {}))

    def update(self, record: Record, changes: Changes) -> Record:
        values = merged(record.values, changes)
        check_values(record.key, changes, record.values)
        with self._writing() as file:
            if record.key not in self._rows:
                raise RowChanged(key=record.key)
            self._check_version(record)
            return self._append(file, record.key, values)

    def delete(self, record: Record) -> None:
        with self._writing() as file:
            if record.key in self._rows:
                self._check_version(record)
                file.write(_line(record.key, None))
                del self._rows[record.key]

    def query(
        self,
        prefix: str = "",
        *,
        after: str = "",
        where: Sequence[Condition] = (),
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Record]:
        rows = self._current()
        keys = sorted(key for key in rows if key.startswith(prefix) and key > after)
        matching = (rows[key] for key in keys if _matches(rows[key].values, where))
        return (projected(row, columns) for row in islice(matching, limit))

    def _current(self) -> dict[str, Record]:
        with self._lock:
            try:
                with self._file.open("rb") as file:
                    self._catch_up(file)
            except FileNotFoundError:
                pass
            return dict(self._rows)

    @contextmanager
    def _writing(self) -> Iterator[BinaryIO]:
        """The file at its end, with all of its rows read and no other writer."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._lock, self._file.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
                self._catch_up(file)
                file.truncate(self._read_to)
                yield file
                file.flush()
                self._read_to = file.seek(0, 2)
        except OSError as error:
            self._rows, self._read_to = {}, 0  # read it all again: some of it was not written
            raise StoreUnavailable(store=str(self._file), reason=error.strerror) from None

    def _catch_up(self, file: BinaryIO) -> None:
        file.seek(self._read_to)
        for line in file:
            if not line.endswith(b"\n"):
                break  # another process is writing it, or died while doing so
            key, values = json.loads(line)
            if values is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = Record(key, values, str(self._read_to))
            self._read_to += len(line)

    def _append(self, file: BinaryIO, key: str, values: Values) -> Record:
        record = Record(key, values, str(file.seek(0, 2)))
        file.write(_line(key, values))
        self._rows[key] = record
        return record

    def _check_version(self, record: Record) -> None:
        if self._rows[record.key].version != record.version:
            raise RowChanged(key=record.key)


def _line(key: str, values: Values | None) -> bytes:
    return (json.dumps([key, values], ensure_ascii=False) + "\n").encode()


def _matches(values: Values, where: Sequence[Condition]) -> bool:
    """A row without the column neither equals nor differs."""
    return all(
        condition.column in values
        and (values[condition.column] == condition.value) == (condition.operator == "==")
        for condition in where
    )
