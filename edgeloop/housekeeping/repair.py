"""Mends what can be made anew from the rows, in place, and saves what can be read of a damaged
store into a new one. Nothing that a store holds is removed, but for rows that are set aside into a
file first."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop.errors import BadInput, Conflict, EdgeloopError, RowExists, RowTooLarge
from edgeloop.housekeeping.integrity import CONTENT_NOTE, StoreHealth, is_half_made
from edgeloop.models import Queue, default_plan
from edgeloop.settings import Settings
from edgeloop.store import LostRow, Record, Store, Table, lost_rows

MODELS, USAGE = "models/", "usage"


@dataclass(frozen=True)
class Saved:
    """What came out of a damaged store. `failed` are files that could not be read."""

    models: int
    files: int
    size: int
    failed: tuple[str, ...]
    lost: tuple[LostRow, ...]


def mend(
    store: Store, settings: Settings, health: StoreHealth, experiment: str | None = None
) -> int:
    """Hints and notes, of one experiment or all; how many were put in or removed. Runners may work
    meanwhile: the row is the truth, and each change is made only if nobody else made one."""
    before = sum(problem.is_mended for problem in health.problems)
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
    progress("rows")
    with lost_rows() as lost:
        found = source.saved_rows()
        wanted = (row for row in found if experiment is None or row[0] == f"{MODELS}{experiment}")
        rows = sorted(wanted, key=lambda row: row[0])
    count = 0
    for table, group in groupby(rows, key=lambda row: row[0]):
        records = {record.key: record for _, record in group}
        refused = _insert(_table(target, table), records.values())
        lost += [LostRow(table, row.key, why, dict(row.values)) for row, why in refused]
        count += len(records) - len(refused) if table.startswith(MODELS) else 0
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
    queue = Queue(beside, default_plan(), settings.clock_margin_seconds)
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
