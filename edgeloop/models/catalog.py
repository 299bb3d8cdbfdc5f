"""The catalog: everything a person does to models, and to what their experiment asks of machines.
Reads rows and files; changes them by compare-and-set, so that it may be used while runners work on
the same rows."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgeloop.errors import (
    BadCsv,
    BadInput,
    Conflict,
    ModelBusy,
    NoSuchModel,
    RowChanged,
    RowExists,
    StoreFull,
    WaitTimeout,
)
from edgeloop.models.columns import (
    ARCHITECTURE_ID,
    CANDIDATE,
    CONFLICT_LIMIT,
    LATENCY,
    LATENCY_COLUMNS,
    SEARCH_NODE,
    Edit,
    can_be_key,
    change_row,
    check_experiment_name,
    check_model_name,
    check_priority,
    column_of,
    filled,
    is_pattern,
    matches,
    runs_of,
)
from edgeloop.models.files import ModelFile, ModelFiles
from edgeloop.models.plan import (
    UPLOAD,
    DeviceTarget,
    Plan,
    StageRecord,
    Targets,
    form_text,
    holders_of,
    is_foreign,
    is_on,
    records_of,
    retargeting,
    summary,
    utc,
)
from edgeloop.models.queue import Queue
from edgeloop.models.trash import Trash
from edgeloop.models.upload import (
    Uploader,
    UploadOptions,
    check_graph,
    check_onnx,
    friendly_names,
)
from edgeloop.store import Changes, Condition, Record, Store, Table, Value, Values
from edgeloop.store.base import projected

if TYPE_CHECKING:
    from edgeloop.graph.info import GraphSummary

PARALLEL_MODELS = 4
ENDED = ("complete", "error")
NO_MODEL = (CANDIDATE, "uploading", "deleting")
FEW = 32  # rows that are read one by one; from here on a query for all of their kind is quicker
_OF_STAGES = ("quantized", "mean", "f1_onnx", "completed")
Results = Mapping[str, Mapping[str, float]]  # conditions → values


@dataclass(frozen=True)
class Model:
    """A handle on one model, as returned by `Workspace.upload` and `Workspace.model`.

    Attributes:
        name: Name of the model.
        catalog: The catalog it belongs to.

    Examples:
        >>> from edgeloop import Workspace
        >>> model = Workspace.open().upload("net.onnx", "calm-heron")
        >>> model.row["status"]
        'new'
        >>> [file.name for file in model.files()]
        ['net.onnx']
    """

    name: str
    catalog: Catalog = field(repr=False)

    @property
    def row(self) -> Values:
        """The model's row, read from the store at every access."""
        return self.catalog.get(self.name).values

    def files(self) -> list[ModelFile]:
        """List the model's files.

        Returns:
            The uploaded files and those of accepted results.
        """
        return self.catalog.files(self.name)

    def download(self, to: Path | str, match: str = "*") -> list[Path]:
        """Fetch files of the model.

        Args:
            to: Folder to write to; it is created.
            match: Glob for the names of files.

        Returns:
            The paths that were written.

        Examples:
            >>> from edgeloop import Workspace
            >>> model = Workspace.open().upload("net.onnx", "calm-heron")
            >>> [path.name for path in model.download("calm", "*.onnx")]
            ['net.onnx']
        """
        return self.catalog.download(self.name, Path(to), match)

    def reset(self, stages: Collection[str] = ()) -> set[str]:
        """Discard results, so that runners evaluate the model again.

        Args:
            stages: Stages to repeat, for example `["benchmark"]`, with those that depend on
                them. By default all.

        Returns:
            The stages that were reset. Runners that are working on them lose their claims.
        """
        return self.catalog.reset(self.name, stages)

    def set_priority(self, priority: int | None) -> None:
        """Change when runners take the model.

        Args:
            priority: Lower runs sooner, 0 before everything. None restores the priorities of the
                stages.
        """
        self.catalog.set_priority(self.name, priority)

    def delete(self) -> None:
        """Delete the model's row and all its files, for good. Runners that work on it lose their
        claims; a model that another tool holds, such as Archai, is refused."""
        self.catalog.delete(self.name)


@dataclass(frozen=True)
class Uploaded:
    """What became of one file: its model, and whether it is new or was here already. `summary` is
    what its graph says; None where that was not looked at."""

    path: Path
    model: Model
    is_new: bool
    size: int
    summary: GraphSummary | None = None

    @property
    def outlook(self) -> str:
        """What will be evaluated, in a few words."""
        from edgeloop.graph.info import fitting_task

        if self.summary is None or self.summary.info is None:
            return "not checked"
        task = fitting_task(self.summary.info).task
        if task == "tensors":
            return "no task fits: latency, agreement with float"
        return f"latency, {task}"


class Catalog:
    def __init__(
        self,
        store: Store,
        experiment: str,
        plan: Plan,
        *,
        node: str,
        margin_s: float = 15.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.experiment = check_experiment_name(experiment)
        self._store = store
        self._models = store.models(experiment)
        self._plan = plan
        self._node = node
        self._margin_s = margin_s
        self._clock = clock
        self._uploads: dict[str, threading.Lock] = {}  # by content

    @functools.cached_property
    def stored(self) -> ModelFiles:
        """The files of the models."""
        return ModelFiles(self._store, self.experiment)

    @functools.cached_property
    def trash(self) -> Trash:
        """The models that were deleted and can be restored."""
        return Trash(self._store, self.experiment)

    @functools.cached_property
    def _queue(self) -> Queue:
        return Queue(self._store.queue(self.experiment), self._plan, self._margin_s)

    @functools.cached_property
    def _uploader(self) -> Uploader:
        return Uploader(
            self._store,
            self.experiment,
            self._plan,
            self._queue,
            self._node,
            self._clock,
            targets=lambda: read_settings(self._store, self.experiment).for_models(),
        )

    def upload(
        self, path: Path | str, name: str | None = None, options: UploadOptions | None = None
    ) -> Uploaded:
        """Check a model, then store it under a name of its own."""
        options = options or UploadOptions()
        file = check_onnx(Path(path), options.shapes)
        summary = check_graph(file, options.shapes) if options.check else None
        # Of equal files that threads upload at once, one is stored before the next is compared.
        with self._uploads.setdefault(file.content, threading.Lock()):
            chosen, is_new = self._uploader.upload(file, name, options)
        return Uploaded(Path(path), Model(chosen, self), is_new, file.size, summary)

    def upload_many(
        self, paths: Sequence[Path], options: UploadOptions | None = None
    ) -> Iterator[Uploaded | Exception]:
        """Several at once, answered in the order given; one that fails does not stop the others."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(PARALLEL_MODELS) as pool:
            futures = [pool.submit(self.upload, path, None, options) for path in paths]
            try:
                for future in futures:
                    error = future.exception()
                    if error is None:
                        yield future.result()
                    elif isinstance(error, Exception):
                        yield error
                    else:
                        raise error
            finally:
                for future in futures:
                    future.cancel()

    def get(self, name: str) -> Record:
        row = self._models.get(name) if can_be_key(name) else None
        if row is None:
            raise NoSuchModel(pattern=name, experiment=self.experiment)
        return row

    def rows(
        self,
        patterns: Iterable[str] = (),
        tag: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Record]:
        """Rows by name, glob or both, each once and in the order asked for; all without any. Of
        `columns`, as `Table.query` reads them, and the tags if one is asked for."""
        seen: set[str] = set()
        if columns is not None and tag is not None:
            columns = [*columns, "tags"]
        for pattern in patterns or ("*",):
            for row in self._matching(pattern, columns):
                if row.key not in seen and (tag is None or tag in tags_of(row.values)):
                    seen.add(row.key)
                    yield row

    def files(self, name: str) -> list[ModelFile]:
        """A model's files: the upload, and those of accepted results."""
        return self.stored.of(self.get(name))

    def download(self, name: str, to: Path, match: str = "*") -> list[Path]:
        """Fetch the files whose names match: all of them, each whole and as the row says, or none.
        Raises FileDamaged where the store has something else."""
        row = self.get(name)
        files = [file for file in self.stored.of(row) if matches(file.name, match)]
        return self.stored.download(row, files, to) if files else []

    def reset(self, name: str, stages: Collection[str] = ()) -> set[str]:
        """Test a model again: these stages and those that depend on them, or all.

        Runners of ours that hold these stages lose their leases; the stages' files go too. Another
        tool that holds the row cannot be told: it would write its results beside the new ones.
        """
        for stage in stages:
            self._plan[stage]  # before the row is read: raises for one that there is not
        cleared: set[str] = set()

        def clear(row: Record) -> Changes:
            self._refuse_half_made(row)
            self._refuse_foreign(row)
            chosen = self._plan.chosen_in(row.values, stages)
            cleared.clear()
            cleared.update(stage.name for stage in chosen)
            kept = {key: r for key, r in records_of(row.values).items() if key not in cleared}
            columns = [column for stage in chosen for column in (*stage.fills, *stage.clears)]
            gone = dict.fromkeys([*columns, "completed", "error"])
            left = {key: value for key, value in row.values.items() if key not in gone}
            left["status"] = "new"
            changes = summary(left, kept, self._plan, self._clock())
            return {**{key: None for key in gone if key in row.values}, **changes}

        first = self.get(name)
        made_by = self._plan.chosen_in(first.values, stages)
        patterns = [pattern for stage in made_by for pattern in stage.artefacts]
        stale = self.stored.stale(first, {stage.name for stage in made_by}, patterns)
        _, after = self._change(name, clear)
        self._queue.restore(name, after.values)
        self._store.blobs.delete_unchanged(stale)  # results that came since then stay
        return cleared

    def retarget(self, targets: Targets) -> int:
        """Write for whom models are evaluated into every row that says something else; how many.
        A complete model that a new device asks for has work again."""
        count, text = 0, targets.text()
        edit = retargeting(targets, self._plan, self._clock)
        for row in self._models.query(columns=["targets", "status"]):
            if row.values.get("status") in NO_MODEL or row.values.get("targets", "") == text:
                continue
            with contextlib.suppress(NoSuchModel):
                before, after = self._change(row.key, edit)
                count += before is not after
        return count

    def failed_stages(self, row: Values) -> list[str]:
        """What a model in error could not do; empty where its row does not tell. What it has done
        is worth keeping when the model is tried again."""
        records = records_of(row)
        failed = []
        for stage in self._plan.for_model(row):
            record = records.get(stage.name, StageRecord())
            if (record.attempts or record.silent) and not stage.is_done(row):
                failed.append(stage.name)
        return failed

    def discard(self, name: str) -> bool:
        """Delete the row so that `restore` can bring the model back until the trash is emptied.
        False: it is gone for good, since an upload or a delete of it broke off, its files are not
        Edgeloop's own, or the disk has no room for its note.

        As in `delete`, runners of ours lose their leases, and a row that another tool holds is
        refused. The note is written before the row is marked, by whoever marks it first."""
        first = self.get(name)
        self.stored.check_place(first)
        self._store.begin_writing()  # before the note, which no table would refuse
        is_marked = first.values.get("status") == "deleting" and self.trash.has(name)
        if not is_marked and (
            first.values.get("status") in ("uploading", "deleting")
            or self.stored.is_elsewhere(first)
        ):
            self.delete(name)
            return False

        def close(row: Record) -> Changes:
            if _upload_of(row) != _upload_of(first):
                raise ModelBusy(name=name, reason="it was uploaded again meanwhile")
            self._refuse_foreign(row)
            if row.values.get("status") != "deleting":
                self.trash.put(row)
            return self._closing()

        try:
            _, marked = self._change(name, close)
        except StoreFull:
            self.delete(name)
            return False
        try:
            self._models.delete(marked)
        except RowChanged:
            reason = "another command is deleting it, too"
            raise ModelBusy(name=name, reason=reason) from None
        return True

    def restore(self, name: str) -> None:
        """Bring back a discarded model with its results. Whoever held a stage of it holds it no
        longer. Raises NotFound where the trash has no such model."""
        values = self.trash.read(check_model_name(name))
        try:
            row = self._models.insert(name, values)
        except RowExists:
            reason = f"{name} cannot be restored: experiment '{self.experiment}' has a model of "
            raise BadInput(reason=f"{reason}that name; delete that one first") from None
        self.unlock(name)
        self._uploader.remember(row)
        self.trash.remove(name)

    def _closing(self) -> Changes:
        closed: Changes = {"status": "deleting", "node": "", "stages": None}
        return {**closed, "since": utc(self._clock())}

    def delete(self, name: str) -> None:
        """Delete all files, then the row. A delete that is cut off can be repeated.

        A delete that slept meanwhile deletes nothing of a later model of that name: files are
        listed while the row is still the one that was marked, and only those are deleted.

        As in `reset`, runners of ours lose their leases, and a row that another tool holds is
        refused: that tool would write its results into a row without a model.
        """

        first = self.get(name)
        self.stored.check_place(first)
        self.stored.all_of(first)  # a row whose files cannot be listed is not marked

        def close(row: Record) -> Changes:
            if _upload_of(row) != _upload_of(first):
                raise ModelBusy(name=name, reason="it was uploaded again meanwhile")
            self._refuse_foreign(row)
            self._uploader.breaks_off(row)
            return self._closing()

        before, marked = self._closed(name, close)
        files = self.stored.all_of(before)
        row = self._models.get(name)
        if row is None or row.values.get("status") != "deleting":
            return  # another delete was faster
        if row.version == marked.version:
            self._store.blobs.delete_unchanged(files)
            with contextlib.suppress(RowChanged):
                self._models.delete(row)
                return
        raise ModelBusy(name=name, reason="another command is deleting it, too")

    def _closed(self, name: str, close: Edit) -> tuple[Record, Record]:
        """On a full disk even the mark has no room: the files are then deleted first."""
        try:
            return self._change(name, close)
        except StoreFull:
            self._store.blobs.delete_unchanged(self.stored.all_of(self.get(name)))
            return self._change(name, close)

    def clear_half_made(self, row: Record) -> bool:
        """Finish an upload or a delete that broke off; False if another process is doing so. A
        search's results outlive the upload of the model."""
        is_upload = row.values.get("status") == "uploading"
        had_results = any(row.values.get(column) for column in _OF_STAGES)
        if is_upload or ("results" in row.values and not had_results):
            self._uploader.breaks_off(row)
            self._uploader.take_back(row)
        else:
            with contextlib.suppress(NoSuchModel):
                self.discard(row.key)
        after = self._models.get(row.key)
        return after is None or after.values.get("status") not in ("uploading", "deleting")

    def clear_orphans(self, name: str, before: float) -> bool:
        """Delete the files of a model that has no row. A row keeps the name meanwhile, so that
        nothing is uploaded to the folder that is being emptied; False if the name is taken, or if a
        file is not older than `before`: an upload that stores files before its row has begun."""
        values = {"name": name, "status": "deleting", "since": utc(self._clock())}
        try:
            row = self._models.insert(check_model_name(name), values)
        except RowExists:
            return False
        listed = list(self._store.blobs.list(f"{self.experiment}/{name}/"))
        now = self._models.get(name)
        is_ours = now is not None and now.version == row.version
        is_old = is_ours and all(blob.modified.timestamp() < before for blob in listed)
        if is_old:
            self._store.blobs.delete_unchanged(listed)
        with contextlib.suppress(RowChanged):
            self._models.delete(row)
        return is_old

    def unlock(self, name: str, node: str | None = None) -> list[str]:
        """Take the model's claims (or those of one machine) from their holders; names the stages.

        Whatever those still do is thrown away when they hand it in, and counts as no attempt.
        """
        freed: list[str] = []

        def free(row: Record) -> Changes | None:
            if row.values.get("status") in (CANDIDATE, "deleting"):
                return None
            records = records_of(row.values)
            freed[:] = [
                stage
                for stage, record in records.items()
                if record.is_held and stage != UPLOAD and _is_meant(record.owner, node)
            ]
            foreign = is_foreign(row.values, records) and _is_meant(str(row.values["node"]), node)
            if not freed and not foreign:
                return None
            for stage in freed:
                records[stage] = records[stage].given_back()
            return summary({**row.values, "node": ""}, records, self._plan, self._clock())

        before, after = self._change(name, free)
        self._queue.restore(name, after.values)
        return freed or (["a claim of another tool"] if before is not after else [])

    def set_priority(self, name: str, priority: int | None) -> None:
        """Lower is sooner, 0 before everything else; None gives back the stages' own."""
        check_priority(priority)
        self._change(name, lambda row: {"priority": priority})

    def annotate(self, name: str, tags: Sequence[str], comment: str) -> None:
        """Replace the labels of a model, and what people noted about it."""
        changes: Changes = {"tags": json.dumps(list(dict.fromkeys(tags)), ensure_ascii=False)}
        self._change(name, lambda row: {**changes, "comment": comment or None})

    def held_by(self, node: str) -> list[Record]:
        """Models on which this machine holds a claim. Finished ones are not looked at."""
        where = [Condition("status", "!=", status) for status in ENDED]
        rows = self._models.query(where=where)
        return [row for row in rows if any(is_on(owner, node) for owner in holders_of(row.values))]

    def wait(self, names: Collection[str], timeout_s: float | None = None) -> None:
        """Until all of these have ended: complete, or resting in error."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause, waiting = 0.05, list(names)
        while waiting := [n for n in waiting if self.get(n).values.get("status") not in ENDED]:
            if deadline is not None and time.monotonic() > deadline:
                raise WaitTimeout(what=", ".join(waiting), seconds=timeout_s, verb="status")
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    def stages_of(self, at_work: Sequence[str]) -> Iterator[tuple[str, Value]]:
        """The column `stages` of rows that machines hold (`is_at_work`), by name. They are as many
        as machines, however many rows the table has."""
        if len(at_work) <= FEW:
            rows: Iterable[Record | None] = map(self._models.get, at_work)
        else:
            where = [Condition("status", "!=", status) for status in ENDED]
            where.append(Condition("node", "!=", ""))
            rows = self._models.query(where=where, columns=["stages"])
        names = set(at_work)
        for row in rows:
            if row is not None and row.key in names and "stages" in row.values:
                yield row.key, row.values["stages"]

    def _matching(self, pattern: str, columns: Sequence[str] | None = None) -> Iterator[Record]:
        if not is_pattern(pattern):
            yield projected(self.get(pattern), columns)
            return
        prefix = pattern[: min(pattern.index(char) for char in "*?[" if char in pattern)]
        has_match = False
        for row in self._models.query(prefix, columns=columns):
            if pattern == "*" or matches(row.key, pattern):
                has_match = True
                yield row
        if not has_match and pattern != "*":
            raise NoSuchModel(pattern=pattern, experiment=self.experiment)

    def _refuse_foreign(self, row: Record) -> None:
        is_candidate = row.values.get("status") == CANDIDATE  # held by the search that made it
        if not is_candidate and is_foreign(row.values, records_of(row.values)):
            reason = (
                f"another tool works on it on {row.values['node']}; if that machine is dead: "
                f"edgeloop unlock {row.key}"
            )
            raise ModelBusy(name=row.key, reason=reason)

    def _change(self, name: str, edit: Edit) -> tuple[Record, Record]:
        update = functools.partial(self._queue.update, self._models)
        changed = change_row(self._models, name, edit, update=update)
        if changed is None:
            raise NoSuchModel(pattern=name, experiment=self.experiment)
        return changed

    def _refuse_half_made(self, row: Record) -> None:
        if row.values.get("status") == CANDIDATE:
            reason = (
                f"{row.key} is a search's candidate with no model yet: there is nothing to test"
            )
            raise BadInput(reason=reason)
        if row.values.get("status") in ("uploading", "deleting"):
            reason = f"it is {row.values['status']}; 'edgeloop delete {row.key}' clears it away"
            raise ModelBusy(name=row.key, reason=reason)


def is_at_work(row: Values) -> bool:
    """Whether a machine holds the row."""
    return filled(row.get("node")) and row.get("status") not in ENDED


def _upload_of(row: Record) -> str:
    """What tells one upload of a name from another."""
    upload = records_of(row.values).get(UPLOAD, StageRecord())
    return upload.token or "".join(upload.committed[-1:])


def _is_meant(owner: str, node: str | None) -> bool:
    return node is None or is_on(owner, node)


def tags_of(row: Values) -> list[Value]:
    """The labels of a model; none where its column cannot be read."""
    try:
        return list(json.loads(str(row.get("tags") or "[]")))
    except (ValueError, TypeError):
        return []


# Spreadsheets in Japanese and Chinese take the full-width signs for the plain ones.
_FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "\t", "\r", "\n")


class Writable(Protocol):
    """Where lines of a CSV go."""

    def write(self, line: str, /) -> int: ...


def write_csv(rows: Iterable[Values], columns: Sequence[str], file: Writable) -> None:
    writer = csv.writer(_Lines(file), lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([cell(column, row.get(column)) for column in columns] for row in rows)


def read_csv(path: Path) -> list[dict[str, Value]]:
    """Rows as they were written; an empty cell is a column that is not filled."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            return [
                {name: _value(name, text) for name, text in row.items() if text} for row in reader
            ]
    except (OSError, ValueError, csv.Error, TypeError, AttributeError) as error:
        raise BadCsv(file=path, reason=str(error)) from None


def cell(column: str, value: Value | None) -> str:
    """A text that reading would take for a number gets the apostrophe too."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value) if isinstance(value, float) else str(value)
    if value.startswith((*_FORMULA_STARTS, "'")) or (value and _value(column, value) != value):
        return "'" + value
    return value


@dataclass(frozen=True)
class _Lines:
    """csv quotes a lone CR or LF only if both end its lines; Unix tools want lines to end in LF."""

    file: Writable

    def write(self, line: str) -> int:
        return self.file.write(line.removesuffix("\r\n") + "\n")


def _value(column: str, text: str) -> Value:
    """By the column's kind; a column we do not know is text, unless it reads as a plain number."""
    if text.startswith("'"):
        return text[1:]
    kind = column_of(column).kind
    if kind in ("text", "json"):
        return text
    if text in ("True", "False"):
        return text == "True"
    for convert in (int, float):
        try:
            number = convert(text)
        except ValueError:
            continue
        if str(number) == text or kind != "unknown":
            return number
    return text


# Architectures in the status table: what is known of each, for every search that meets it again.
#
# A candidate's row has a friendly name, and the architecture's id in its column `architecture`. The
# name follows from the id, so that a search that is resumed, or meets it again, finds the same row.
# It has no model file yet, so no runner looks at it; an upload under the same name keeps what the
# row says and makes it a model. Results are kept with their conditions, so that a latency of one
# chip is never taken for that of another.


class Candidates:
    """The candidates of one experiment's table."""

    def __init__(self, models: Table, experiment: str) -> None:
        self._models = models
        self._experiment = experiment

    def name_of(self, arch_id: str) -> str:
        """Its name in this experiment: the first one of those for its id that no other model has.
        Certain from its first result on, which takes the name."""
        return self._found(arch_id)[0]

    def _found(self, arch_id: str) -> tuple[str, Record | None]:
        """Its name, and its row if it has one. Rows of older versions are called as its id."""
        for name in friendly_names(random.Random(arch_id)):
            row = self._models.get(name)
            if row is not None and row.values.get(ARCHITECTURE_ID) == arch_id:
                return name, row
            if row is None:
                older = self._models.get(arch_id)
                return (name, None) if older is None else (arch_id, older)
        raise ModelBusy(name=self._experiment, reason="no free friendly name was found")

    def results(self, arch_id: str, conditions: str) -> dict[str, float]:
        """What is known of an architecture under these conditions; empty where nothing is."""
        return dict(self.all_results(arch_id).get(conditions, {}))

    def all_results(self, arch_id: str) -> Results:
        """What is known of an architecture, by conditions."""
        row = self._found(arch_id)[1]
        return _results(row) if row is not None else {}

    def note(
        self,
        arch_id: str,
        arch_json: str,
        conditions: str,
        values: Mapping[str, float],
        columns: Mapping[str, Value] | None = None,
    ) -> None:
        """Add results to a row, and make the row where there is none. `columns` are for people:
        `val_iou`, `params` and others that the table has."""
        self.note_all(arch_id, arch_json, {conditions: values}, columns)

    def note_all(
        self,
        arch_id: str,
        arch_json: str,
        results: Results,
        columns: Mapping[str, Value] | None = None,
    ) -> None:
        """As `note`, for results under several conditions."""
        check_model_name(arch_id)
        self.note_model(self._row_of(arch_id, arch_json), arch_json, results, columns)

    def note_model(
        self,
        name: str,
        arch_json: str,
        results: Results,
        columns: Mapping[str, Value] | None = None,
    ) -> None:
        """Add results to the row of this name, such as that of a trained model."""

        def add(row: Record) -> Changes:
            all_results = {key: dict(values) for key, values in _results(row).items()}
            for conditions, values in results.items():
                all_results.setdefault(conditions, {}).update(values)
            changes: dict[str, Value | None] = dict(columns or {})
            if runs_of(row.values):  # an estimate never replaces a measurement
                for column in (LATENCY, *LATENCY_COLUMNS):
                    changes.pop(column, None)
            changes |= {"arch": arch_json, "results": json.dumps(all_results)}
            if row.values.get("status") == CANDIDATE:
                changes["node"] = SEARCH_NODE
            return changes

        change_row(self._models, name, add)

    def _row_of(self, arch_id: str, arch_json: str) -> str:
        """The name of its row, which is made where there is none. Where another model takes the
        name first, the next one is tried."""
        name, row = self._found(arch_id)
        while row is None:
            fresh: dict[str, Value] = {
                "name": name,
                "status": CANDIDATE,
                "node": SEARCH_NODE,
                "experiment": self._experiment,
                "arch": arch_json,
                ARCHITECTURE_ID: arch_id,
            }
            with contextlib.suppress(RowExists):
                self._models.insert(name, fresh)
            name, row = self._found(arch_id)
        return name


def _results(row: Record) -> dict[str, dict[str, float]]:
    """What cannot be read is not known."""
    try:
        content = json.loads(str(row.values.get("results") or "{}"))
        return {
            str(key): {str(name): float(value) for name, value in values.items()}
            for key, values in content.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


# What an experiment asks of every machine that works on it.
#
# Kept in the store, not in the options of each runner: the result of a model must not depend on
# which machine came up first, or on what was typed there. One row per experiment; a change is a
# compare-and-set, so of two people who set different keys at once neither loses theirs.


RANDOM_INPUTS = "random"  # as a dataset: calibrate on random inputs, and score nothing
MOST_TARGETS = 50
MOST_DEVICES = 8  # types: each further one has a set of columns, of which Azure allows 252
TEXT_LIMIT = 1_000
_DATASET = re.compile(r"[^\\@\x00-\x1f\x7f]+(@[1-9][0-9]{0,8})?")
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_FORM = r"(?P<toolchain>[a-z0-9][a-z0-9_-]*)(:(?P<chip>[A-Za-z0-9][A-Za-z0-9._-]*))?"
_TARGET = re.compile(_FORM)
_REGISTERED = re.compile(rf"(?P<device>[A-Za-z0-9][A-Za-z0-9._:-]*)={_FORM}")


@dataclass(frozen=True)
class ExperimentSettings:
    """The settings of one experiment; an empty one is not set.

    Attributes:
        dataset: A dataset of the store with its version, such as `working/faces@3`, or `random`.
        task: What the dataset is for; else that of the runner's own settings.
        primary: The device whose measurements fill the columns that Archai knows, by its name or
            type: `htp:qcs8550`, or the chip of boards.
        targets: What models are converted for, as `TOOLCHAIN` or `TOOLCHAIN:CHIP`; none: what the
            devices take.
        devices: The types of devices that runners have registered, as `TYPE=TOOLCHAIN[:CHIP]`.
    """

    dataset: str = ""
    task: str = ""
    primary: str = ""
    targets: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def for_models(self) -> Targets:
        """As rows have it. Targets that were set by hand win: devices of other toolchains are left
        out, since no model is converted for them."""
        forms = tuple(parse_target(target) for target in self.targets)
        toolchains = {toolchain for toolchain, _ in forms}
        registered = (_registered(text) for text in self.devices)
        devices = [d for d in registered if not forms or d.toolchain in toolchains]
        devices.sort(key=lambda device: device.device != self.primary)
        has_primary = any(device.device == self.primary for device in devices)
        primary = self.primary if has_primary or not devices else devices[0].device
        return Targets(primary, tuple(devices), forms, self.dataset)

    @property
    def has_random_inputs(self) -> bool:
        return self.dataset == RANDOM_INPUTS


SettingChanges = Mapping[str, str | tuple[str, ...]]
Decide = Callable[[ExperimentSettings], SettingChanges]
KEYS = tuple(key.name for key in fields(ExperimentSettings))


def read_settings(store: Store, experiment: str) -> ExperimentSettings:
    record = store.experiment_settings().get(experiment)
    return ExperimentSettings() if record is None else _settings(record.values)


def change_settings(
    store: Store, experiment: str, changes: SettingChanges | Decide
) -> ExperimentSettings:
    """Set these keys and leave the others as they are; an empty value clears its key. Returns all
    settings as they are then. Raises BadInput for a value that no runner could read. What depends
    on the settings before is a function of them, which is called again if they change meanwhile."""
    check_experiment_name(experiment)
    table = store.experiment_settings()
    for _ in range(CONFLICT_LIMIT):
        record = table.get(experiment)
        before = ExperimentSettings() if record is None else _settings(record.values)
        chosen = changes(before) if callable(changes) else changes
        columns = {key: _checked(key, value) for key, value in chosen.items()}
        if not columns:
            return before
        try:
            if record is None:
                new_row = {key: text for key, text in columns.items() if text is not None}
                return _settings(table.insert(experiment, new_row).values)
            return _settings(table.update(record, columns).values)
        except (RowChanged, RowExists):
            continue
    reason = f"others keep changing the experiment {experiment!r}: try again in a moment"
    raise Conflict(reason=reason)


def register_devices(
    store: Store, experiment: str, devices: Sequence[DeviceTarget]
) -> ExperimentSettings:
    """Note what these types of devices take, so that models are converted and evaluated for them.
    The first one becomes the primary device, unless the models here were measured on another."""

    def add(before: ExperimentSettings) -> SettingChanges:
        present = {_registered(text).device: text for text in before.devices}
        asked = {d.device: f"{d.device}={form_text(d.toolchain, d.chip)}" for d in devices}
        if asked.items() <= present.items():
            return {}
        changes: dict[str, str | tuple[str, ...]] = {
            "devices": tuple({**present, **asked}.values())
        }
        if not before.primary:
            changes["primary"] = _measured_on(store, experiment) or next(iter(asked))
        return changes

    return change_settings(store, experiment, add)


def _measured_on(store: Store, experiment: str) -> str:
    """The type of device that benchmarked a model of an experiment first."""
    where = [Condition("device", "!=", "")]
    rows = store.models(experiment).query(where=where, limit=1, columns=["device"])
    return next((str(row.values["device"]) for row in rows if row.values.get("device")), "")


def parse_target(text: str) -> tuple[str, str]:
    """`snpe:qcs8550` is ("snpe", "qcs8550"); the chip may be left out."""
    match = _TARGET.fullmatch(text)
    if match is None or len(text) > TEXT_LIMIT:
        reason = f"a target is TOOLCHAIN or TOOLCHAIN:CHIP, such as snpe:qcs8550, not {text!r}"
        raise BadInput(reason=reason)
    return match["toolchain"], match["chip"] or ""


def _checked(key: str, value: str | tuple[str, ...]) -> str | None:
    """The text of a column; None empties it."""
    if key == "targets":
        targets = tuple(dict.fromkeys((value,) if isinstance(value, str) and value else value))
        if len(targets) > MOST_TARGETS:
            raise BadInput(reason=f"an experiment has {MOST_TARGETS} targets at the most")
        for target in targets:
            parse_target(target)
        return " ".join(targets) or None
    if key == "devices":
        texts = tuple(value.split() if isinstance(value, str) else value)
        if len(texts) > MOST_DEVICES:
            names = ", ".join(_registered(text).device for text in texts[:MOST_DEVICES])
            raise BadInput(
                reason=f"an experiment has {MOST_DEVICES} types of devices at the most, and this "
                f"one has {names}: forget one with 'edgeloop experiment set --forget DEVICE'"
            )
        for text in texts:
            _registered(text)
        return " ".join(texts) or None
    shapes = {
        "dataset": (_DATASET, "a dataset of the store, such as working/faces@3, or 'random'"),
        "task": (_TASK, "the name of a task, such as segmentation"),
        "primary": (_DEVICE, "a device or a chip, such as htp:qcs8550"),
    }
    if key not in shapes:
        keys = ", ".join(KEYS)
        raise BadInput(reason=f"an experiment has no setting {key!r}; the settings are {keys}")
    pattern, meaning = shapes[key]
    text = str(value)
    if text and (len(text) > TEXT_LIMIT or not pattern.fullmatch(text)):
        raise BadInput(reason=f"{key} must be {meaning}, not {text[:60]!r}")
    return text or None


def _registered(text: str) -> DeviceTarget:
    match = _REGISTERED.fullmatch(text)
    if match is None or len(text) > TEXT_LIMIT:
        raise BadInput(reason=f"a device is TYPE=TOOLCHAIN[:CHIP], not {text[:60]!r}")
    return DeviceTarget(match["device"], match["toolchain"], match["chip"] or "")


def _settings(values: Values | Changes) -> ExperimentSettings:
    """What is not of its form counts as not set: other tools can write into the table, too."""
    texts = {key: str(values.get(key) or "") for key in KEYS}
    readable = {key: text for key, text in texts.items() if _is_readable(key, text)}
    return ExperimentSettings(
        dataset=readable.get("dataset", ""),
        task=readable.get("task", ""),
        primary=readable.get("primary", ""),
        targets=tuple(readable.get("targets", "").split()),
        devices=tuple(readable.get("devices", "").split()),
    )


def _is_readable(key: str, text: str) -> bool:
    try:
        _checked(key, tuple(text.split()) if key in ("targets", "devices") else text)
    except BadInput:
        return False
    return True
