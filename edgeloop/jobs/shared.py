"""The jobs of a whole team: a record of each in the store, so that any machine can list them.

`_records/<experiment>/<id>.json`  what was submitted, by whom; written with the ticket
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from socket import gethostname
from urllib.parse import quote

from edgeloop._util.parallel import ordered_map
from edgeloop._util.system import user_name
from edgeloop.errors import BlobMissing
from edgeloop.jobs.protocol.codec import from_json
from edgeloop.jobs.protocol.ticket import cancel_key, folder_key
from edgeloop.jobs.records import JobRecord, Listing, Run, age
from edgeloop.jobs.watch import status_from_store
from edgeloop.store import Blobs

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


def _read(blobs: Blobs, key: str, now: float) -> Run | str:
    """A sentence if it cannot be read; empty if it was deleted since it was listed."""
    try:
        record = from_json(JobRecord, blobs.read(key))
    except BlobMissing:
        return ""
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"is damaged ({type(error).__name__}) and was left out"
    return Run(record, status_from_store(blobs, record.id, now))


def _folder(experiment: str) -> str:
    return f"_records/{quote(experiment, safe='')}/"
