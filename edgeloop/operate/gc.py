"""`edgeloop gc`: finds orphaned files and entries, then removes them."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from edgeloop._util.files import is_abandoned, try_lock
from edgeloop._util.values import size_text
from edgeloop.errors import (
    BadInput,
    BadName,
    BlobMissing,
    DeviceBusy,
    EdgeloopError,
    LocalFileError,
)
from edgeloop.jobs.records import (
    StoredJob,
    ended_jobs,
    has_record,
    stored_code,
    stored_jobs,
    used_code,
)
from edgeloop.models.catalog import Catalog
from edgeloop.models.columns import check_experiment_name, check_model_name
from edgeloop.models.files import ATTEMPTS_FOLDER, Leftovers, is_copy
from edgeloop.models.plan import UPLOAD, default_plan, records_of
from edgeloop.models.queue import Queue
from edgeloop.models.runners import Registry
from edgeloop.models.trash import KEPT_S, is_note
from edgeloop.node.ticket import KEPT_DAYS
from edgeloop.operate.fleet.records import FleetRecord, Fleets
from edgeloop.paths import runs_folder
from edgeloop.platforms import list_devices, platform_of
from edgeloop.settings import STORE_FOLDER, Settings, cache_folder
from edgeloop.store import BlobInfo, Blobs, Condition, Record, Store, Table
from edgeloop.workspace import Workspace

RECLAIM_S = 240.0


def find_leftovers(
    workspace: Workspace, options: GcOptions | None = None, now: float | None = None
) -> Report:
    """Find orphaned files and entries without changing anything. `now` is a time of the store's
    clock; files of this machine are judged by its own."""
    options = options or GcOptions()
    store, settings = workspace.store, workspace.settings
    now = store.now() if now is None else now
    draft = ReportDraft()
    for experiment in options.experiments or _experiments(store):
        ModelLeftovers(store, experiment, settings, options.older_s, now).find(draft)
    find_runners(store, options.older_s, draft)
    find_fleets(store, options.older_s, draft)
    JobLeftovers(store.blobs, options, now, known_jobs(settings.project)).find(draft)
    MachineLeftovers(cache_folder(), settings.project, store.blobs, options).find(draft)
    if options.boards:
        find_on_boards(settings, options, draft)
    return Report(_merged(draft.findings), tuple(draft.notes))


def reclaim_orphans(workspace: Workspace, interval_s: float = RECLAIM_S) -> None:
    """Remove the leftovers of an experiment's models; idle runners call this, `gc` does it for all
    experiments. Files of attempts that never counted are deleted at once, others when they are too
    old to be in use. All runners together do it once per interval. It may be killed at any point
    and repeated."""
    store, settings = workspace.store, workspace.settings
    leftovers = ModelLeftovers(
        store, workspace.experiment, settings, 0.0, store.now(), attempts_at_once=True
    )
    leftovers.reclaim(interval_s)


def remove_leftovers(report: Report) -> Iterator[tuple[Finding, int | EdgeloopError]]:
    """Remove what was found, kind by kind: how many items went, or why that failed. One kind that
    fails does not keep the others from going."""
    for finding in report.findings:
        try:
            yield finding, finding.remove()
        except EdgeloopError as error:
            yield finding, error


def _experiments(store: Store) -> list[str]:
    """Also those whose models were all deleted: they have no rows, and their trash is left."""
    with_trash = {blob.key.split("/")[0] for blob in store.blobs.list("") if is_note(blob)}
    return sorted({*store.experiments(), *filter(_is_experiment, with_trash)})


def _is_experiment(name: str) -> bool:
    with contextlib.suppress(BadName):
        check_experiment_name(name)
        return True
    return False


def _merged(findings: list[Finding]) -> list[Finding]:
    """One line for a kind, whatever the number of experiments."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.kind, finding.where), []).append(finding)
    return [_together(same) for same in kinds.values()]


def _together(same: list[Finding]) -> Finding:
    first = same[0]
    return Finding(
        kind=first.kind,
        where=first.where,
        count=sum(f.count for f in same),
        size=sum(f.size for f in same),
        why=first.why,
        remove=lambda: sum(finding.remove() for finding in same),
        items=tuple(item for finding in same for item in finding.items),
        verb=first.verb,
    )


# Findings, and how they are removed.
#
# Finding changes nothing. Removing checks each item again right before it is deleted, so time may
# pass between the two, and a removal that was killed can be repeated.


DEFAULT_AGE_S = 7 * 86_400.0
SAFETY_S = 1_800.0  # beyond a lease and the difference of clocks: a later holder is dead
REUSED_AGE_S = 2 * 86_400.0  # what is found by its content may be in use again at any moment


@dataclass(frozen=True)
class GcOptions:
    """What to look for.

    Attributes:
        older_s: What is younger stays, but for entries of runners that died a day ago, hints of
            models that are gone, stages' folders of dead processes, and `cache_bytes`.
        logs_age_s: Logs of jobs that ended longer ago go; None: no log goes for its age.
        logs_bytes: The oldest logs go until all logs together are not larger; None: no limit.
        cache_bytes: The longest unused of this machine's caches go until they are not larger.
        boards: Whether boards of this machine are looked at.
        experiments: Only these; empty: all of the store.
    """

    older_s: float = DEFAULT_AGE_S
    logs_age_s: float | None = None
    logs_bytes: int | None = None
    cache_bytes: int | None = None
    boards: bool = False
    experiments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Orphans of one kind. `remove` returns how many items were deleted; the others are in use
    again, or were removed by another process."""

    kind: str
    where: str  # the store, this machine, or a board
    count: int
    size: int
    why: str
    remove: Callable[[], int] = field(repr=False, compare=False)
    items: Sequence[str] = ()
    verb: str = "remove"  # or `publish`: results of a machine that died get their names


@dataclass(frozen=True)
class Report:
    """What was found. `notes` say what was left out, and what it would take."""

    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()


@dataclass
class ReportDraft:
    """A report in the making: kinds without items are left out."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        kind: str,
        where: str,
        sizes: Sequence[int],
        why: str,
        remove: Callable[[], int],
        items: Sequence[str],
        verb: str = "remove",
    ) -> None:
        if items:
            finding = Finding(
                kind=kind,
                where=where,
                count=len(items),
                size=sum(sizes),
                why=why,
                remove=remove,
                items=tuple(items),
                verb=verb,
            )
            self.findings.append(finding)


# What is left over of models: attempts that never counted, uploads and deletes that broke off,
# files and hints of models that are gone, runners that died.


STORE = "store"
FORGET_RUNNERS_S = 86_400.0
RECLAIMED = "!reclaimed"  # the note of the last time
_NOTHING: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
_OF_MODELS = (".onnx", "~onnx", ".dlc", "~dlc")


class ModelLeftovers:
    """Those of one experiment; what is younger than `older_s` at the time `now` stays."""

    def __init__(
        self,
        store: Store,
        experiment: str,
        settings: Settings,
        older_s: float,
        now: float,
        attempts_at_once: bool = False,
    ) -> None:
        """`attempts_at_once`: files of attempts that never counted go whatever their age. Rows
        alone say which these are; an age only keeps `gc` to what it was asked for. Models that were
        deleted can be restored for `older_s`, and for seven days if nobody chose an age."""
        self._store = store
        self._experiment = experiment
        self._models: Table = store.models(experiment)
        self._catalog = Catalog(
            store,
            experiment,
            default_plan(),
            node=settings.node,
            margin_s=settings.clock_margin_seconds,
            clock=store.now,
        )
        self._queue = Queue(store.queue(experiment), default_plan(), settings.clock_margin_seconds)
        least_s = settings.lease_seconds + settings.clock_margin_seconds + SAFETY_S
        self._before = now - max(older_s, least_s)
        self._attempts_before = math.inf if attempts_at_once else self._before
        self._trash_before = now - (KEPT_S if attempts_at_once else older_s)
        self._now = now

    def find(self, draft: ReportDraft) -> None:
        self._find_rows(draft)
        suspects = self._suspects()
        self._find_files(draft, suspects)
        orphans = [record.key for record in self._queue.orphans(self._models)]
        draft.add(
            "hints",
            STORE,
            [],
            "of models that are gone",
            self._remove_hints,
            orphans,
        )

    def reclaim(self, interval_s: float) -> None:
        """What idle runners do: remove what was found, one of them for all."""

        def remove() -> None:
            draft = ReportDraft()
            self.find(draft)
            for finding in draft.findings:
                finding.remove()

        self._queue.in_turn(RECLAIMED, self._now, interval_s, remove)

    def _find_rows(self, draft: ReportDraft) -> None:
        uploads = [row.key for row in self._rows("uploading") if self._is_dead_upload(row)]
        deletes = [row.key for row in self._rows("deleting") if self._is_dead_delete(row)]
        for kind, names in (("uploads", uploads), ("deletes", deletes)):
            sizes = [self._size_of(name) for name in names]
            why = "that broke off" if kind == "uploads" else "that broke off: they are finished"
            remove = self._clears(names)
            draft.add(f"unfinished {kind}", STORE, sizes, why, remove, self._named(names))

    def _find_files(self, draft: ReportDraft, suspects: Mapping[str, Sequence[BlobInfo]]) -> None:
        attempts: list[BlobInfo] = []
        results: list[BlobInfo] = []
        unpublished: list[BlobInfo] = []
        gone: dict[str, Sequence[BlobInfo]] = {}
        deleted: dict[str, Sequence[BlobInfo]] = {}
        strange: list[str] = []
        for name, blobs in suspects.items():
            row = self._models.get(name)
            note = next(filter(is_note, blobs), None)
            if row is None:
                if note is not None:
                    if note.modified.timestamp() < self._trash_before:
                        deleted[name] = blobs
                elif not _is_model(blobs):
                    strange.append(name)
                elif all(self._is_old(blob) for blob in blobs):
                    gone[name] = blobs
                continue
            leftovers = self._catalog.stored.leftovers(row, blobs)
            attempts += filter(self._is_old_attempt, leftovers.attempts)
            results += filter(self._is_old, leftovers.results)
            unpublished += filter(self._is_old, leftovers.unpublished)
        self._add(
            draft,
            "orphaned attempts",
            attempts,
            "files of attempts that never counted",
            lambda leftovers: filter(self._is_old_attempt, leftovers.attempts),
        )
        self._add(
            draft,
            "replaced results",
            results,
            "copies that no row names",
            lambda leftovers: filter(self._is_old, leftovers.results),
        )
        why = "committed by a runner that died: they get their names"
        keys, sizes = [blob.key for blob in unpublished], [blob.size for blob in unpublished]
        models = sorted({self._model_of(blob.key) for blob in unpublished})
        draft.add(
            "unpublished results",
            STORE,
            sizes,
            why,
            lambda: self._publish(models),
            keys,
            verb="publish",
        )
        if strange:
            what = f"{self._experiment}/{strange[0]}" + (" and others" if strange[1:] else "")
            draft.notes.append(f"{what}: no model has that name, and the files are of none")
        sizes = [sum(blob.size for blob in blobs) for blobs in gone.values()]
        names = self._named(gone)
        why = "models whose rows are gone"
        draft.add("files of models", STORE, sizes, why, lambda: self._clear(gone), names)
        sizes = [sum(blob.size for blob in blobs) for blobs in deleted.values()]
        names, why = self._named(deleted), "'edgeloop restore' could still bring them back"
        draft.add("deleted models", STORE, sizes, why, lambda: self._empty(deleted), names)

    def _add(
        self,
        draft: ReportDraft,
        kind: str,
        blobs: Sequence[BlobInfo],
        why: str,
        which: Callable[[Leftovers], Iterable[BlobInfo]],
    ) -> None:
        keys, sizes = [blob.key for blob in blobs], [blob.size for blob in blobs]
        models = sorted({self._model_of(key) for key in keys})

        def remove() -> int:
            return sum(self._remove_files(model, which) for model in models)

        draft.add(kind, STORE, sizes, why, remove, keys)

    def _remove_files(self, model: str, which: Callable[[Leftovers], Iterable[BlobInfo]]) -> int:
        """Listed and judged again: the row right before the files go."""
        listed = list(self._store.blobs.list(f"{self._experiment}/{model}/"))
        row = self._models.get(model)
        if row is None:
            return 0
        removable = which(self._catalog.stored.leftovers(row, listed))
        return self._store.blobs.delete_unchanged(removable)

    def _publish(self, models: Iterable[str]) -> int:
        done = 0
        for model in models:
            listed = list(self._store.blobs.list(f"{self._experiment}/{model}/"))
            row = self._models.get(model)
            leftovers = self._catalog.stored.leftovers(row, listed) if row else None
            for token in leftovers.tokens if leftovers else ():
                results = (
                    [b for b in leftovers.unpublished if f"/{token}/" in b.key] if leftovers else []
                )
                if results and all(self._is_old(blob) for blob in results):
                    with contextlib.suppress(BlobMissing):  # its runner lives after all
                        self._catalog.stored.finish_publishing(model, token)
                        done += len(results)
        return done

    def _clear(self, names: Iterable[str]) -> int:
        return sum(self._catalog.clear_orphans(name, self._before) for name in names)

    def _empty(self, names: Iterable[str]) -> int:
        before = self._trash_before
        return sum(self._catalog.clear_orphans(name, before) for name in names)

    def _clears(self, names: Sequence[str]) -> Callable[[], int]:
        def clear() -> int:
            done = 0
            for name in names:
                row = self._models.get(name)
                if row is not None and (self._is_dead_upload(row) or self._is_dead_delete(row)):
                    done += self._catalog.clear_half_made(row)
            return done

        return clear

    def _remove_hints(self) -> int:
        return sum(self._queue.remove(record) for record in self._queue.orphans(self._models))

    def _suspects(self) -> dict[str, list[BlobInfo]]:
        """Files that may be left over, by model; whether they are, the row says later."""
        named: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for row in self._models.query():
            records = records_of(row.values).values()
            keys = frozenset(key for record in records for key in record.files.values())
            named[row.key] = keys, frozenset(name for record in records for name in record.files)
        suspects: dict[str, list[BlobInfo]] = {}
        for blob in self._store.blobs.list(f"{self._experiment}/"):
            _, model, key = (*blob.key.split("/", 2), "", "")[:3]
            if not key or not _is_model_name(model):
                continue
            keys, names = named.get(model, _NOTHING)
            is_hidden = key.startswith(f"{ATTEMPTS_FOLDER}/")
            if model not in named or is_hidden or (key not in keys and is_copy(key, names)):
                suspects.setdefault(model, []).append(blob)
        return suspects

    def _rows(self, status: str) -> list[Record]:
        return list(self._models.query(where=[Condition("status", "==", status)]))

    def _is_dead_upload(self, row: Record) -> bool:
        upload = records_of(row.values).get(UPLOAD)
        expired = upload is None or upload.expires < self._before
        return row.values.get("status") == "uploading" and expired and self._is_silent(row)

    def _is_dead_delete(self, row: Record) -> bool:
        return row.values.get("status") == "deleting" and self._is_silent(row)

    def _is_silent(self, row: Record) -> bool:
        """By when its status changed; a row that does not say it is left alone."""
        try:
            since = datetime.fromisoformat(str(row.values.get("since")))
        except ValueError:
            return False
        return since.replace(tzinfo=since.tzinfo or UTC).timestamp() < self._before

    def _is_old(self, blob: BlobInfo) -> bool:
        return blob.modified.timestamp() < self._before

    def _is_old_attempt(self, blob: BlobInfo) -> bool:
        return blob.modified.timestamp() < self._attempts_before

    def _size_of(self, model: str) -> int:
        return sum(b.size for b in self._store.blobs.list(f"{self._experiment}/{model}/"))

    def _named(self, models: Iterable[str]) -> list[str]:
        return [f"{self._experiment}/{name}" for name in models]

    def _model_of(self, key: str) -> str:
        return key.split("/", 2)[1]


def find_runners(store: Store, older_s: float, draft: ReportDraft) -> None:
    """Entries of runners that were killed; the others remove theirs when they end."""
    registry = Registry(store)
    age_s = min(older_s, FORGET_RUNNERS_S)
    dead = [entry.id for entry in registry.forgettable(age_s)]
    why = "entries of runners that died"
    draft.add("dead runners", STORE, [], why, lambda: registry.prune(age_s), dead)


def find_fleets(store: Store, older_s: float, draft: ReportDraft) -> None:
    """Records of fleets whose supervisor has been silent for that long: one that is briefly away
    comes back to its record."""
    fleets, now = Fleets(store), store.now()
    age_s = max(older_s, SAFETY_S)

    def dead() -> list[FleetRecord]:
        unsupervised = [record for record in fleets.all() if not record.is_supervised]
        return [record for record in unsupervised if now - max(record.beat, record.started) > age_s]

    def remove() -> int:
        return sum(fleets.remove(record) for record in dead())

    names = [record.name for record in dead()]
    draft.add("dead fleets", STORE, [], "without a supervisor", remove, names)


def _is_model(blobs: Sequence[BlobInfo]) -> bool:
    """Whether a folder without a row is what is left of a model: people keep other files there."""
    keys = [blob.key for blob in blobs]
    return any(key.endswith(_OF_MODELS) or f"/{ATTEMPTS_FOLDER}/" in key for key in keys)


def _is_model_name(name: str) -> bool:
    with contextlib.suppress(BadName):
        check_model_name(name)
        return True
    return False


# What is left over of jobs: files without a record, code that no job uses, logs of long ago.


class JobLeftovers:
    """Those of all jobs of a store. `known` are jobs that this machine has records of."""

    def __init__(
        self, blobs: Blobs, options: GcOptions, now: float, known: Collection[str] = ()
    ) -> None:
        self._blobs = blobs
        self._options = options
        self._now = now
        self._known = known
        self._before = now - max(options.older_s, SAFETY_S)
        self._reused_before = now - max(options.older_s, REUSED_AGE_S)

    def find(self, draft: ReportDraft) -> None:
        jobs = stored_jobs(self._blobs)
        lost = [job for job in jobs.values() if self._is_lost(job)]
        sizes = [job.size for job in lost]
        why = "of jobs that have no record"
        ids = [job.id for job in lost]
        draft.add("files of jobs", STORE, sizes, why, lambda: self._remove(ids), ids)
        recorded = {id_: job for id_, job in jobs.items() if id_ not in set(ids)}
        self._find_code(draft, recorded)
        self._find_logs(draft, recorded)
        self._find_kept(draft, recorded)

    def _is_lost(self, job: StoredJob) -> bool:
        is_known = bool(job.record) or job.id in self._known
        return not is_known and job.modified < self._before

    def _remove(self, ids: Sequence[str]) -> int:
        lost = [id_ for id_ in ids if not has_record(self._blobs, id_)]
        for id_ in lost:
            self._blobs.delete_folder(f"_jobs/{id_}")
        return len(lost)

    def _find_code(self, draft: ReportDraft, jobs: Mapping[str, StoredJob]) -> None:
        codes, wrappers = stored_code(self._blobs)  # listed before the jobs that use it are read
        try:
            used = used_code(self._blobs, stored_jobs(self._blobs).values())
        except BadInput as error:
            draft.notes.append(f"code of jobs stays: {error}")
            return
        unused = [info for digest, info in codes.items() if digest not in used]
        self._add(draft, "code of jobs", unused, "that no job uses")
        with_record = [id_ for id_, job in jobs.items() if job.record]
        if len(ended_jobs(self._blobs, with_record)) == len(with_record):
            self._add(draft, "programs of jobs", list(wrappers.values()), "all jobs have ended")

    def _add(self, draft: ReportDraft, kind: str, blobs: Sequence[BlobInfo], why: str) -> None:
        old = [info for info in blobs if self._is_unused(info)]
        keys, sizes = [info.key for info in old], [info.size for info in old]

        def remove() -> int:
            return sum(self._remove_unused(key) for key in keys)

        draft.add(kind, STORE, sizes, why, remove, keys)

    def _is_unused(self, info: BlobInfo) -> bool:
        return info.modified.timestamp() < self._reused_before

    def _remove_unused(self, key: str) -> bool:
        """A job that wants it sends it again and makes it young, so it is looked at once more."""
        info = self._blobs.info(key)
        if info is None or not self._is_unused(info):
            return False
        self._blobs.delete([key])
        return True

    def _find_logs(self, draft: ReportDraft, jobs: Mapping[str, StoredJob]) -> None:
        """Whole logs, the oldest first; those of jobs that have not ended stay."""
        with_logs = [job for job in jobs.values() if job.logs]
        if self._options.logs_age_s is None and self._options.logs_bytes is None:
            if total := sum(_size(job) for job in with_logs):
                draft.notes.append(f"logs of jobs take {size_text(total)}: see --keep-logs")
            return
        ended = ended_jobs(self._blobs, [job.id for job in with_logs])
        old = sorted((job for job in with_logs if job.id in ended), key=_newest)
        goes: list[StoredJob] = []
        left = sum(_size(job) for job in with_logs)
        for job in old:
            if _newest(job) >= self._before:
                continue
            age_s, limit = self._options.logs_age_s, self._options.logs_bytes
            is_over = limit is not None and left > limit
            if is_over or (age_s is not None and _newest(job) < self._now - age_s):
                goes.append(job)
                left -= _size(job)
        keys = [info.key for job in goes for info in job.logs]
        sizes = [_size(job) for job in goes]

        def remove() -> int:
            self._blobs.delete(keys)
            return len(goes)

        draft.add("logs", STORE, sizes, "of jobs that ended", remove, [job.id for job in goes])

    def _find_kept(self, draft: ReportDraft, jobs: Mapping[str, StoredJob]) -> None:
        """Seven days after the last sign of life of their job, whatever age was asked for: that is
        promised."""
        before = min(self._before, self._now - KEPT_DAYS * 86_400.0)
        files = [info for job in jobs.values() if job.modified < before for info in job.kept]
        why = f"created outside outputs/, and kept for {KEPT_DAYS} days"

        def remove() -> int:
            return self._blobs.delete_unchanged(files)

        keys, sizes = [info.key for info in files], [info.size for info in files]
        draft.add("kept files of jobs", STORE, sizes, why, remove, keys)


def _size(job: StoredJob) -> int:
    return sum(info.size for info in job.logs)


def _newest(job: StoredJob) -> float:
    return max(info.modified.timestamp() for info in job.logs)


# What this machine keeps and could fetch or make again: by its last use, and by its size.
#
# A user of an entry touches it first, holding its lock if it has one. An entry is renamed under
# that lock before it is deleted: others see all of it or nothing, and the rest of a killed removal
# is found by its name. Entries used since the oldest running job began are kept.


MACHINE = "machine"
GONE = ".gone-"
_BEGUN_S = 3_600.0  # a job fetches its data before its first file is written
_KINDS = {
    "datasets": "datasets of jobs",
    "urls": "downloads of jobs",
    "packages": "packages of jobs",
    "envs": "environments",
    "wrapper": "programs of jobs",
    "estimates": "estimates of 'advise'",
    "layers": "layer times",
}
_USE_MARKS = ("set.json", ".ready")  # inside a folder, touched when it is used


@dataclass(frozen=True)
class CacheEntry:
    """A file or folder that goes as a whole. `used` is when it was last used."""

    kind: str
    path: Path
    used: float
    size: int
    lock: Path | None = None


class MachineLeftovers:
    """`cache` is this machine's cache of jobs, `project` the folder with `.edgeloop`."""

    def __init__(self, cache: Path, project: Path, blobs: Blobs, options: GcOptions) -> None:
        self._cache = cache
        self._own = project / STORE_FOLDER
        self._blobs = blobs
        self._options = options
        self._now = now = time.time()
        live = self._oldest_live_job()
        self._before = min(now - max(options.older_s, SAFETY_S), live)
        self._usable_before = min(now - SAFETY_S, live)

    def find(self, draft: ReportDraft) -> None:
        entries = [*self._of_jobs(), *self._of_runners()]
        goes = [entry for entry in entries if entry.used < self._before]
        goes += self._over_the_limit(entries, {entry.path for entry in goes})
        kinds: dict[str, list[CacheEntry]] = {}
        for entry in goes:
            kinds.setdefault(entry.kind, []).append(entry)
        for kind, of_kind in kinds.items():
            self._add(draft, kind, of_kind, "can be fetched or made again")
        self._add(draft, "interrupted work", list(self._abandoned()), "of processes that died")
        self._find_scratch(draft)
        self._note_rest(draft, entries, {entry.path for entry in goes})

    def _over_the_limit(
        self, entries: Sequence[CacheEntry], gone: set[Path]
    ) -> Iterator[CacheEntry]:
        limit = self._options.cache_bytes
        left = [entry for entry in entries if entry.path not in gone]
        total = sum(entry.size for entry in left)
        for entry in sorted(left, key=lambda entry: entry.used):
            if limit is None or total <= limit or entry.used >= self._usable_before:
                return
            total -= entry.size
            yield entry

    def _of_jobs(self) -> Iterator[CacheEntry]:
        for folder, kind in _KINDS.items():
            for path in _children(self._cache / folder):
                if path.suffix == ".lock" or path.name.startswith("."):
                    continue
                whole = path.name.removesuffix(".partial")  # held while it is fetched
                lock = path.with_name(f"{whole}.lock")
                if folder == "envs":
                    lock = path.with_suffix(".lock")
                has_lock = folder in ("datasets", "urls", "envs")
                yield CacheEntry(
                    kind, path, _used(path), _machine_size(path), lock if has_lock else None
                )

    def _of_runners(self) -> Iterator[CacheEntry]:
        work = self._own / "work"
        if _is_workdir(work):
            for path in sorted((work / "files").rglob("*")):
                if path.is_file() and not path.is_symlink():
                    yield CacheEntry("files of runners", path, _used(path), _machine_size(path))
        for folder in (work / "data", self._own / "prepared"):
            for path in _children(folder):
                if not path.name.startswith("."):
                    yield CacheEntry("prepared images", path, _used(path), _machine_size(path))

    def _abandoned(self) -> Iterator[CacheEntry]:
        """What a removal that was killed left, and folders of stages whose process is gone."""
        folders = [self._cache / name for name in _KINDS]
        work = self._own / "work"
        for folder in (*folders, work / "data", self._own / "prepared"):
            for path in _children(folder):
                is_partial = path.name.startswith(".") and _used(path) < self._before
                if path.name.startswith(GONE) or is_partial:
                    yield CacheEntry("", path, _used(path), _machine_size(path))
        if _is_workdir(work):
            for path in _children(work / "stages"):
                if is_abandoned(path):
                    yield CacheEntry("", path, _used(path), _machine_size(path), path)

    def _find_scratch(self, draft: ReportDraft) -> None:
        """Folders of jobs that were killed. Their outputs may be nowhere else, so those go whose
        outputs the store has."""
        old = [
            path
            for path in (*_children(self._cache / "jobs"), *self._ranks())
            if _used(path) < self._before and not _is_locked(path / "lock")
        ]
        ended = ended_jobs(self._blobs, sorted({path.name for path in old}))
        stored = {job for job, progress in ended.items() if progress.outputs_complete}
        removable = [
            CacheEntry("", path, _used(path), _machine_size(path), path / "lock")
            for path in old
            if path.name in stored
        ]
        self._add(draft, "folders of jobs", removable, "that ended; the store has their outputs")
        if left := len(old) - len(removable):
            what = "1 folder of a job" if left == 1 else f"{left} folders of jobs"
            where = self._cache / "jobs"
            draft.notes.append(f"{what} below {where} stay: this store does not have their outputs")

    def _ranks(self) -> Iterator[Path]:
        for rank in _children(self._cache / "ranks"):
            yield from _children(rank)

    def _oldest_live_job(self) -> float:
        """When it began; later than now if there is none."""
        times = [self._now]
        for path in (*_children(self._cache / "jobs"), *self._ranks()):
            if _is_locked(path / "lock"):
                files = [_used(file) for file in _children(path)]
                times.append(min(files, default=0.0) - _BEGUN_S)
        return min(times)

    def _add(self, draft: ReportDraft, kind: str, entries: Sequence[CacheEntry], why: str) -> None:
        names = [str(entry.path) for entry in entries]
        sizes = [entry.size for entry in entries]

        def remove() -> int:
            return sum(_removed(entry) for entry in entries)

        draft.add(kind, MACHINE, sizes, why, remove, names)

    def _note_rest(
        self, draft: ReportDraft, entries: Sequence[CacheEntry], gone: set[Path]
    ) -> None:
        from edgeloop._util.values import size_text

        in_use = sum(entry.size for entry in entries if entry.path not in gone)
        if in_use and self._options.cache_bytes is None:
            draft.notes.append(
                f"caches of this machine that were used lately take {size_text(in_use)}: see "
                "--keep-cache"
            )


def _is_workdir(folder: Path) -> bool:

    from edgeloop.runner.resources import MARK

    return (folder / MARK).exists()


def _removed(entry: CacheEntry) -> bool:
    """False if it was used again meanwhile, or is being used now."""
    try:
        lock = None if entry.lock is None else try_lock(entry.lock)
    except LocalFileError:
        return False
    if entry.lock is not None and lock is None:
        return False
    gone = entry.path.with_name(f"{GONE}{secrets.token_hex(8)}")
    try:
        if _used(entry.path) > entry.used:
            return False
        entry.path.rename(gone)
    except OSError:
        return False
    finally:
        if lock is not None:
            os.close(lock)
    _delete(gone)
    return True


def _delete(path: Path) -> None:
    """Datasets in the cache are read-only, folders too."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _used(path: Path) -> float:
    """When it was last touched; a folder that has a mark of its own, when that was."""
    times = []
    for place in (path, *(path / name for name in _USE_MARKS)):
        with contextlib.suppress(OSError):
            times.append(place.lstat().st_mtime)
    return max(times, default=0.0)


def _machine_size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            return path.lstat().st_size
        return 0
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total


def _is_locked(path: Path) -> bool:
    """Whether a live process holds it; a lock that is not there is not made."""
    if not path.exists():
        return False
    try:
        lock = try_lock(path)
    except LocalFileError:
        return True
    if lock is None:
        return True
    os.close(lock)
    return False


def known_jobs(project: Path) -> Mapping[str, str]:
    """Jobs that this project has records of: their names by id."""
    from edgeloop.jobs.records import RunRecords

    listed = RunRecords(runs_folder(project)).list()
    return {run.record.id: run.name for run in listed.runs}


# What is left over on the boards of this machine, as their platforms know it.


def find_on_boards(settings: Settings, options: GcOptions, draft: ReportDraft) -> None:
    """A board that a runner uses, or that does not answer, is left out with a note."""
    attached = [listed.device for listed in list_devices(settings) if listed.is_attached]
    if not attached:
        draft.notes.append("no board is attached to this machine")
    for name in attached:
        try:
            older_s = max(options.older_s, SAFETY_S)
            for left in platform_of(name).leftovers(name, settings, older_s):
                draft.add(left.kind, name, left.sizes, left.why, left.remove, left.names)
        except DeviceBusy as error:
            draft.notes.append(f"{name} was left out: {error.fields['owner']} uses it now")
        except EdgeloopError as error:
            draft.notes.append(f"{name} was left out: {error}")
