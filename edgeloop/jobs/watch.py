"""Follow jobs after their submission: their state, their log and their outputs.

The state is the wrapper's own report in the store, combined with what the compute observes.

The wrapper knows best, since it saw the exit code. If it reports nothing (not started yet, or
killed before it could), the compute's view counts. If a compute cannot be reached, the last known
state stays, with a note.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop._util.files import write_atomic
from edgeloop._util.system import ordered_map
from edgeloop.errors import (
    BadName,
    BlobMissing,
    ComputeUnavailable,
    LocalFileError,
    MissingExtra,
    StoreError,
)
from edgeloop.node.ticket import (
    FINAL_STATES,
    LOG_PIECE,
    JobFiles,
    JobProgress,
    State,
    access_key,
    expires_at,
    kept_folder,
    log_key,
    order_key,
    outputs_folder,
    state_key,
    to_json,
)
from edgeloop.store import BlobInfo, Blobs, check_blob_key

if TYPE_CHECKING:
    from edgeloop.jobs.computes.base import Compute, ObservedState
    from edgeloop.jobs.records import Run

ACCESS_S = 30 * 24 * 3600  # a job may wait and run this long
RENEW_S = 24 * 3600.0  # how old an access may be before a job that still runs gets a newer one
_READERS = 32
_SILENCE_S = 90.0  # several heartbeats, and clocks that differ


@dataclass(frozen=True)
class Status:
    """What is known about one job now."""

    state: State
    reason: str = ""
    exit_code: int | None = None
    attempt: int = 1
    node: str = ""
    started: float | None = None
    ended: float | None = None
    metrics: Mapping[str, object] = field(default_factory=dict)
    published: Mapping[str, int] = field(default_factory=dict)
    log_bytes: int = 0
    outputs_complete: bool = False
    files: JobFiles = field(default_factory=JobFiles)
    note: str = ""  # why this may be out of date

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


def current_status(
    blobs: Blobs,
    compute: Compute,
    runs: Sequence[Run],
    clock: Callable[[], float] = time.time,
) -> list[Status]:
    """All jobs of one compute with one request to it; final ones are not asked about again."""
    ids = [run.record.id for run in runs if not run.status.is_final]
    if not ids:
        return [run.status for run in runs]
    try:
        observed, note = compute.states(ids), ""
    except ComputeUnavailable as error:
        observed, note = {}, str(error)
    read = ordered_map(lambda job: _stored_progress(blobs, job), ids, _READERS, 2 * _READERS)
    stored = dict(zip(ids, read, strict=True))
    now = clock()
    statuses = []
    long_running = []
    abandoned = []
    for run in runs:
        if run.status.is_final:
            statuses.append(run.status)
            continue
        job, age_s = run.record.id, now - run.record.created.timestamp()
        view, progress = observed.get(job), stored[job]
        is_over = view is not None and (view.state is None or view.state in FINAL_STATES)
        trouble = ""
        if is_over and (progress is None or progress.state not in FINAL_STATES):
            trouble = _rescued(compute, job, blobs)
            progress = _stored_progress(blobs, job)  # it may have been written meanwhile
        is_on_its_way = age_s < compute.on_its_way_s and not run.cancel_asked
        status = _merged(run, view, progress, note, now, is_on_its_way)
        if trouble:
            status = replace(status, reason="; ".join(filter(None, (status.reason, trouble))))
        statuses.append(status)
        if status.is_final and (progress is None or progress.state not in FINAL_STATES):
            abandoned.append(job)
        if not status.is_final and age_s > RENEW_S:
            long_running.append(job)
    renew_access(blobs, long_running, compute.access_s(None), now)
    delete_orders(blobs, abandoned)
    return statuses


def _rescued(compute: Compute, job: str, blobs: Blobs) -> str:
    """Why what the job left behind could not be stored; nothing if it was. A folder that cannot be
    read or written is a matter of that one job, and must not hide the states of all others."""
    try:
        compute.rescue(job, blobs)
    except (LocalFileError, OSError) as error:
        return f"its files could not be collected: {error}"
    return ""


def delete_orders(blobs: Blobs, jobs: Sequence[str]) -> None:
    """Of jobs whose wrapper did not live to do so: a link to an order, which a compute may show to
    others, then leads nowhere."""
    if not jobs:
        return
    with suppress(StoreError, MissingExtra):
        if blobs.access(0).make == "AzureIdentity":  # other stores have no signatures
            blobs.delete([order_key(job) for job in jobs])


def renew_access(blobs: Blobs, jobs: Sequence[str], seconds: int | None, now: float) -> None:
    """Leave newer access for jobs that run for long, if theirs is a signature; see
    `edgeloop.node.supervisor`. That it cannot be made is no reason not to show a status."""
    if not jobs or seconds == 0:
        return
    with suppress(StoreError, MissingExtra):
        if blobs.access(0).make != "AzureIdentity":  # other stores have no signatures
            return
        for job in jobs:
            access_file = blobs.info(access_key(job))
            if access_file is None or now - access_file.modified.timestamp() > RENEW_S:
                access = blobs.access(ACCESS_S if seconds is None else seconds)
                if expires_at(access) is not None:
                    blobs.put_private(access_key(job), to_json(access))


def status_from_store(blobs: Blobs, job: str, now: float) -> Status:
    """What the wrapper reported, without asking the job's compute."""
    progress = _stored_progress(blobs, job)
    if progress is None:
        return Status("queued", note="its node has not reported yet")
    if progress.state in FINAL_STATES or now - progress.heartbeat < _SILENCE_S:
        return _of(progress)
    return replace(_of(progress), note=_silence(progress, now))


def has_no_report(blobs: Blobs, job: str) -> bool:
    """Whether no wrapper of the job has reported anything."""
    return blobs.size(state_key(job)) is None


def _stored_progress(blobs: Blobs, job: str) -> JobProgress | None:
    try:
        return JobProgress.from_json(blobs.read_document(state_key(job)))
    except BlobMissing:
        return None


def _merged(
    run: Run,
    observed: ObservedState | None,
    progress: JobProgress | None,
    note: str,
    now: float,
    is_on_its_way: bool,
) -> Status:
    if progress is not None and progress.state in FINAL_STATES:
        return _ended(progress, observed, note)
    if observed is None:  # the compute did not respond
        return replace(_of(progress) if progress else run.status, note=note)
    is_over = observed.state in FINAL_STATES
    if progress is not None and now - progress.heartbeat < _SILENCE_S:
        # It is alive, even if its compute has given up on it.
        return replace(_of(progress), note="" if is_over else observed.reason)
    if observed.state is None:
        return _unknown_to_its_compute(run, progress, is_on_its_way)
    if is_over:
        base = _of(progress) if progress is not None else run.status
        if run.cancel_asked or observed.state == "canceled":
            return replace(base, state="canceled", reason=observed.reason or "canceled", note="")
        reason = observed.reason or "its process ended without reporting why"
        return replace(base, state="failed", reason=reason, note="")
    if progress is not None:
        return replace(_of(progress), note=_silence(progress, now))
    state: State = "queued" if observed.state == "queued" else "preparing"
    return Status(state, reason=observed.reason)


def _silence(progress: JobProgress, now: float) -> str:
    return f"nothing heard from {progress.node} for {now - progress.heartbeat:.0f} s"


def _ended(progress: JobProgress, observed: ObservedState | None, note: str) -> Status:
    """The wrapper's word is final, unless its compute has outputs to store: a job is over when all
    that it made can be read."""
    ended = _of(progress)
    if not progress.compute_stores or (observed is not None and observed.state is None):
        return ended
    if observed is None or observed.state not in FINAL_STATES:
        return replace(ended, state="running", note=note or "its compute is storing its outputs")
    if observed.state == "failed" and ended.state == "completed":
        reason = f"the compute could not store what it wrote: {observed.reason}"
        return replace(ended, state="failed", reason=reason)
    return ended


def _unknown_to_its_compute(run: Run, progress: JobProgress | None, is_on_its_way: bool) -> Status:
    if progress is None and is_on_its_way:
        return Status("preparing", reason="on its way to the compute")
    if run.cancel_asked:
        return Status("canceled", reason="canceled")
    if progress is None:
        return Status("failed", reason="it never reached its compute: submit it again")
    return replace(_of(progress), state="failed", reason="its compute no longer knows it")


def _of(progress: JobProgress) -> Status:
    shared = [item.name for item in fields(Status) if item.name != "note"]
    return Status(**{name: getattr(progress, name) for name in shared})


# A job's outputs and log, read from the store: only what is new is transferred.


INDEX_FILE = ".fetched.json"
KEPT_INDEX_FILE = ".fetched-kept.json"
_MOST_PIECES = 16
PARALLEL = 32

Index = dict[str, tuple[int, str]]  # path → size and modification time in the store


@dataclass(frozen=True)
class Fetched:
    """What `fetch` did. `files` counts all outputs, `moved` those that were transferred."""

    files: int
    moved: int
    moved_bytes: int
    refused: tuple[str, ...] = ()  # names that are not allowed in a folder


def fetch(blobs: Blobs, job: str, folder: Path, without: Collection[str] = ()) -> Fetched:
    """Copy the outputs to `folder`, beside which an index of what was fetched is kept.

    Works for a running job too: unfinished files come the next time. A fetched file that the script
    deleted later is deleted here as well.
    """
    return _fetch(blobs, outputs_of(blobs, job), folder, folder.parent / INDEX_FILE, without)


def fetch_kept(blobs: Blobs, job: str, folder: Path) -> Fetched:
    """Copy the files that the job created outside `outputs/`, while the store has them. Those that
    have expired there stay here."""
    files = stored_files(blobs, kept_folder(job))
    return _fetch(blobs, files, folder, folder.parent / KEPT_INDEX_FILE, expires=True)


def _fetch(
    blobs: Blobs,
    files: tuple[dict[str, BlobInfo], tuple[str, ...]],
    folder: Path,
    index_file: Path,
    without: Collection[str] = (),
    expires: bool = False,
) -> Fetched:
    marks = _read_index(index_file)
    outputs, refused = files
    stored = {path: info for path, info in outputs.items() if Path(path).name not in without}
    missing = []
    for path, info in stored.items():
        with contextlib.suppress(OSError):
            if marks.get(path) == _mark(info) and (folder / path).stat().st_size == info.size:
                continue
        missing.append(path)
    folder.mkdir(parents=True, exist_ok=True)
    fetched = ordered_map(
        lambda path: _fetch_one(blobs, stored[path], folder / path), missing, PARALLEL, 2 * PARALLEL
    )
    moved = [path for path, is_here in zip(missing, fetched, strict=True) if is_here]
    for path in () if expires else marks.keys() - stored.keys():
        with contextlib.suppress(OSError):
            (folder / path).unlink()
    gone = set(missing) - set(moved)
    index = {path: _mark(info) for path, info in stored.items() if path not in gone}
    write_atomic(index_file, json.dumps(index, ensure_ascii=False))
    moved_bytes = sum(stored[path].size for path in moved)
    return Fetched(len(stored) - len(gone), len(moved), moved_bytes, refused)


def discard_outputs(blobs: Blobs, job: str, paths: Collection[str]) -> int:
    """Remove outputs of a job that has ended from the store, if they are there; returns how many
    there were. The job and all its other files stay."""
    outputs, _ = outputs_of(blobs, job)
    keys = [outputs[path].key for path in paths if path in outputs]
    blobs.delete(keys)
    return len(keys)


def outputs_of(blobs: Blobs, job: str) -> tuple[dict[str, BlobInfo], tuple[str, ...]]:
    """Outputs in the store by their path below `outputs/`, and names that cannot be used."""
    return stored_files(blobs, outputs_folder(job))


def stored_files(blobs: Blobs, prefix: str) -> tuple[dict[str, BlobInfo], tuple[str, ...]]:
    """Files in a folder of the store by their path in it, and names that cannot be used."""
    outputs: dict[str, BlobInfo] = {}
    refused = []
    for info in blobs.list(prefix):
        path = info.key.removeprefix(prefix)
        try:
            outputs[check_blob_key(path)] = info
        except BadName:
            refused.append(path)
    return outputs, tuple(refused)


def _fetch_one(blobs: Blobs, info: BlobInfo, target: Path) -> bool:
    """False if the running job removed the file since it was listed."""
    try:
        blobs.get(info.key, target)
    except BlobMissing:
        return False
    return True


def _mark(info: BlobInfo) -> tuple[int, str]:
    return info.size, info.modified.isoformat()


def _read_index(file: Path) -> Index:
    """Without a valid index everything is fetched again."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {check_blob_key(path): (int(size), str(at)) for path, (size, at) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, BadName):
        return {}


class LogReader:
    """Remembers how far it has read; `more` yields what was written since.

    Only the last piece grows, so a reader can continue after any pause.
    """

    def __init__(self, blobs: Blobs, job: str, offset: int = 0) -> None:
        self._blobs = blobs
        self._job = job
        self._offset = offset

    def more(self) -> Iterator[bytes]:
        """New bytes, one piece at a time, until there are no more for now."""
        while True:
            piece, start = divmod(self._offset, LOG_PIECE)
            try:
                content = self._blobs.read_range(
                    log_key(self._job, piece), start, LOG_PIECE - start
                )
            except BlobMissing:
                return
            if not content:
                return
            self._offset += len(content)
            yield content
            if start + len(content) < LOG_PIECE:
                return

    @property
    def has_read(self) -> int:
        return self._offset


def log_size(blobs: Blobs, job: str) -> int:
    return sum(info.size for info in blobs.list(log_key(job, 0).rpartition("/")[0] + "/"))


def last_lines(blobs: Blobs, job: str, count: int) -> bytes:
    """The end of a log, without reading all of it."""
    pieces = sorted(info.key for info in blobs.list(log_key(job, 0).rpartition("/")[0] + "/"))
    tail = b""
    for key in pieces[-_MOST_PIECES:][::-1]:
        tail = blobs.read_range(key, 0, LOG_PIECE) + tail
        if tail.count(b"\n") > count:
            break
    return b"".join(tail.splitlines(keepends=True)[-count:])
