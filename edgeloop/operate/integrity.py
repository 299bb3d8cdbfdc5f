"""Whether a store is sound: its database, every row, the hints and notes beside them, the files
that rows name, and what lies among the files that is none. Reads everything and changes nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop.errors import (
    BadInput,
    BlobMissing,
    Conflict,
    EdgeloopError,
    RowExists,
    RowTooLarge,
    StoreDamaged,
)
from edgeloop.models.files import contents_of, is_as_uploaded
from edgeloop.models.plan import UPLOAD, default_plan, records_of
from edgeloop.models.queue import Queue
from edgeloop.models.trash import is_note
from edgeloop.settings import Settings
from edgeloop.store import BlobInfo, LostRow, Record, Store, Table, Values, check_values, lost_rows
from edgeloop.store.location import (
    VERSION_KEY,
    raise_version,
    read_version,
    unversioned,
)
from edgeloop.store.upgrades import SCHEMA, upgrade

PIECE_BYTES = 8 << 20
SHOWN_FILE = "architecture.json"  # stored with an upload, and no part of the model's size
DATABASE, ROW, HINT, NOTE, FILE, LINK = "database", "row", "hint", "note", "file", "link"
VERSION = "version"
REPAIRED = (HINT, NOTE, VERSION)
CONTENT_NOTE = "content|"  # then the content; which model has it
_HALF_MADE = ("uploading", "deleting", "candidate")


@dataclass(frozen=True)
class StoreProblem:
    """One thing that is wrong. `repair` mends it in place if `is_repairable`."""

    kind: str
    what: str
    why: str

    @property
    def is_repairable(self) -> bool:
        return self.kind in REPAIRED


@dataclass
class StoreHealth:
    """What a check looked at, and what it found. `notes` are no faults."""

    models: int = 0
    files: int = 0
    size: int = 0
    hashed: int = 0
    unknown: int = 0  # files of which no row says the content
    problems: list[StoreProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: list[LostRow] = field(default_factory=list)  # models
    lost_beside: list[LostRow] = field(default_factory=list)  # hints and notes

    def add(self, kind: str, what: str, why: str) -> None:
        self.problems.append(StoreProblem(kind, what, why))


def check_store(
    store: Store,
    settings: Settings,
    content: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    experiment: str | None = None,
) -> StoreHealth:
    """`content`: read every file whose SHA-256 is known, and compare. `experiment`: only its rows
    and files."""
    health = StoreHealth()
    progress("database")
    try:
        for line in store.check():
            health.add(DATABASE, store.description, line)
        experiments = store.experiments() if experiment is None else [experiment]
        schema = _check_version(store, health) if experiments else SCHEMA
    except StoreDamaged as error:
        health.add(DATABASE, store.description, str(error.fields["reason"]))
        experiments, schema = [], SCHEMA
    for name in experiments:
        check = _Experiment(store, name, settings, health, progress, schema)
        try:
            check.run(content)
        except StoreDamaged as error:
            health.add(DATABASE, f"experiment {name}", str(error.fields["reason"]))
    progress("files")
    for what in store.blobs.strange():
        health.add(LINK, what, "it is in the folder of the files, and is not followed or read")
    return health


def _check_version(store: Store, health: StoreHealth) -> int:
    """The schema of the store, or the one that a repair takes it for."""
    try:
        schema = read_version(store).schema
    except StoreDamaged as error:
        health.add(VERSION, store.description, str(error.fields["reason"]))
        return 0
    if schema < SCHEMA:
        health.notes.append(
            f"it has schema {schema}, of an older version: 'edgeloop store upgrade' brings it to "
            f"schema {SCHEMA}"
        )
    return schema


class _Experiment:
    def __init__(
        self,
        store: Store,
        name: str,
        settings: Settings,
        health: StoreHealth,
        progress: Callable[[str], None],
        schema: int,
    ) -> None:
        self._store = store
        self._name = name
        self._health = health
        self._progress = progress
        self._schema = schema
        plan = default_plan(settings.benchmark_runs)
        self._queue = Queue(store.queue(name), plan, settings.clock_margin_seconds)

    def run(self, content: bool) -> None:
        self._progress(f"rows of {self._name}")
        with lost_rows() as lost:
            rows = {row.key: row for row in self._store.models(self._name).query()}
        with lost_rows() as lost_beside:
            beside = {row.key: row for row in self._store.queue(self._name).query()}
        self._health.models += len(rows)
        self._health.lost += lost
        self._health.lost_beside += lost_beside
        for record in rows.values():
            self._check_values(record)
        for row in lost:
            self._health.add(ROW, f"{row.table}: {row.key!r:.200}", row.reason)
        for row in lost_beside:
            self._health.add(_kind_beside(row.key), f"{row.table}: {row.key!r:.200}", row.reason)
        lost_keys = {row.key for row in lost_beside}
        self._check_beside(rows, beside, {row.key for row in lost}, lost_keys)
        self._check_files(rows, {row.key for row in lost}, content)

    def _check_values(self, row: Record) -> None:
        try:
            check_values(row.key, row.values)
        except (BadInput, RowTooLarge) as error:
            why = f"another tool wrote it, and not every store takes it: {error.fields['reason']}"
            self._health.add(ROW, row.key, why)

    def _check_beside(
        self,
        rows: Mapping[str, Record],
        beside: Mapping[str, Record],
        lost: set[object],
        lost_beside: set[object],
    ) -> None:
        begun = [row for row in rows.values() if row.values.get("status")]  # as a sweep does
        due = dict(self._queue.wanted(begun))
        missing = due.keys() - beside.keys() - lost_beside
        for key in sorted(missing) if self._schema >= SCHEMA else ():
            self._health.add(HINT, key, "missing: runners find this work only after their sweep")
        forgotten = 0
        for record in beside.values():
            name = record.values.get("model")
            if isinstance(name, str) and name not in rows and name not in lost:
                if _kind_beside(record.key) == NOTE:  # 'delete' leaves it
                    forgotten += 1
                else:
                    self._health.add(HINT, record.key, "its model is gone")
        if forgotten:
            what = f"{forgotten} in {self._name}"
            self._health.notes.append(f"notes of models that were deleted: {what} ('edgeloop gc')")
        for row in rows.values():
            key = f"{CONTENT_NOTE}{row.values.get('content')}"
            is_known = key in beside or key in lost_beside
            if row.values.get("content") and not is_known and not is_half_made(row.values):
                why = f"missing: {row.key} uploaded again would not be recognized"
                self._health.add(NOTE, key, why)

    def _check_files(self, rows: Mapping[str, Record], lost: set[object], content: bool) -> None:
        self._progress(f"files of {self._name}")
        if not self._store.blobs.is_there() and any(_named(row) for row in rows.values()):
            why = "the folder is not there: check that its disk or share is mounted"
            self._health.add(FILE, f"all files of {self._name}", why)
            return
        stored = {blob.key: blob for blob in self._store.blobs.list(f"{self._name}/")}
        self._health.files += len(stored)
        self._health.size += sum(blob.size for blob in stored.values())
        for row in rows.values():
            if not is_half_made(row.values):
                self._check_row(row, stored, content)
        owners = {key.split("/")[1] for key in stored if key.count("/") > 1}
        deleted = {key.split("/")[1] for key, blob in stored.items() if is_note(blob)}
        orphans = owners - rows.keys() - lost - deleted
        if orphans:
            what = f"{len(orphans)} in {self._name}"
            self._health.notes.append(f"folders of models without a row: {what} ('edgeloop gc')")

    def _check_row(self, row: Record, stored: Mapping[str, BlobInfo], content: bool) -> None:
        text = row.values.get("stages")
        if text and not _is_object(text):
            self._health.add(ROW, row.key, "its column 'stages' is not a JSON object")
        missing = [key for key in _named(row) if self._key(row, key) not in stored]
        for key in missing:
            self._health.add(FILE, self._key(row, key), "missing, and the row names it")
        if missing:
            return
        self._check_size(row, stored)
        if content:
            self._check_content(row)

    def _check_size(self, row: Record, stored: Mapping[str, BlobInfo]) -> None:
        upload = records_of(row.values).get(UPLOAD)
        said = row.values.get("size")
        if upload is None or not upload.files or type(said) is not int:
            return
        keys = [self._key(row, key) for name, key in upload.files.items() if name != SHOWN_FILE]
        size = sum(stored[key].size for key in keys)
        if size != said:
            why = f"its uploaded files have {size:,} bytes, and the row says {said:,}"
            self._health.add(FILE, f"{self._name}/{row.key}", why)

    def _check_content(self, row: Record) -> None:
        contents = contents_of(row)
        try:
            for name, said in contents.items():
                key = self._key(row, name)
                self._progress(key)
                self._health.hashed += 1
                if _sha256(self._store, key) != said:
                    self._health.add(FILE, key, "its content is not what was stored (SHA-256)")
            self._check_unsaid(row, set(_named(row)) - contents.keys())
        except BlobMissing as error:
            self._health.add(FILE, self._key(row, ""), str(error))

    def _check_unsaid(self, row: Record, unsaid: set[str]) -> None:
        """Rows of older versions say the content of an upload's files together."""
        upload = records_of(row.values).get(UPLOAD)
        files = {} if upload is None else upload.files
        keys = {key for name, key in files.items() if name != SHOWN_FILE}
        is_whole = None
        if keys & unsaid:
            self._progress(self._key(row, UPLOAD))
            is_whole = is_as_uploaded(
                row, lambda name: _pieces(self._store, self._key(row, files[name]))
            )
        if is_whole is False:
            why = "its uploaded files are together not what was stored (SHA-256)"
            self._health.add(FILE, f"{self._name}/{row.key}", why)
        read = set[str]() if is_whole is None else keys & unsaid
        self._health.hashed += len(read)
        self._health.unknown += len(unsaid - read)

    def _key(self, row: Record, key: str) -> str:
        return f"{self._name}/{row.key}/{key}"


def _named(row: Record) -> Iterator[str]:
    """Keys below the model's folder."""
    for record in records_of(row.values).values():
        yield from record.files.values()


def is_half_made(row: Values) -> bool:
    """Whether its files and hints may still come, or go."""
    return row.get("status") in _HALF_MADE


def _kind_beside(key: object) -> str:
    return NOTE if str(key).startswith(CONTENT_NOTE) else HINT


def _is_object(value: object) -> bool:
    try:
        return isinstance(json.loads(str(value)), dict)
    except (ValueError, RecursionError):
        return False


def _sha256(store: Store, key: str) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(store, key):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(store: Store, key: str) -> Iterator[bytes]:
    """A file may be larger than memory."""
    start = 0
    while piece := store.blobs.read_range(key, start, PIECE_BYTES):
        yield piece
        start += len(piece)


# Repairs in place what can be derived from the rows, and saves the readable part of a damaged store
# into a new one. Nothing is removed from a store except rows that were set aside into a file first.


MODELS, USAGE = "models/", "usage"


@dataclass(frozen=True)
class Saved:
    """What came out of a damaged store. `failed` are files that could not be read."""

    models: int
    files: int
    size: int
    failed: tuple[str, ...]
    lost: tuple[LostRow, ...]


def restore_version(store: Store, health: StoreHealth) -> None:
    """Remove the version of a store if it cannot be read, and take all steps of an upgrade: they
    change nothing in rows that are up to date."""
    if any(problem.kind == VERSION for problem in health.problems):
        unversioned(store).version().put(VERSION_KEY, None)
        store.begin_writing()


def repair(
    store: Store, settings: Settings, health: StoreHealth, experiment: str | None = None
) -> int:
    """Repair the hints and notes of one experiment or all; returns how many were added or removed.
    Runners may keep working: the row is the truth, and every change is a compare-and-set."""
    before = sum(problem.is_repairable for problem in health.problems)
    for row in health.lost_beside:
        if isinstance(row.key, str):
            _table(store, row.table).put(row.key, None)
    for name in store.experiments() if experiment is None else [experiment]:
        _mend(store, name, settings)
    return before


def set_aside(store: Store, lost: Iterable[LostRow], file: Path) -> int:
    """Write rows that cannot be read to a file, and only then remove them from their tables."""
    rows = [row for row in lost if isinstance(row.key, str)]
    write_lost(rows, file)
    for row in rows:
        _table(store, row.table).put(str(row.key), None)
    return len(rows)


def save(
    source: Store,
    target: Store,
    settings: Settings,
    with_files: bool = True,
    progress: Callable[[str], None] = lambda text: None,
    experiment: str | None = None,
) -> Saved:
    """Copy every row that can be read, and the files, into a store that has none; of one experiment
    or of all."""
    if target.experiments():
        raise BadInput(reason=f"{target.description} has models already: name a new place")
    target = unversioned(target)  # its rows are of the schema of the source, until the end
    progress("rows")
    with lost_rows() as lost:
        saved = source.saved_rows()
        chosen = (row for row in saved if experiment is None or row[0] == f"{MODELS}{experiment}")
        rows = sorted(chosen, key=lambda row: row[0])
    count = 0
    for table, group in groupby(rows, key=lambda row: row[0]):
        records = {record.key: record for _, record in group}
        refused = _insert(_table(target, table), records.values())
        lost += [LostRow(table, row.key, why, dict(row.values)) for row, why in refused]
        count += len(records) - len(refused) if table.startswith(MODELS) else 0
    with contextlib.suppress(StoreDamaged):
        raise_version(target, read_version(source))
    for _ in upgrade(target):
        progress("schema")
    for name in target.experiments():
        _mend(target, name, settings)
    prefix = "" if experiment is None else f"{experiment}/"
    copied = _copy_files(source, target, prefix, progress) if with_files else (0, 0, ())
    files, size, failed = copied
    return Saved(count, files, size, failed, tuple(lost))


def write_lost(rows: Iterable[LostRow], file: Path) -> None:
    """One JSON object per line, with all that the store gave."""
    lines = [
        json.dumps(
            {"table": row.table, "key": _plain(row.key), "why": row.reason, "row": _plain(row.raw)}
        )
        for row in rows
    ]
    write_atomic(file, "".join(f"{line}\n" for line in lines), durable=True)


def _mend(store: Store, experiment: str, settings: Settings) -> None:
    models, beside = store.models(experiment), store.queue(experiment)
    queue = Queue(beside, default_plan(settings.benchmark_runs), settings.clock_margin_seconds)
    queue.sweep(models, store.now())
    for record in list(queue.orphans(models)):
        queue.remove(record)
    for row in models.query():
        content = row.values.get("content")
        if content and not is_half_made(row.values):
            try:
                beside.insert(f"{CONTENT_NOTE}{content}", {"model": row.key})
            except RowExists:
                continue


def _insert(table: Table, records: Collection[Record]) -> list[tuple[Record, str]]:
    """Those that the table does not take, and why; all others are then in."""
    try:
        table.insert_many((row.key, row.values) for row in records)
    except (BadInput, RowTooLarge):
        refused = []
        for row in records:
            try:
                table.insert_many([(row.key, row.values)])
            except (BadInput, RowTooLarge) as error:
                refused.append((row, str(error)))
        return refused
    return []


def _copy_files(
    source: Store, target: Store, prefix: str, progress: Callable[[str], None]
) -> tuple[int, int, tuple[str, ...]]:
    count, size, failed = 0, 0, []
    with tempfile.TemporaryDirectory(prefix="edgeloop-save-") as folder:
        path = Path(folder) / "file"
        for blob in source.blobs.list(prefix):
            progress(blob.key)
            try:
                source.blobs.get(blob.key, path)
            except EdgeloopError as error:
                failed.append(f"{blob.key}: {error}")
                continue
            target.blobs.put(blob.key, path)
            count, size = count + 1, size + blob.size
    return count, size, tuple(failed)


def _table(store: Store, name: str) -> Table:
    """The table that a store calls so: `models/EXPERIMENT`, `queue/EXPERIMENT` or `usage` in SQL;
    Azure names those of models after their experiments, and has one for all queues."""
    kind, slash, experiment = name.partition("/")
    if name == USAGE or (kind == USAGE and experiment == "main"):
        return store.usage()
    if f"{kind}{slash}" == MODELS:
        return store.models(experiment)
    if kind in ("queue", "edgeloopqueue"):
        return store.queue(experiment)
    if experiment == "main":
        return store.models(kind)
    raise Conflict(reason=f"no table is known as {name!r}")


def _plain(value: object) -> object:
    """As JSON can hold it; bytes as base64."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | bool | None) else str(value)
