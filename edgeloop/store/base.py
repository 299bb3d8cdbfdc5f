"""The two seams of state: tables of rows and a space of files.

The story of a row. It is inserted under a key and from then on has a version. Any process may read
it. A writer names the version that it read, and the change is made only if the row still has that
version: the row then gets a new version, never used before, not even by an earlier row of the same
key. So of two writers that read the same version one wins, and the other gets RowChanged. Nothing
in Edgeloop writes to a row in any other way, which is why a claim can be won only once, on every
store alike.

A row holds flat columns: text, whole numbers, floats, booleans. A column that is not there and
a column set to None are the same thing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Callable, Literal, Mapping, Optional, TypeVar, Union

from edgeloop.errors import (
    BadInput,
    BadName,
    EdgeloopError,
    LocalFileError,
    RowDamaged,
    RowExists,
    RowTooLarge,
)

Value = Union[str, int, float, bool]
Values = Mapping[str, Value]
Changes = Mapping[str, Optional[Value]]

FIRST_DUE = 3  # rows of a queue that are read at once: one is wanted
NEXT_DUE = 128
ROW_LIMIT_BYTES = 1_000_000
READ_IN_PART = 'W/"read in part"'  # a version that no row has
WHOLE_TEXT_BYTES = 64_000
LARGEST_DOCUMENT = 8_000_000  # bytes of a ticket, a state or a record
RUNNERS = "edgeloop-runners"  # no experiment may have this name
FLEETS = "edgeloop-fleets"  # nor this one
EXPERIMENT_SETTINGS = "edgeloop-experiments"  # nor this one
STORE_VERSION = "edgeloop-store"  # nor this one
MODELS_TABLE, QUEUE_TABLE, USAGE_TABLE = "models/", "queue/", "usage"
PART_MARK = "__part"  # Azure's columns that hold one part of a long text
_TAKEN_COLUMNS = ("PartitionKey", "RowKey", "Timestamp")
LARGEST_INT = 2**63 - 1
IN_MEMORY_BYTES = 32 << 20


@dataclass(frozen=True)
class Record:
    """A row as it was read: its key, its columns, and the version that a change must name."""

    key: str
    values: Values
    version: str = field(repr=False)


ReadRow = Callable[[], Optional[Record]]
Rank = Callable[[str], str]


@dataclass(frozen=True)
class Condition:
    """Keeps rows whose column equals, or differs from, a text. A row without it matches neither."""

    column: str
    operator: Literal["==", "!="]
    value: str


@dataclass(frozen=True)
class Drift:
    """How a table differs from the versions that a reader had; pass `mark` to the next call.

    `changed` can be read once: of a large table it may be read from the store row by row."""

    changed: Iterable[Record] = ()
    gone: Sequence[str] = ()
    mark: str = ""


class Table(ABC):
    """Rows with unique keys, in the order of their keys.

    `is_atomic`: whether `update_with` is one transaction for tables of the same store.
    """

    is_atomic = False

    @abstractmethod
    def get(self, key: str) -> Record | None:
        """The row as it is now, or None."""

    @abstractmethod
    def insert(self, key: str, values: Values) -> Record:
        """Add a row; raises RowExists when the key is taken."""

    @abstractmethod
    def update(self, record: Record, changes: Changes) -> Record:
        """Change columns (None removes one) if the row is still `record`; else RowChanged.

        A row that is gone counts as changed.
        """

    def update_with(
        self, record: Record, changes: Changes, other: Table, rows: Mapping[str, Values | None]
    ) -> Record:
        """Update a row and, with it, overwrite rows of another table; None removes one.

        A store with transactions makes all of these changes or none. Without them, as here, the
        row comes first and alone decides; what then cannot be written to `other` is left as it is.
        So `other` may hold only what can be rebuilt, such as hints.
        """
        changed = self.update(record, changes)
        for key, values in rows.items():
            with suppress(EdgeloopError):
                other.put(key, values)
        return changed

    def put(self, key: str, values: Values | None) -> None:
        """Make a row what these values say, or remove it (None). Raises RowChanged or RowExists
        when another process writes it at the same time."""
        record = self.get(key)
        if record is None and values is not None:
            self.insert(key, values)
        elif record is not None and values is None:
            self.delete(record)
        elif record is not None and values is not None:
            self.update(record, {**dict.fromkeys(record.values), **values})

    @abstractmethod
    def delete(self, record: Record) -> None:
        """Remove the row if it is still `record`; else RowChanged. A row that is gone is fine."""

    @abstractmethod
    def query(
        self,
        prefix: str = "",
        *,
        after: str = "",
        where: Sequence[Condition] = (),
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Record]:
        """Rows whose key starts with `prefix`, comes after `after`, and that meet all conditions,
        in the order of their keys.

        With `columns`, only these are read: a table that people look at has long columns that it
        does not show. Such a record has a version that no row has, so it cannot be written back.
        """

    def due(
        self, now: float, about: Table, prefix: str, rank: Rank, crowd: int = 1
    ) -> Iterator[tuple[Record, ReadRow]]:
        """For queues: the rows under `prefix` whose column `until` is not after `now`, best first,
        and how to read the row of `about` that their column `model` names.

        In a `crowd`, all who want the best row would only get in each other's way: so it begins
        with some of that many best rows at random, as long as their keys have the best one's rank.

        A store with transactions reads both rows at the same moment; without them, as here, the
        other row is read when it is asked for.
        """
        import random

        best: list[Record] = []
        for record in self._due(now, prefix, FIRST_DUE + crowd):
            if best and (len(best) >= crowd or rank(record.key) != rank(best[0].key)):
                random.shuffle(best)
                yield from ((row, partial(about.get, str(row.values.get("model")))) for row in best)
                best = []
            best.append(record)
        random.shuffle(best)
        yield from ((row, partial(about.get, str(row.values.get("model")))) for row in best)

    def _due(self, now: float, prefix: str, size: int) -> Iterator[Record]:
        after = prefix
        while True:
            page = list(self.query(prefix, after=after, limit=size))
            yield from (row for row in page if not _is_later(row.values.get("until"), now))
            if len(page) < size:
                return
            after, size = page[-1].key, NEXT_DUE

    def marked(self, prefix: str, column: str) -> Iterator[Record]:
        """Rows under `prefix` whose column is true, in the order of their keys. Idle runners ask
        this again and again: a store should answer without sending the other rows."""
        return (record for record in self.query(prefix) if record.values.get(column) is True)

    def prioritized(self, below: float, finished: Sequence[str]) -> Iterator[Record]:
        """Rows whose column `priority`, a number or the text of one, is less than `below`, and
        whose `status` is none of `finished`. There may be others of another priority among them.

        Before it takes work, every runner asks this: a store should answer without reading what is
        finished."""
        where = [Condition("status", "!=", status) for status in finished]
        for record in self.query(where=where):
            with suppress(ValueError, OverflowError):
                if float(record.values.get("priority", "")) < below:
                    yield record

    def drift(self, known: Mapping[str, str], mark: str = "") -> Drift:
        """The rows that are new, changed or gone compared with these versions by key.

        The mark of the last answer makes the next one cheap. A change is reported as soon as it is
        made; a row that is gone is reported at once without a mark, else within the minute.
        """
        versions = {record.key: record.version for record in self.query()}
        changed = (row for row in self.query() if known.get(row.key) != row.version)
        return Drift(changed, [key for key in known if key not in versions])

    def insert_many(self, rows: Iterable[tuple[str, Values]]) -> None:
        """Insert rows that are not there yet, and leave those that are as they are."""
        for key, values in rows:
            with suppress(RowExists):
                self.insert(key, values)


@dataclass(frozen=True)
class BlobInfo:
    """`version` changes whenever the file does; empty where the store does not say."""

    key: str
    size: int
    modified: datetime
    version: str = ""

    def is_same(self, other: BlobInfo) -> bool:
        """Whether nothing was stored since: versions may be of contents, and times of seconds."""
        is_version = plain_version(self.version) == plain_version(other.version)
        seconds = abs((self.modified - other.modified).total_seconds())
        return is_version and self.size == other.size and seconds < 1


@dataclass(frozen=True)
class Access:
    """How to open a space of files elsewhere: one of obstore's ways to make a store, and with what.

    It may hold a signature, so it goes to a job by its environment and is shown nowhere.
    `AzureIdentity` holds none: the machine's own managed identity opens the account.
    """

    make: Literal["LocalStore", "AzureStore", "AzureIdentity", "from_url"]
    options: Mapping[str, str] = field(repr=False)


class Blobs(ABC):
    """Files under slash-separated keys. A put is seen whole or not at all."""

    parallel = 16

    @abstractmethod
    def put(self, key: str, source: Path | bytes) -> None:
        """Store a file, streamed and in parts when it is large."""

    def put_private(self, key: str, content: bytes) -> None:
        """Store a small file with secrets in it. In a folder only its owner can read it; elsewhere
        it is as any file: who may open the store may read it."""
        self.put(key, content)

    @abstractmethod
    def read(self, key: str) -> bytes:
        """The whole content; for small files. Raises BlobMissing."""

    @abstractmethod
    def get(self, key: str, target: Path) -> None:
        """Stream into `target`, which appears only when complete. Raises BlobMissing."""

    @abstractmethod
    def create(self, key: str, content: bytes) -> bool:
        """Store a small file if there is none under this key; False if there is one.

        Of any number of processes that create the same key at once, exactly one gets True.
        """

    @abstractmethod
    def size(self, key: str) -> int | None:
        """The size in bytes; None if there is no such file."""

    def info(self, key: str) -> BlobInfo | None:
        """Size, time and version of one file; None if there is no such file."""
        return next((file for file in self.list(key) if file.key == key), None)

    @abstractmethod
    def read_range(self, key: str, start: int, length: int) -> bytes:
        """A part of a file; shorter if the file ends before. Raises BlobMissing."""

    def read_document(self, key: str) -> bytes:
        """The whole content of a small file that another program may have written. Raises
        BlobMissing, and BadInput if it is so large that it cannot be one of ours."""
        content = self.read_range(key, 0, LARGEST_DOCUMENT + 1)
        if len(content) > LARGEST_DOCUMENT:
            limit = f"{LARGEST_DOCUMENT // 1_000_000} MB"
            raise BadInput(reason=f"the file {key} in the store is larger than {limit}")
        return content

    @abstractmethod
    def link(self, key: str, seconds: int) -> str:
        """An address that gives this file to anybody for a while. Raises StoreRefused where the
        store cannot make one, for example a folder of this machine."""

    @abstractmethod
    def access(self, seconds: int) -> Access:
        """What another process or machine needs to use these files for that long: never the
        account's own key. For 0 seconds it gets no secret, where its own identity will do."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every file whose key starts with `prefix` (a folder: end it with a slash)."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Remove files; those that are not there are fine."""

    def strange(self) -> Iterator[str]:
        """What lies among the files and is none, such as symbolic links, which are not followed."""
        return iter(())

    def is_there(self) -> bool:
        """False where the place of all files is missing: nothing was put yet, or a disk or share is
        not mounted."""
        return True

    def has_room_for(self, size: int) -> bool:
        """False where it is plain beforehand that this many bytes will not fit."""
        return True

    def put_hashed(self, key: str, source: Path) -> str:
        """Store a file and return the SHA-256 of the bytes stored, even if the file changes
        meanwhile. A store whose `put` streams files never has a large one in memory."""
        import hashlib

        try:
            if source.stat().st_size > IN_MEMORY_BYTES:
                return self._put_copy(key, source)
            content = source.read_bytes()
        except OSError as error:
            raise LocalFileError(path=source, reason=error.strerror or str(error)) from None
        self.put(key, content)
        return hashlib.sha256(content).hexdigest()

    def _put_copy(self, key: str, source: Path) -> str:
        """From a copy that no other process can change between `put` and the hash."""
        import shutil
        import tempfile

        from edgeloop._util.files import sha256_of

        with tempfile.TemporaryDirectory(prefix="edgeloop-") as folder:
            copy = Path(folder) / "copy"
            shutil.copyfile(source, copy)
            self.put(key, copy)
            return sha256_of(copy)

    def delete_unchanged(self, files: Iterable[BlobInfo]) -> int:
        """Remove those files that are still the ones that were listed, and not newer; how many."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.parallel) as pool:
            return sum(pool.map(self._delete_unchanged, files))

    def _delete_unchanged(self, file: BlobInfo) -> bool:
        now = self.info(file.key)
        if now is None or not now.is_same(file):
            return False
        self.delete([file.key])
        return True

    def put_many(self, files: Mapping[str, Path]) -> None:
        self._each(self.put, files.items())

    def get_many(self, files: Mapping[str, Path]) -> None:
        self._each(self.get, files.items())

    def delete_folder(self, folder: str) -> None:
        self.delete([info.key for info in self.list(folder.rstrip("/") + "/")])

    def _each(self, action: Callable[[str, Path], None], pairs: Iterable[tuple[str, Path]]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.parallel) as pool:
            for future in [pool.submit(action, key, path) for key, path in pairs]:
                future.result()


class Store(ABC):
    """Where a team's state lives: per experiment a table of models and its queue, and the files."""

    blobs: Blobs

    @property
    @abstractmethod
    def description(self) -> str:
        """What a person reads when the store is named. Holds no secret."""

    @abstractmethod
    def models(self, experiment: str) -> Table:
        """One row per model."""

    @abstractmethod
    def queue(self, experiment: str) -> Table:
        """Hints at work that may be ready, and other notes beside the rows; never the truth."""

    @abstractmethod
    def usage(self) -> Table:
        """One row per use of a device."""

    def runners(self) -> Table:
        """One row per runner, of all experiments. Unless a store has a better place, they lie
        beside the queues, where nothing that lists models meets them."""
        return self.queue(RUNNERS)

    def fleets(self) -> Table:
        """One row per fleet; beside the queues too, unless a store has a better place."""
        return self.queue(FLEETS)

    def experiment_settings(self) -> Table:
        """One row per experiment that has settings; beside the queues too."""
        return self.queue(EXPERIMENT_SETTINGS)

    def version(self) -> Table:
        """The one row that says which schema the store has; beside the queues too."""
        return self.queue(STORE_VERSION)

    def begin_writing(self) -> None:  # noqa: B027 - a store that one process uses has no versions
        """Raises StoreTooNew or StoreTooOld if this version of Edgeloop may not write to the store.
        The first write to a table asks this too; ask it first where files are changed alone."""

    def now(self) -> float:
        """Seconds since the epoch by a clock that all machines share: the server's, if the store
        has one; else this machine's."""
        return time.time()

    @abstractmethod
    def experiments(self) -> list[str]:
        """Experiments that hold models, sorted."""

    def check(self) -> Iterator[str]:
        """What the database says is wrong with itself, one sentence each."""
        return iter(())

    def saved_rows(self) -> Iterator[tuple[str, Record]]:
        """Every row that can be read of `models/EXPERIMENT` and `usage`, with the name of its
        table. Raises nothing that a store could get around, however damaged it is."""
        for experiment in self.experiments():
            for record in self.models(experiment).query():
                yield f"{MODELS_TABLE}{experiment}", record
        for record in self.usage().query():
            yield USAGE_TABLE, record

    @abstractmethod
    def close(self) -> None:
        """Give back connections; the store may not be used afterwards."""


def check_values(key: str, values: Changes, before: Values | None = None) -> None:
    """One rule for every store, so that a row written to one fits all others. `before`: the row
    that they change. What another tool wrote into it stays, even if that is too much already."""
    for column, value in values.items():
        if not column.isidentifier():
            raise BadInput(reason=f"a column cannot be named {column!r}: use letters, digits, _")
        if column in _TAKEN_COLUMNS or PART_MARK in column:
            raise BadInput(reason=f"a column cannot be named {column!r}: a store uses that name")
        if isinstance(value, str) and "\x00" in value:
            raise BadInput(reason=f"column {column} of {key} holds a NUL character")
        if isinstance(value, str) and not is_unicode(value):
            raise BadInput(reason=f"column {column} of {key} holds half a character")
        if isinstance(value, int) and abs(value) > LARGEST_INT:
            raise BadInput(reason=f"column {column} of {key} is over 64 bits: {value}")
    size = _row_size(values if before is None else merged(before, values))
    if size > ROW_LIMIT_BYTES and (before is None or _row_size(before) <= ROW_LIMIT_BYTES):
        raise RowTooLarge(key=key, reason=f"{size:,} bytes; a row may have {ROW_LIMIT_BYTES:,}")


def _is_later(value: Value | None, now: float) -> bool:
    """What is not a number is no time, and so not later."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > now


def is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _row_size(values: Changes) -> int:
    return sum(len(name) + _size(value) for name, value in values.items() if value is not None)


def _size(value: Value) -> int:
    """As Azure counts: a text that it takes whole is UTF-16 there, a longer one UTF-8 in parts."""
    if not isinstance(value, str):
        return 8
    whole = 2 * len(value) if value.isascii() else len(value.encode("utf-16-le"))
    return whole if whole <= WHOLE_TEXT_BYTES else len(value.encode())


def plain_version(version: str) -> str:  # some services quote an ETag in one answer only
    return (version[2:] if version.startswith("W/") else version).strip('"')


def projected(record: Record, columns: Sequence[str] | None) -> Record:
    """The record as a query for these columns returns it; None stands for all."""
    if columns is None:
        return record
    values = {name: record.values[name] for name in columns if name in record.values}
    return Record(record.key, values, READ_IN_PART)


def merged(values: Values, changes: Changes) -> dict[str, Value]:
    return {name: value for name, value in {**values, **changes}.items() if value is not None}


def after_prefix(prefix: str) -> str:
    """The smallest key that is greater than every key that starts with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def check_blob_key(key: str) -> str:
    """Refuse keys that could leave their folder once they become paths."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise BadName(what="file", name=key, reason="it must be a plain relative path")
    if "\\" in key or any(ord(char) < 32 or ord(char) == 127 for char in key):
        raise BadName(what="file", name=key, reason="it has a backslash or a control character")
    if not is_unicode(key):
        raise BadName(what="file", name=ascii(key), reason="it is in no known encoding")
    if re.search(r"#\d+$", key):
        raise BadName(what="file", name=key, reason="a name may not end in '#1'")
    return key


def is_blob_key(key: str) -> bool:
    with suppress(BadName):
        check_blob_key(key)
        return True
    return False


def json_safe(value: Value) -> Value | None:
    """JSON has no NaN and no infinity; readers of our JSON get null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Rows that cannot be read, because another tool wrote them or the disk lost some bits. They are
# left out of every answer, named once, and never overwritten; readers of a table get the others.


Row = TypeVar("Row")

NAMED = 5  # rows of a table that are named; a disk that dies has thousands
_LOG = logging.getLogger("edgeloop.store")
_PLAIN = {str, int, float, bool}
_DECODER = json.JSONDecoder()
_MOST_COLUMNS = 10_000
_known_columns: set[str] = set()
_named: dict[tuple[str, str], set[str]] = {}
_left_out: Counter[str] = Counter()


@dataclass(frozen=True)
class LostRow:
    """A row that was left out, as the store gave it."""

    table: str
    key: object
    reason: str
    raw: object


_collected: ContextVar[list[LostRow] | None] = ContextVar("collected", default=None)


@contextlib.contextmanager
def lost_rows() -> Iterator[list[LostRow]]:
    """Collects rows that cannot be read, in this thread, instead of warning about them: for
    checks and repairs."""
    rows: list[LostRow] = []
    token = _collected.set(rows)
    try:
        yield rows
    finally:
        _collected.reset(token)


def rows_left_out() -> int:
    """How often a row was left out in this process. If it grew during a query, the answer lacks
    rows."""
    return _left_out.total()


class UnreadableRow(Exception):
    """Why a row cannot be read."""


class Place:
    """A table, for those who read it: what its rows are called in messages."""

    def __init__(self, store: str, table: str) -> None:
        self._store = store
        self._table = table

    def readable(self, rows: Iterable[Row], decode: Callable[[Row], Record]) -> Iterator[Record]:
        """The rows that can be decoded; the others are named on stderr."""
        for row in rows:
            try:
                yield decode(row)
            except UnreadableRow as error:
                self.leave_out(row, *error.args)

    def required(self, row: Row, decode: Callable[[Row], Record]) -> Record:
        """The row, or RowDamaged."""
        try:
            return decode(row)
        except UnreadableRow as error:
            key, reason = error.args
            raise RowDamaged(key=key, table=self._table, store=self._store, reason=reason) from None

    def leave_out(self, row: object, key: object, reason: str) -> None:
        collected = _collected.get()
        if collected is not None:
            collected.append(LostRow(self._table, key, reason, row))
            return
        _left_out[self._table] += 1
        named = _named.setdefault((self._store, self._table), set())
        if repr(key) in named or len(named) >= NAMED:
            return
        named.add(repr(key))
        more = "; others will not be named" if len(named) == NAMED else ""
        _LOG.warning(
            "edgeloop: the row %.200r of %s in the store %s is left out, because it cannot be "
            "read: %s%s. 'edgeloop store check' says more.",
            key,
            self._table,
            self._store,
            reason,
            more,
        )


def checked_record(key: object, version: object, values: dict[str, Value]) -> Record:
    """Refuses values that could not be written back."""
    if type(key) is not str or type(version) is not str or not is_unicode(key) or "\0" in key:
        raise UnreadableRow(key, "its key or version is not text")
    if not values.keys() <= _known_columns:
        _check_columns(key, values)
    for value in values.values():
        if type(value) is int and not -LARGEST_INT <= value <= LARGEST_INT:
            raise UnreadableRow(key, "it has a number of more than 64 bits")
    return Record(key, values, version)


def values_of_json(key: object, text: object) -> dict[str, Value]:
    """The columns of a document."""
    return plain_values(key, parsed(key, text), str(text))


def parsed(key: object, text: object) -> Any:
    if type(text) is not str:
        raise UnreadableRow(key, "it is not text")
    try:
        # Half the time of json.loads, which looks for white space around a document.
        document, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        end = -1
    if end == len(text):
        return document
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableRow(key, "it is not JSON") from None


def plain_values(key: object, document: Any, text: str) -> dict[str, Value]:
    """The columns of a document that was parsed from this text. A column that is no plain value
    becomes its JSON."""
    if type(document) is not dict:
        raise UnreadableRow(key, "it is not a JSON object")
    values: dict[str, Any] = document
    if not set(map(type, values.values())) <= _PLAIN:
        values = {name: _plain(value) for name, value in values.items() if value is not None}
    if not text.isascii() or "\\u" in text:
        texts = (part for part in (*values, *values.values()) if type(part) is str)
        if not all(map(is_unicode, texts)):
            raise UnreadableRow(key, "it holds bytes that are no text")
    return values


def _plain(value: Any) -> Value:
    """Columns are flat, so an object in a column's place is free to stand for NaN and infinity."""
    if type(value) in _PLAIN:
        return value  # type: ignore[no-any-return]
    if type(value) is dict and value.get("float") in ("nan", "inf", "-inf"):
        return float(value["float"])
    return json.dumps(value)


def _check_columns(key: object, values: dict[str, Value]) -> None:
    for name in values.keys() - _known_columns:
        if type(name) is not str or not name.isidentifier():
            raise UnreadableRow(key, f"it has a column named {name[:100]!r}")
        if len(_known_columns) < _MOST_COLUMNS:
            _known_columns.add(name)
