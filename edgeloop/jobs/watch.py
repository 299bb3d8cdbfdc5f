"""The state of jobs: the wrapper's own report in the store, combined with what the compute
observes.

The wrapper knows best, since it saw the exit code. If it reports nothing (not started yet, or
killed before it could), the compute's view counts. If a compute cannot be reached, the last known
state stays, with a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace

from edgeloop._util.system import ordered_map
from edgeloop.errors import BlobMissing, ComputeUnavailable, MissingExtra, StoreError
from edgeloop.jobs.computes.base import Compute, ObservedState
from edgeloop.node.codec import to_json
from edgeloop.node.ticket import (
    FINAL_STATES,
    JobFiles,
    JobProgress,
    State,
    access_key,
    expires_at,
    state_key,
)
from edgeloop.store import Blobs

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


@dataclass(frozen=True)
class WatchedJob:
    """One job to look at: when it was submitted, and what was known before."""

    job: str
    submitted: float
    cancel_asked: bool
    last: Status


def current_status(
    blobs: Blobs,
    compute: Compute,
    jobs: Sequence[WatchedJob],
    clock: Callable[[], float] = time.time,
) -> list[Status]:
    """All jobs of one compute with one request to it; final ones are not asked about again."""
    open_jobs = [job for job in jobs if not job.last.is_final]
    if not open_jobs:
        return [job.last for job in jobs]
    ids = [job.job for job in open_jobs]
    try:
        observed, note = compute.states(ids), ""
    except ComputeUnavailable as error:
        observed, note = {}, str(error)
    read = ordered_map(lambda job: _stored_progress(blobs, job), ids, _READERS, 2 * _READERS)
    stored = dict(zip(ids, read, strict=True))
    now = clock()
    statuses = []
    for job in jobs:
        if job.last.is_final:
            statuses.append(job.last)
            continue
        view, progress = observed.get(job.job), stored[job.job]
        is_over = view is not None and (view.state is None or view.state in FINAL_STATES)
        if is_over and (progress is None or progress.state not in FINAL_STATES):
            compute.rescue(job.job, blobs)
            progress = _stored_progress(blobs, job.job)  # it may have been written meanwhile
        is_on_its_way = now - job.submitted < compute.on_its_way_s and not job.cancel_asked
        statuses.append(_merged(job, view, progress, note, now, is_on_its_way))
    old = [
        job.job
        for job, status in zip(jobs, statuses, strict=True)
        if not status.is_final and now - job.submitted > RENEW_S
    ]
    renew_access(blobs, old, compute.access_s(None), now)
    return statuses


def renew_access(blobs: Blobs, jobs: Sequence[str], seconds: int | None, now: float) -> None:
    """Leave newer access for jobs that run for long, if theirs is a signature; see
    `edgeloop.node.supervisor`. That it cannot be made is no reason not to show a status."""
    if not jobs or seconds == 0:
        return
    with suppress(StoreError, MissingExtra):
        if blobs.access(0).make != "AzureIdentity":  # other stores have no signatures
            return
        for job in jobs:
            known = blobs.info(access_key(job))
            if known is None or now - known.modified.timestamp() > RENEW_S:
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
    job: WatchedJob,
    observed: ObservedState | None,
    progress: JobProgress | None,
    note: str,
    now: float,
    is_on_its_way: bool,
) -> Status:
    if progress is not None and progress.state in FINAL_STATES:
        return _ended(progress, observed, note)
    if observed is None:  # the compute did not respond
        return replace(_of(progress) if progress else job.last, note=note)
    is_over = observed.state in FINAL_STATES
    if progress is not None and now - progress.heartbeat < _SILENCE_S:
        # It is alive, even if its compute has given up on it.
        return replace(_of(progress), note="" if is_over else observed.reason)
    if observed.state is None:
        return _unknown_to_its_compute(job, progress, is_on_its_way)
    if is_over:
        base = _of(progress) if progress is not None else job.last
        if job.cancel_asked or observed.state == "canceled":
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


def _unknown_to_its_compute(
    job: WatchedJob, progress: JobProgress | None, is_on_its_way: bool
) -> Status:
    if progress is None and is_on_its_way:
        return Status("preparing", reason="on its way to the compute")
    if job.cancel_asked:
        return Status("canceled", reason="canceled")
    if progress is None:
        return Status("failed", reason="it never reached its compute: submit it again")
    return replace(_of(progress), state="failed", reason="its compute no longer knows it")


def _of(progress: JobProgress) -> Status:
    shared = [item.name for item in fields(Status) if item.name != "note"]
    return Status(**{name: getattr(progress, name) for name in shared})
