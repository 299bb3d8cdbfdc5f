"""What is left over of jobs: files without a record, code that no job uses, logs of long ago."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from edgeloop._util.units import size_text
from edgeloop.errors import BadInput
from edgeloop.housekeeping.findings import REUSED_AGE_S, SAFETY_S, GcOptions, ReportDraft
from edgeloop.jobs import (
    StoredJob,
    ended_jobs,
    has_record,
    stored_code,
    stored_jobs,
    used_code,
)
from edgeloop.store import BlobInfo, Blobs

STORE = "store"


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
        kept = {id_: job for id_, job in jobs.items() if id_ not in set(ids)}
        self._find_code(draft, kept)
        self._find_logs(draft, kept)

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

    def _add(self, draft: ReportDraft, kind: str, found: Sequence[BlobInfo], why: str) -> None:
        old = [info for info in found if self._is_unused(info)]
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


def _size(job: StoredJob) -> int:
    return sum(info.size for info in job.logs)


def _newest(job: StoredJob) -> float:
    return max(info.modified.timestamp() for info in job.logs)
