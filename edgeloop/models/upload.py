"""Upload: check, reserve a name, store the files, and only then let the row be seen as a model.

The row is inserted first, in status `uploading` and held by a token: an insert can be won by one
only, so two people who want one name cannot mix their files. The row becomes `new` in one
compare-and-set after the last file is in place. Whatever goes wrong before is taken back.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgeloop.errors import EdgeloopError, ModelBusy, NameTaken, RowChanged, RowExists, StoreFull
from edgeloop.models.names import check_model_name, friendly_names
from edgeloop.models.onnx_check import OnnxFile
from edgeloop.models.plan import Plan
from edgeloop.models.queue import Queue
from edgeloop.models.records import UPLOAD, StageRecord, records_of, summary, utc, with_records
from edgeloop.models.row import CANDIDATE, SEARCH_NODE, check_priority
from edgeloop.store import Changes, Record, Store, Value

UPLOAD_LEASE_SECONDS = 6 * 3600.0


OF_A_SEARCH = ("arch", "results", "val_iou", "epochs", "iteration", "training_time")


ARCHITECTURE = "architecture.json"


@dataclass(frozen=True)
class UploadOptions:
    """`architecture` is the JSON that builds the model again; it becomes a file of the model.
    `shapes` are those of inputs whose sizes the file leaves open. `check`: whether to find out
    first that runners can use the model, which takes a process of its own."""

    priority: int | None = None
    benchmark_only: bool = False
    tags: Sequence[str] = ()
    architecture: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    check: bool = True


class Uploader:
    def __init__(
        self,
        store: Store,
        experiment: str,
        plan: Plan,
        queue: Queue,
        node: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._where = store.description
        self._blobs = store.blobs
        self._models = store.models(experiment)
        self._notes = store.queue(experiment)
        self._experiment = experiment
        self._plan = plan
        self._queue = queue
        self._node = f"{node}:upload"  # Archai takes the bare name of its host for its own lock
        self._clock = clock
        self._under_way: dict[str, threading.Lock] = {}

    def upload(self, file: OnnxFile, name: str | None, options: UploadOptions) -> tuple[str, bool]:
        """The model's name, and whether it is new: the same content is not stored twice, unless
        a name of its own is asked for."""
        if name is not None:
            check_model_name(name)
        check_priority(options.priority)
        with self._under_way.setdefault(file.content, threading.Lock()):
            return self._upload(file, name, options)

    def _upload(self, file: OnnxFile, name: str | None, options: UploadOptions) -> tuple[str, bool]:
        """Of equal files in one folder the first is stored before the next is looked at."""
        known = self._row_with(file.content)
        if known is not None and name in (None, known.key):
            if known.values.get("status") != "uploading":
                return known.key, False
            name = known.key  # an upload of this very file that died, or that still goes on
        if not self._blobs.has_room_for(file.size):
            raise StoreFull(store=self._where, reason=f"{file.path.name} does not fit on the disk")
        row = self._reserve(file, name, options)
        if row is None:
            return str(name), False
        self._fill(row, file, options.architecture)
        return row.key, True

    def _fill(self, row: Record, file: OnnxFile, architecture: str) -> None:
        folder = f"{self._experiment}/{row.key}"
        try:
            self._note(file.content, row.key)
            self._blobs.delete_folder(folder)  # what a delete that was cut off may have left
            self._blobs.put_many({f"{folder}/{name}": path for name, path in file.files.items()})
            records = records_of(row.values)
            stored = {name: name for name in file.files}
            if architecture and ARCHITECTURE not in stored:
                self._blobs.put(f"{folder}/{ARCHITECTURE}", architecture.encode())
                stored[ARCHITECTURE] = ARCHITECTURE
            records[UPLOAD] = replace(records[UPLOAD].settled(), files=stored)
            changes = summary(row.values, records, self._plan, self._clock())
            self._queue.update(self._models, row, changes)
        except BaseException:
            self.take_back(row)
            raise

    def take_back(self, row: Record) -> None:
        """Best effort: a store that is away keeps a row that says who began, for 'delete'.

        The row goes last: it keeps others from filling the folder that is being emptied. Files
        that cannot be reached now are cleared away by the next upload of that name.
        """
        with contextlib.suppress(EdgeloopError):
            closed = {"status": "deleting", "node": "", "stages": None}
            closed["since"] = utc(self._clock())
            row = self._models.update(row, closed)
            with contextlib.suppress(EdgeloopError):
                self._blobs.delete_folder(f"{self._experiment}/{row.key}")
            if "results" in row.values:  # a search's results outlive an upload that failed
                back = {"status": CANDIDATE, "node": SEARCH_NODE, "content": None, "size": None}
                self._models.update(row, back)
            else:
                self._models.delete(row)
            note = self._notes.get(_note_key(str(row.values.get("content", ""))))
            if note is not None and note.values.get("model") == row.key:
                self._notes.delete(note)

    def _reserve(self, file: OnnxFile, name: str | None, options: UploadOptions) -> Record | None:
        """A row of our own, `uploading`; None when that name holds this content already."""
        if name is None:
            return self._reserve_friendly(file, options)
        try:
            return self._insert(name, file, options)
        except RowExists:
            return self._take_over(name, file, options)

    def _reserve_friendly(self, file: OnnxFile, options: UploadOptions) -> Record:
        for name in friendly_names():
            with contextlib.suppress(RowExists):
                return self._insert(name, file, options)
        raise ModelBusy(name=self._experiment, reason="no free friendly name was found; use --name")

    def _insert(self, name: str, file: OnnxFile, options: UploadOptions) -> Record:
        """A library that says a lost insert again is told that the row exists: it may be ours."""
        reserved = self._reserved(name, file, options)
        try:
            return self._models.insert(name, reserved)
        except RowExists:
            row = self._models.get(name)
            if row is not None and row.values.get("stages") == reserved["stages"]:
                return row
            raise

    def _take_over(self, name: str, file: OnnxFile, options: UploadOptions) -> Record | None:
        """The name is taken: by this very content, by an upload that died, or by another model."""
        row = self._models.get(name)
        if row is None or row.values.get("status") == "deleting":
            reason = f"it is being deleted; if that was cut off: edgeloop delete {name}"
            raise ModelBusy(name=name, reason=reason)
        upload = records_of(row.values).get(UPLOAD, StageRecord())
        if row.values.get("status") == CANDIDATE:
            return self._promote(row, self._reserved(name, file, options))
        if row.values.get("status") != "uploading":
            if row.values.get("content") == file.content:
                return None
            raise NameTaken(name=name, experiment=self._experiment)
        if upload.expires > self._clock():
            reason = (
                f"{upload.owner or 'somebody'} uploads it; if that ended: edgeloop delete {name}"
            )
            raise ModelBusy(name=name, reason=reason)
        fresh = self._reserved(name, file, options)
        kept = {column: row.values[column] for column in OF_A_SEARCH if column in row.values}
        cleared: dict[str, Value | None] = dict.fromkeys(row.values)
        return self._promote(row, {**cleared, **kept, **fresh})

    def _promote(self, row: Record, columns: Changes) -> Record:
        try:
            return self._models.update(row, columns)
        except RowChanged:
            raise ModelBusy(name=row.key, reason="somebody else took over its upload") from None

    def _reserved(self, name: str, file: OnnxFile, options: UploadOptions) -> dict[str, Value]:
        now = self._clock()
        expires = now + UPLOAD_LEASE_SECONDS
        held = StageRecord(token=uuid.uuid4().hex, owner=self._node, expires=expires, since=now)
        columns: dict[str, Value] = {
            "name": name,
            "status": "uploading",
            "node": self._node,
            "benchmark_only": int(options.benchmark_only),
            "model_date": utc(now),
            "model_name": file.path.name,
            "experiment": self._experiment,
            "since": utc(now),
            "size": file.size,
            "content": file.content,
            **with_records({UPLOAD: held}),
        }
        if options.priority is not None:
            columns["priority"] = options.priority
        if options.architecture:
            columns["arch"] = options.architecture
        if options.shapes:
            columns["shapes"] = json.dumps(dict(options.shapes))
        if options.tags:
            columns["tags"] = json.dumps(list(options.tags), ensure_ascii=False)
        return columns

    def _row_with(self, content: str) -> Record | None:
        """The model that holds this content; a note is believed only when the row agrees."""
        note = self._notes.get(_note_key(content))
        row = self._models.get(str(note.values["model"])) if note is not None else None
        if row is None or row.values.get("content") != content:
            return None
        return None if row.values.get("status") == "deleting" else row

    def _note(self, content: str, name: str) -> None:
        key = _note_key(content)
        with contextlib.suppress(RowExists):
            self._notes.insert(key, {"model": name})
            return
        note = self._notes.get(key)
        if note is not None and self._row_with(content) is None:
            with contextlib.suppress(RowChanged):
                self._notes.update(note, {"model": name})


def _note_key(content: str) -> str:
    return f"content|{content}"
