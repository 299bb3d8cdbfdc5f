"""How far jobs are: the wrapper's own word in the store, beside what their compute sees.

The wrapper knows best, since it saw the exit code. Where it says nothing (not started yet, or
killed in a way that left no last word) the compute's view stands. A compute that cannot be reached
changes nothing about a job: the last known state stays, with a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from edgeloop.errors import BlobMissing, ComputeUnavailable
from edgeloop.jobs.computes.base import Compute, Seen
from edgeloop.jobs.protocol.ticket import FINAL_STATES, Progress, State, state_key
from edgeloop.store import Blobs

PARALLEL = 32
SILENCE_S = 90.0  # several heartbeats, and clocks that differ


@dataclass(frozen=True)
class Status:
    """What is known of one job now."""

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
    note: str = ""  # why this may be out of date

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


@dataclass(frozen=True)
class Watched:
    """One job to look at: when it was submitted, and what was known before."""

    job: str
    submitted: float
    cancel_asked: bool
    last: Status


def look(
    blobs: Blobs,
    compute: Compute,
    jobs: Sequence[Watched],
    clock: Callable[[], float] = time.time,
) -> list[Status]:
    """All jobs of one compute with one question to it; final ones are not asked about again."""
    open_jobs = [job for job in jobs if not job.last.is_final]
    if not open_jobs:
        return [job.last for job in jobs]
    seen, note = _seen_by(compute, [job.job for job in open_jobs])
    with ThreadPoolExecutor(PARALLEL) as pool:
        said = dict(
            zip(
                (job.job for job in open_jobs),
                pool.map(lambda job: progress_of(blobs, job.job), open_jobs),
                strict=True,
            )
        )
    now = clock()
    found = []
    for job in jobs:
        if job.last.is_final:
            found.append(job.last)
            continue
        view = seen.get(job.job)
        progress = said[job.job]
        if view is not None and _is_over(view) and not _is_final(progress):
            compute.rescue(job.job, blobs)
            progress = progress_of(blobs, job.job)  # its last word may have come in between
        is_on_its_way = now - job.submitted < compute.on_its_way_s and not job.cancel_asked
        found.append(_merged(job, view, progress, note, now, is_on_its_way))
    return found


def progress_of(blobs: Blobs, job: str) -> Progress | None:
    try:
        return Progress.from_json(blobs.read(state_key(job)))
    except BlobMissing:
        return None


def _seen_by(compute: Compute, jobs: Sequence[str]) -> tuple[dict[str, Seen], str]:
    try:
        return compute.states(jobs), ""
    except ComputeUnavailable as error:
        return {}, str(error)


def _merged(
    job: Watched,
    seen: Seen | None,
    progress: Progress | None,
    note: str,
    now: float,
    is_on_its_way: bool,
) -> Status:
    if progress is not None and progress.state in FINAL_STATES:
        return _of(progress)
    if seen is None:  # the compute did not answer
        return replace(_of(progress) if progress else job.last, note=note)
    if progress is not None and now - progress.heartbeat < SILENCE_S:
        said = seen.reason if seen.state not in FINAL_STATES else ""
        return replace(_of(progress), note=said)  # it lives, even if its compute has given it up
    if seen.state is None:
        return _unknown_to_its_compute(job, progress, is_on_its_way)
    if seen.state in FINAL_STATES:
        return _ended_without_a_word(job, seen, progress)
    if progress is not None:
        silent = f"nothing heard from {progress.node} for {now - progress.heartbeat:.0f} s"
        return replace(_of(progress), note=silent)
    return Status("queued" if seen.state == "queued" else "preparing", reason=seen.reason)


def _unknown_to_its_compute(job: Watched, progress: Progress | None, is_on_its_way: bool) -> Status:
    if progress is None and is_on_its_way:
        return Status("preparing", reason="on its way to the compute")
    if job.cancel_asked:
        return Status("canceled", reason="canceled")
    if progress is None:
        return Status("failed", reason="it never reached its compute: submit it again")
    return replace(_of(progress), state="failed", reason="its compute no longer knows it")


def _ended_without_a_word(job: Watched, seen: Seen, progress: Progress | None) -> Status:
    base = _of(progress) if progress is not None else job.last
    if job.cancel_asked or seen.state == "canceled":
        return replace(base, state="canceled", reason=seen.reason or "canceled", note="")
    reason = seen.reason or "its process ended without saying why"
    return replace(base, state="failed", reason=reason, note="")


def _is_over(seen: Seen) -> bool:
    return seen.state is None or seen.state in FINAL_STATES


def _is_final(progress: Progress | None) -> bool:
    return progress is not None and progress.state in FINAL_STATES


def _of(progress: Progress) -> Status:
    return Status(
        progress.state,
        progress.reason,
        progress.exit_code,
        progress.attempt,
        progress.node,
        progress.started,
        progress.ended,
        progress.metrics,
        progress.published,
        progress.log_bytes,
        progress.outputs_complete,
    )
