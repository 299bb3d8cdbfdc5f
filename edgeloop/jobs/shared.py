"""The jobs of a whole team: a record of each in the store, so that any machine can list them; and
what the store keeps for them.

`_records/<experiment>/<id>.json`  what was submitted, by whom; written with the ticket
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from socket import gethostname
from urllib.parse import quote

from edgeloop._util.system import ordered_map, user_name
from edgeloop.errors import BadInput, BlobMissing
from edgeloop.jobs.records import JobRecord, Listing, Run, age
from edgeloop.jobs.watch import status_from_store
from edgeloop.node.codec import from_json
from edgeloop.node.ticket import (
    CODE_FOLDER,
    FINAL_STATES,
    WRAPPER_FOLDER,
    JobProgress,
    Ticket,
    cancel_key,
    folder_key,
    state_key,
    ticket_key,
)
from edgeloop.store import BlobInfo, Blobs

_PARALLEL = 32


def submitter() -> str:
    """Who submits a job: `ada@laptop`."""
    return f"{user_name()}@{gethostname()}"


def record_key(record: JobRecord) -> str:
    return f"{_folder(record.experiment)}{record.id}.json"


def delete_job(blobs: Blobs, record: JobRecord) -> None:
    """Delete all that the store has of a job."""
    blobs.delete([record_key(record)])
    blobs.delete_folder(folder_key(record.id))


def mark_canceled(blobs: Blobs, runs: Sequence[Run]) -> None:
    """Ask jobs to end through the store: their wrappers look for the mark at each heartbeat."""
    keys = [cancel_key(run.record.id) for run in runs]
    for _ in ordered_map(lambda key: blobs.put(key, b"canceled"), keys, _PARALLEL, 2 * _PARALLEL):
        pass


def shared_runs(
    blobs: Blobs,
    experiment: str,
    local: Sequence[Run] = (),
    clock: Callable[[], float] = time.time,
) -> Listing:
    """Every job of the experiment, whoever submitted it, with the state that its wrapper reported.

    No compute is asked. `local` are the jobs of this machine, which also knows what computes said
    about them.
    """
    known = {run.record.id: run.status for run in local if run.status.is_final}
    keys = [info.key for info in blobs.list(_folder(experiment))]
    read = ordered_map(lambda key: _read(blobs, key, clock()), keys, _PARALLEL, 2 * _PARALLEL)
    runs, damaged = [], []
    for key, found in zip(keys, read, strict=True):
        if isinstance(found, Run):
            status = known.get(found.record.id, found.status)
            runs.append(found if found.status.is_final else replace(found, status=status))
        elif found:
            damaged.append(f"{key} {found}")
    return Listing(tuple(sorted(runs, key=age)), tuple(damaged))


@dataclass
class StoredJob:
    """What the store has of one job. `record` is the key of its record; empty: it has none."""

    id: str
    record: str = ""
    size: int = 0
    modified: float = 0.0  # of the newest of its files
    logs: list[BlobInfo] = field(default_factory=list)


def stored_jobs(blobs: Blobs) -> dict[str, StoredJob]:
    """All jobs of a store, of every experiment. Job folders are listed before records, which are
    written after them: a job that is being submitted has a young folder."""
    found: dict[str, StoredJob] = {}
    for info in blobs.list("_jobs/"):
        _, job, rest = (*info.key.split("/", 2), "", "")[:3]
        if rest:
            stored = found.setdefault(job, StoredJob(job))
            stored.size += info.size
            stored.modified = max(stored.modified, info.modified.timestamp())
            if rest.startswith("log/"):
                stored.logs.append(info)
    for info in blobs.list("_records/"):
        name = info.key.rpartition("/")[2]
        if name.endswith(".json"):
            job = name[: -len(".json")]
            found.setdefault(job, StoredJob(job)).record = info.key
    return found


def stored_code(blobs: Blobs) -> tuple[dict[str, BlobInfo], dict[str, BlobInfo]]:
    """The snapshots of code by their digests, and the wrappers by their keys."""
    codes = {
        info.key[len(CODE_FOLDER) :].partition(".")[0]: info for info in blobs.list(CODE_FOLDER)
    }
    return codes, {info.key: info for info in blobs.list(WRAPPER_FOLDER)}


def used_code(blobs: Blobs, jobs: Iterable[StoredJob]) -> set[str]:
    """Digests of the code that these jobs need, to run or to be submitted again. Raises BadInput if
    one of them cannot be read: then nobody knows."""

    def digests(job: StoredJob) -> tuple[str, ...]:
        with suppress(BlobMissing):
            ticket = Ticket.from_json(blobs.read_document(ticket_key(job.id)))
            return ticket.code, ticket.package
        try:
            return (
                (from_json(JobRecord, blobs.read_document(job.record)).code,) if job.record else ()
            )
        except BlobMissing:  # deleted since it was listed
            return ()
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BadInput(reason=f"the record {job.record} cannot be read") from None

    found = ordered_map(digests, list(jobs), _PARALLEL, 2 * _PARALLEL)
    return {digest for each in found for digest in each if digest}


def ended_jobs(blobs: Blobs, jobs: Sequence[str]) -> Mapping[str, JobProgress]:
    """Those of these that have ended, by the last word of their wrappers."""

    def progress(job: str) -> JobProgress | None:
        with suppress(BlobMissing, BadInput):
            return JobProgress.from_json(blobs.read_document(state_key(job)))
        return None

    read = ordered_map(progress, jobs, _PARALLEL, 2 * _PARALLEL)
    pairs = zip(jobs, read, strict=True)
    return {job: state for job, state in pairs if state and state.state in FINAL_STATES}


def has_record(blobs: Blobs, job: str) -> bool:
    """Whether a job has a record now, by the experiment that its ticket names. Without a ticket
    there is no job."""
    try:
        ticket = Ticket.from_json(blobs.read_document(ticket_key(job)))
    except (BlobMissing, BadInput):
        return False
    return blobs.size(f"{_folder(ticket.experiment)}{job}.json") is not None


def _read(blobs: Blobs, key: str, now: float) -> Run | str:
    """A sentence if it cannot be read; empty if it was deleted since it was listed."""
    try:
        record = from_json(JobRecord, blobs.read_document(key))
    except BlobMissing:
        return ""
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"is damaged ({type(error).__name__}) and was left out"
    return Run(record, status_from_store(blobs, record.id, now))


def _folder(experiment: str) -> str:
    return f"_records/{quote(experiment, safe='')}/"
