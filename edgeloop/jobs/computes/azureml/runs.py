"""What Azure ML knows about jobs: many with one request, including the steps of pipelines.

A job is a run of the same name. A step's run has a name that Azure ML chose; its pipeline has a
property with its jobs in the order of its steps, and a step has the job's id as its display name.
So a process that only knows ids finds everything with one batch, one listing, and one call per
pipeline.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from edgeloop.jobs.computes.azureml.connection import Connection
from edgeloop.jobs.computes.azureml.services import AzureRun
from edgeloop.jobs.computes.base import ObservedState
from edgeloop.node.ticket import State

JOB_TAG, NAME_TAG = "edgeloop_job", "edgeloop_name"
PIPELINE_TAG = "edgeloop_pipeline"
MEMBERS = "edgeloop_steps"
_STATES: Mapping[str, State] = {
    **dict.fromkeys(("notstarted", "starting", "provisioning", "queued", "paused"), "queued"),
    **dict.fromkeys(("preparing",), "preparing"),
    **dict.fromkeys(("running", "finalizing", "notresponding", "cancelrequested"), "running"),
    "completed": "completed",
    "finished": "completed",
    "failed": "failed",
    "canceled": "canceled",
    "cancelled": "canceled",
}
WAITING = frozenset({"queued", "preparing"})
_EXIT_CODE = re.compile(r"exited with status code (\d+)")
OVER = frozenset({"completed", "failed", "canceled"})


@dataclass(frozen=True)
class FoundRun:
    """A job's run, if it has one yet, and the pipeline it is a step of."""

    run: AzureRun | None
    pipeline: str = ""


class AzureRuns:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pipelines: dict[str, str] = {}  # of job, as far as known
        self._members: dict[str, tuple[str, ...]] = {}  # digests of a pipeline's jobs

    def remember(self, pipeline: str, jobs: Sequence[str]) -> None:
        self._pipelines |= dict.fromkeys(jobs, pipeline)
        self._members[pipeline] = tuple(digest(job) for job in jobs)

    def find(self, jobs: Sequence[str]) -> dict[str, FoundRun]:
        """Those of these that Azure ML knows."""
        alone = [job for job in jobs if job not in self._pipelines]
        found = {job: FoundRun(run) for job, run in self._connection.history.runs(alone).items()}
        self._look_for_pipelines([job for job in alone if job not in found])
        by_pipeline: dict[str, list[str]] = {}
        for job in jobs:
            if job not in found and job in self._pipelines:
                by_pipeline.setdefault(self._pipelines[job], []).append(job)
        for pipeline, members in by_pipeline.items():
            found |= self._steps(pipeline, members)
        return found

    def is_whole(self, pipeline: str, jobs: Iterable[str]) -> bool:
        """Whether these are all of its steps."""
        return set(self._members.get(pipeline, ())) <= {digest(job) for job in jobs}

    def forget(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            self._pipelines.pop(job, None)

    def _look_for_pipelines(self, jobs: Sequence[str]) -> None:
        """One listing of our pipelines, newest first, read as far as needed."""
        wanted = {digest(job): job for job in jobs}
        if not wanted:
            return
        for pipeline in self._connection.ml.jobs.list(tag=PIPELINE_TAG):
            if pipeline is None:
                continue
            members = tuple((pipeline.properties or {}).get(MEMBERS, "").split())
            self._members[str(pipeline.name)] = members
            for member in wanted.keys() & set(members):
                self._pipelines[wanted.pop(member)] = str(pipeline.name)
            if not wanted:
                return

    def _steps(self, pipeline: str, jobs: Sequence[str]) -> dict[str, FoundRun]:
        runs: dict[str, AzureRun] = {}
        for child in self._connection.history.children(pipeline):
            runs[child.tags.get(JOB_TAG) or child.properties.get(JOB_TAG) or child.name] = child
        found = {job: FoundRun(runs[job], pipeline) for job in jobs if job in runs}
        if len(found) < len(
            jobs
        ):  # not started yet; the pipeline itself knows whether they will be
            whole = self._connection.history.runs([pipeline]).get(pipeline)
            for job in jobs:
                if job not in found and whole is not None:
                    found[job] = FoundRun(_not_begun(whole), pipeline)
        return found


def observed(run: AzureRun) -> ObservedState:
    """An unknown status counts as running: better to wait too long than to lose a job."""
    state = _STATES.get(run.status.lower(), "running")
    if run.status.lower() == "cancelrequested":
        return ObservedState(state, "Azure ML is still canceling it")
    if state == "failed":
        code = _EXIT_CODE.search(run.error)  # the wrapper's
        ended = f"the wrapper ended with exit code {code[1]}" if code else ""
        return ObservedState(state, ended or run.error or "Azure ML does not say why")
    if state in WAITING:
        return ObservedState(state, run.warnings[-1] if run.warnings else "")
    return ObservedState(state)


def waited_s(run: AzureRun, now: datetime | None = None) -> float:
    """How long it has waited before it started."""
    if run.created is None or run.started is not None:
        return 0.0
    until = run.ended or now or datetime.now(UTC)
    return (_aware(until) - _aware(run.created)).total_seconds()


def digest(job: str) -> str:
    """Short, since a run's property is limited to a thousand characters."""
    return hashlib.sha256(job.encode()).hexdigest()[:8]


def _not_begun(pipeline: AzureRun) -> AzureRun:
    over = {"completed": "Failed", "failed": "Failed", "canceled": "Canceled"}
    status = over.get(_STATES.get(pipeline.status.lower(), ""), "Queued")
    error = f"its pipeline {pipeline.id} ended before it started" if status == "Failed" else ""
    return AzureRun(
        "", status, error=error or pipeline.error, warnings=("it waits in its pipeline",),
        created=pipeline.created, ended=pipeline.ended,
    )  # fmt: skip


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)
