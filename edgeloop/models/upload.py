"""Upload: check, reserve a name, store the files, and only then let the row be seen as a model.

The row is inserted first, in status `uploading` and held by a token: an insert can be won by one
only, so two people who want one name cannot mix their files. The row becomes `new` in one
compare-and-set after the last file is in place, and says what each file's content is. The bytes
are hashed while they are sent: what is stored is what was checked, even if the file changes
meanwhile. If anything fails before, the upload is taken back.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop._util.system import ordered_map
from edgeloop.errors import (
    BadModel,
    EdgeloopError,
    LocalFileError,
    ModelBusy,
    ModelFailed,
    ModelRefused,
    NameTaken,
    RowChanged,
    RowExists,
    StoreFull,
    UnusableModel,
    WorkerFailed,
)
from edgeloop.models.columns import (
    ARCHITECTURE_ID,
    CANDIDATE,
    SEARCH_NODE,
    architecture_id,
    check_model_name,
    check_priority,
)
from edgeloop.models.files import ARCHITECTURE, ContentDigest, check_file_name, file_chunks
from edgeloop.models.plan import (
    UPLOAD,
    Plan,
    StageRecord,
    Targets,
    records_of,
    summary,
    utc,
    with_records,
)
from edgeloop.models.queue import Queue
from edgeloop.store import Changes, Record, Store, Table, Value, Values, check_blob_key, merged

if TYPE_CHECKING:
    from onnx import ModelProto

    from edgeloop.graph.info import GraphSummary

UPLOAD_LEASE_SECONDS = 6 * 3600.0
UPLOAD_PATIENCE_S = 30.0  # for an upload of the same content by another process
NOTE_PATIENCE_S = 5.0  # a note and its row are milliseconds apart, unless a machine died in between
LOOK_AGAIN_S = 0.1
QUIET_S = 1.0  # before a wait is reported
PARALLEL_FILES = 8
_LOG = logging.getLogger("edgeloop.models")
OF_A_SEARCH = ("arch", "results", "val_iou", "epochs", "iteration", "training_time")
CHANGED = (
    "it changed while it was uploaded, so it was not stored: wait for whatever writes to it, then "
    "upload it again"
)
LARGEST_PROTOBUF = 2**31 - 1


@dataclass(frozen=True)
class UploadOptions:
    """`architecture` is the JSON that builds the model again; it becomes a file of the model.
    `shapes` are those of inputs whose sizes the file leaves open. `check`: whether to find out
    first that runners can use the model, which takes a process of its own. `texts` are further
    files by their names, such as `precision.yaml`."""

    priority: int | None = None
    benchmark_only: bool = False
    tags: Sequence[str] = ()
    architecture: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    check: bool = True
    texts: Mapping[str, str] = field(default_factory=dict)


class Uploader:
    def __init__(
        self,
        store: Store,
        experiment: str,
        plan: Plan,
        queue: Queue,
        node: str,
        clock: Callable[[], float] = time.time,
        targets: Callable[[], Targets] = Targets,
    ) -> None:
        self._targets = targets
        self._where = store.description
        self._blobs = store.blobs
        self._models = store.models(experiment)
        self._notes = ContentNotes(store.queue(experiment))
        self._experiment = experiment
        self._plan = plan
        self._queue = queue
        self._node = f"{node}:upload"  # Archai takes the bare name of its host for its own lock
        self._clock = clock

    def upload(self, file: OnnxFile, name: str | None, options: UploadOptions) -> tuple[str, bool]:
        """The model's name, and whether it is new: the same content is not stored twice, unless
        a name of its own is asked for. Of equal files that several machines upload at once, one is
        stored and the others wait for it."""
        if name is not None:
            check_model_name(name)
        check_priority(options.priority)
        token = uuid.uuid4().hex
        twin, note = self._known_or_noted(file, name, token)
        if twin is not None and twin.values.get("status") != "uploading":
            return twin.key, False
        row = None
        try:
            self._check_room(file)
            row = self._reserve(file, twin.key if twin else name, options, token)
            is_ours = note is None or self._notes.confirm(note, row.key if row else str(name))
        except BaseException:
            if row is not None:
                self.take_back(row)
            self._notes.withdraw(note)
            raise
        if row is not None and name is None and not is_ours:  # this was slow: another one has it
            self.take_back(row)
            return self.upload(file, name, options)
        if row is None:
            return str(name), False
        self._fill(row, file, options)
        return row.key, True

    def _check_room(self, file: OnnxFile) -> None:
        if not self._blobs.has_room_for(file.size):
            reason = f"{file.path.name} does not fit on the disk"
            raise StoreFull(store=self._where, reason=reason)

    def _known_or_noted(
        self, file: OnnxFile, name: str | None, token: str
    ) -> tuple[Record | None, Record | None]:
        """The model that has this content or, if there is none, our own note that it will come.
        Neither: it is stored under the name that was asked for, beside another model. An upload
        under way is waited for, and one that takes too long is returned as it is."""
        content, began, watched = file.content, time.monotonic(), dict[str, float]()
        is_told = False
        while True:
            now = time.monotonic()
            note = self._notes.get(content)
            twin = self._row_with(content, name, note)
            if twin is not None and name not in (None, twin.key):
                return None, None
            if twin is not None:
                if not self._is_under_way(twin) or now - began > UPLOAD_PATIENCE_S:
                    return twin, None
            elif note is None or self._is_dead(note, now - watched.setdefault(note.version, now)):
                self._check_room(file)
                if (won := self._notes.win(content, name, token, note)) is not None:
                    return None, won
            elif name is not None:
                return None, None
            if not is_told and now - began >= QUIET_S:
                is_told = True
                _tell_wait(file, twin)
            time.sleep(LOOK_AGAIN_S)

    def _is_under_way(self, row: Record) -> bool:
        upload = records_of(row.values).get(UPLOAD, StageRecord())
        return row.values.get("status") == "uploading" and upload.expires > self._clock()

    def _is_dead(self, note: Record, seen_s: float) -> bool:
        """Whether a note without a row is orphaned."""
        return not note.values.get("begun") or seen_s > NOTE_PATIENCE_S

    def _fill(self, row: Record, file: OnnxFile, options: UploadOptions) -> None:
        try:
            place = self._place(row)
            folder = f"{self._experiment}/{row.key}"
            self._clear_folder(row)
            stored, sha256 = self._send(f"{folder}/{place}", file), dict(file.sha256)
            for name, text in {ARCHITECTURE: options.architecture, **options.texts}.items():
                if text and name not in stored:
                    content = text.encode()
                    self._blobs.put(f"{folder}/{place}{name}", content)
                    stored[name] = name
                    sha256[name] = hashlib.sha256(content).hexdigest()
            files = {name: f"{place}{name}" for name in stored}
            records = records_of(row.values)
            records[UPLOAD] = replace(records[UPLOAD].settled(), files=files, sha256=sha256)
            columns = {"targets": self._targets().text() or None}
            changes = summary(row.values, records, self._plan, self._clock(), columns)
            self._queue.update(self._models, row, changes)
        except BaseException:
            self.take_back(row)
            raise

    def _send(self, folder: str, file: OnnxFile) -> dict[str, str]:
        """Raises LocalFileError if what was sent is not what was checked."""

        def send(name: str) -> str:
            path = file.files[name]
            if self._blobs.put_hashed(f"{folder}{name}", path) != file.sha256[name]:
                raise LocalFileError(path=path, reason=CHANGED)
            return name

        sent = ordered_map(send, file.files, PARALLEL_FILES, PARALLEL_FILES)
        # Closing waits for the threads. An interrupt between two results would otherwise leave them
        # running, and a file of theirs would arrive after the upload was taken back.
        with contextlib.closing(sent):
            return {name: name for name in sent}

    def _place(self, row: Record) -> str:
        """Where the files go in the model's folder: directly, unless an upload to that name never
        ended. It may wake up and store its files there, so these then go into a folder that is this
        upload's alone."""
        if self._notes.has_broken_off(row.key):
            return f"upload-{records_of(row.values)[UPLOAD].token[:12]}/"
        return ""

    def _clear_folder(self, row: Record) -> None:
        """What a delete that was cut off may have left. Others may fill the folder when the row is
        no longer ours, so that is looked at after listing."""
        left = list(self._blobs.list(f"{self._experiment}/{row.key}/"))
        if left:
            now = self._models.get(row.key)
            if now is None or now.version != row.version:
                raise ModelBusy(name=row.key, reason="another upload of that name took over")
            self._blobs.delete_unchanged(left)

    def remember(self, row: Record) -> None:
        """Note the content of a model whose row is in again, unless another model has it now."""
        content = str(row.values.get("content", ""))
        note = self._notes.get(content)
        if content and self._row_with(content, None, note) is None:
            token = records_of(row.values).get(UPLOAD, StageRecord()).token or uuid.uuid4().hex
            won = self._notes.win(content, row.key, token, note)
            if won is not None:
                self._notes.confirm(won, row.key)

    def breaks_off(self, row: Record) -> None:
        """Note, before the row is deleted, that its upload may still wake up and store files."""
        if row.values.get("status") == "uploading":
            self._notes.note_broken_off(row.key)

    def take_back(self, row: Record) -> None:
        """Best effort: a store that is away keeps a row that says who began, for 'delete'.

        The row is deleted last: it keeps others from filling the folder meanwhile. Files
        that cannot be reached now are cleared away by the next upload of that name.
        """
        upload = records_of(row.values).get(UPLOAD, StageRecord())
        with contextlib.suppress(EdgeloopError):
            closed = {"status": "deleting", "node": "", "stages": None}
            closed["since"] = utc(self._clock())
            row = self._models.update(row, closed)
            with contextlib.suppress(EdgeloopError):
                self._clear_folder(row)
            if "results" in row.values:  # a search's results outlive an upload that failed
                back = {"status": CANDIDATE, "node": SEARCH_NODE, "content": None, "size": None}
                self._models.update(row, back)
            else:
                self._models.delete(row)
            self._notes.forget(str(row.values.get("content", "")), row.key, upload.token)

    def _reserve(
        self, file: OnnxFile, name: str | None, options: UploadOptions, token: str
    ) -> Record | None:
        """A row of our own, `uploading`; None when that name holds this content already."""
        if name is None:
            return self._reserve_friendly(file, options, token)
        reserved = self._reserved(name, file, options, token)
        try:
            return self._insert(name, reserved)
        except RowExists:
            return self._take_over(name, file, reserved)

    def _reserve_friendly(self, file: OnnxFile, options: UploadOptions, token: str) -> Record:
        for name in friendly_names():
            with contextlib.suppress(RowExists):
                return self._insert(name, self._reserved(name, file, options, token))
        raise ModelBusy(name=self._experiment, reason="no free friendly name was found; use --name")

    def _insert(self, name: str, reserved: Values) -> Record:
        """A library that says a lost insert again is told that the row exists: it may be ours."""
        try:
            return self._models.insert(name, reserved)
        except RowExists:
            row = self._models.get(name)
            if row is not None and row.values.get("stages") == reserved["stages"]:
                return row
            raise

    def _take_over(self, name: str, file: OnnxFile, reserved: Values) -> Record | None:
        """The name is taken: by this very content, by an upload that died, or by another model."""
        row = self._models.get(name)
        if row is None or row.values.get("status") == "deleting":
            reason = f"it is being deleted; if that was cut off: edgeloop delete {name}"
            raise ModelBusy(name=name, reason=reason)
        upload = records_of(row.values).get(UPLOAD, StageRecord())
        if row.values.get("status") == CANDIDATE:
            return self._promote(row, reserved)
        if row.values.get("status") != "uploading":
            if row.values.get("content") == file.content:
                return None
            raise NameTaken(name=name, experiment=self._experiment)
        if upload.expires > self._clock():
            owner = upload.owner or "another process"
            reason = f"{owner} uploads it; if that ended: edgeloop delete {name}"
            raise ModelBusy(name=name, reason=reason)
        self.breaks_off(row)
        of_search = {column: row.values[column] for column in OF_A_SEARCH if column in row.values}
        cleared: dict[str, Value | None] = dict.fromkeys(row.values)
        return self._promote(row, {**cleared, **of_search, **reserved})

    def _promote(self, row: Record, columns: Changes) -> Record:
        try:
            return self._models.update(row, columns)
        except RowChanged:
            raise ModelBusy(name=row.key, reason="another upload of that name took over") from None

    def _reserved(
        self, name: str, file: OnnxFile, options: UploadOptions, token: str
    ) -> dict[str, Value]:
        now = self._clock()
        expires = now + UPLOAD_LEASE_SECONDS
        held = StageRecord(token=token, owner=self._node, expires=expires, since=now)
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
            columns[ARCHITECTURE_ID] = architecture_id(options.architecture)
        if options.shapes:
            columns["shapes"] = json.dumps(dict(options.shapes))
        if options.tags:
            columns["tags"] = json.dumps(list(options.tags), ensure_ascii=False)
        return columns

    def _row_with(self, content: str, name: str | None, note: Record | None) -> Record | None:
        """The model that has this content: the one of that name, or the one that its note names. A
        note is believed only when the row agrees."""
        noted = str(note.values.get("model", "")) if note is not None else ""
        for key in filter(None, dict.fromkeys((name, noted))):
            row = self._models.get(key)
            if row is not None and row.values.get("content") == content != "":
                return None if row.values.get("status") == "deleting" else row
        return None


def _tell_wait(file: OnnxFile, twin: Record | None) -> None:
    """Logged: shown on stderr, unless a program configures it otherwise."""
    who = f" by {twin.values.get('node')} as {twin.key}" if twin is not None else ""
    limit = f"waiting for that, at most {UPLOAD_PATIENCE_S:.0f} s"
    _LOG.warning("%s: the same content is being uploaded%s; %s", file.path.name, who, limit)


class ContentNotes:
    """Which model has a content: one note per content, beside the hints of an experiment.

    The note comes before the row, and an insert can be won by one only: so of any number of
    machines that upload a file at once, one stores it. Until its row is in, a note says `begun`.
    If its row does not come, its owner died, and another upload takes the note over by
    compare-and-set. An owner that was only slow learns that when it confirms its note, after its
    row, and takes the row back.

    Names whose upload never ended have a note too; see `Uploader._place`.
    """

    def __init__(self, notes: Table) -> None:
        self._notes = notes

    def get(self, content: str) -> Record | None:
        return self._notes.get(_note_key(content))

    def win(
        self, content: str, name: str | None, token: str, abandoned: Record | None
    ) -> Record | None:
        """The note as ours: a new one, or the one that is known, whose model is gone or will not
        come. None: another upload was faster."""
        values: Changes = {"model": name, "token": token, "begun": True}
        with contextlib.suppress(RowExists, RowChanged):
            if abandoned is not None:
                return self._notes.update(abandoned, values)
            return self._notes.insert(_note_key(content), merged({}, values))
        note = self.get(content)  # a library may repeat a write whose answer was lost
        return note if note is not None and note.values.get("token") == token else None

    def confirm(self, note: Record, model: str) -> bool:
        """Our row is in. False: another upload has taken the note over."""
        values: Changes = {"model": model, "begun": None}
        with contextlib.suppress(RowChanged):
            self._notes.update(note, values)
            return True
        token = note.values["token"]
        with contextlib.suppress(RowExists):
            # A clean-up may have taken it for the note of a model that is gone.
            if self._notes.get(note.key) is None:
                self._notes.insert(note.key, {"model": model, "token": token})
        latest = self._notes.get(note.key)
        return latest is not None and latest.values.get("token") == token

    def withdraw(self, note: Record | None) -> None:
        """Our row will not come."""
        if note is not None:
            with contextlib.suppress(EdgeloopError):
                self._notes.delete(note)

    def forget(self, content: str, model: str, token: str) -> None:
        """The upload with this token was taken back."""
        note = self.get(content)
        values = note.values if note is not None else {}
        if note is not None and (values.get("model"), values.get("token", token)) == (model, token):
            self._notes.delete(note)

    def note_broken_off(self, name: str) -> None:
        with contextlib.suppress(RowExists):
            self._notes.insert(f"broken-off|{name}", {"name": name})

    def has_broken_off(self, name: str) -> bool:
        return self._notes.get(f"broken-off|{name}") is not None


def _note_key(content: str) -> str:
    return f"content|{content}"


# Whether a file is an ONNX model, whole, with all the files it needs. Asked before it is stored.


@dataclass(frozen=True)
class OnnxFile:
    """A checked model. `files`: name below the model's folder → local file, the model first.
    `sha256` is each file's own, `content` that of all of them with the shapes."""

    path: Path
    files: dict[str, Path]
    size: int
    content: str
    sha256: dict[str, str]


def check_onnx(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxFile:
    """Raises BadModel, with the reason and the remedy, unless everything is there and valid. With
    other shapes of its inputs it is another model. What is read here for its graph and its files is
    what the hashes are of: a file that changes later differs from them."""
    from edgeloop.graph.read import external_files

    name = check_file_name(path.name)
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
    if size is None:
        raise BadModel(file=name, reason=f"there is no file {path.absolute()}")
    _check_size(name, size)
    serialized = _read(path)
    others = external_files(path, _parse(path, serialized))
    for location in (name, *others):
        check_blob_key(location)
    digest = ContentDigest(name, shapes or {})
    digest.add(name, [serialized])
    size = len(serialized)
    del serialized
    for location in sorted(others):
        size += digest.add(location, file_chunks(others[location]))
    _check_graph(path)
    return OnnxFile(path, {name: path, **others}, size, digest.content, digest.sha256)


def check_graph(file: OnnxFile, shapes: Mapping[str, tuple[int, ...]]) -> GraphSummary | None:
    """Raises UnusableModel for what no runner could evaluate. None where this machine could not
    find out, which is no fault of the model: a runner will."""
    from edgeloop.graph.isolated import graph_pool

    try:
        summary = graph_pool().summarize(file.path, shapes)
    except ModelRefused:
        raise
    except (ModelFailed, WorkerFailed):
        return None
    if summary.problem:
        raise UnusableModel(file=file.path.name, reason=summary.problem)
    return summary


def _check_size(name: str, size: int) -> None:
    if size == 0:
        raise BadModel(file=name, reason="the file is empty")
    if size > LARGEST_PROTOBUF:
        reason = (
            f"it has {size / 1e9:.1f} GB, and an ONNX file ends at 2 GB. Save it with its weights "
            "beside it: onnx.save_model(model, path, save_as_external_data=True)"
        )
        raise BadModel(file=name, reason=reason)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None


def _parse(path: Path, serialized: bytes) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    from edgeloop.graph.read import check_limits

    try:
        model = onnx.load_model_from_string(serialized)
    except (DecodeError, ValueError):
        reason = "it is not an ONNX model, or it was cut off. Export or copy it again"
        raise BadModel(file=path.name, reason=reason) from None
    if not model.graph.node or not model.ir_version or not model.opset_import:
        reason = "it holds no ONNX graph, or it was cut off. Export or copy it again"
        raise BadModel(file=path.name, reason=reason)
    check_limits(path.name, model)
    return model


def _check_graph(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "invalid graph")
        raise BadModel(file=path.name, reason=f"ONNX's own check says: {first.strip()}") from None


def friendly_names(source: random.Random | None = None) -> Iterator[str]:
    """Adjective and animal; after a few that were taken, with a number that grows."""
    dice = source or random.SystemRandom()
    adjectives, animals = friendly_words()
    for attempt in range(1_000):
        name = f"{dice.choice(adjectives)}-{dice.choice(animals)}"
        yield name if attempt < 8 else f"{name}-{dice.randrange(2, 10 + attempt**2)}"


@functools.cache
def friendly_words() -> tuple[list[str], list[str]]:
    """The adjectives and the animals in `words.txt`: two blocks of words under a comment each."""
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
    adjectives, animals = (block.partition("\n")[2].split() for block in text.split("\n\n"))
    return adjectives, animals
