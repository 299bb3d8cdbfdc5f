"""Which word counts when the wrapper and the compute say different things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edgeloop.errors import ComputeUnavailable
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.computes.base import Compute, JobOrder, ObservedState, Resources
from edgeloop.jobs.records import Run, now
from edgeloop.jobs.watch import Status, current_status
from edgeloop.node.ticket import JobProgress, State, cancel_key, state_key
from edgeloop.settings import Settings
from edgeloop.store import Blobs
from edgeloop.testing import memory_blobs
from tests.jobs.runs import record

NOW = 1_000_000.0
QUEUED = Status("queued")


def submitted(job: str, seconds_ago: float, status: Status = QUEUED) -> Run:
    created = datetime.fromtimestamp(NOW - seconds_ago, UTC)
    return Run(record(job, job, created=created), status)


WAITING = submitted("job-1", 600)


class Seer(Compute):
    """A compute that says what it is told to, and counts the questions."""

    name, kind = "seer", "seer"

    def __init__(self, answers: dict[str, ObservedState] | None) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def check(self, resources: Resources) -> None: ...
    def submit(self, order: JobOrder) -> None: ...
    def cancel(self, jobs: Sequence[str]) -> None: ...
    def forget(self, jobs: Sequence[str]) -> None: ...
    def logs(self, job: str) -> str:
        return ""

    def states(self, jobs: Sequence[str]) -> dict[str, ObservedState]:
        self.asked.append(list(jobs))
        if self.answers is None:
            raise ComputeUnavailable(compute="seer", reason="no answer")
        return {job: self.answers.get(job, ObservedState(None)) for job in jobs}


@pytest.fixture
def blobs() -> Blobs:
    return memory_blobs()


def say(blobs: Blobs, state: State, heartbeat: float = NOW, **fields: object) -> None:
    progress = JobProgress(state, 1, "node-7", heartbeat, **fields)  # type: ignore[arg-type]
    blobs.put(state_key("job-1"), progress.to_json())


def seen(state: State | None, reason: str = "") -> Seer:
    return Seer({"job-1": ObservedState(state, reason)})


def now_of(blobs: Blobs, seer: Seer, run: Run = WAITING) -> Status:
    return current_status(blobs, seer, [run], clock=lambda: NOW)[0]


@pytest.mark.parametrize("view", ["running", "failed", "completed", None])
def test_the_wrappers_last_word_is_final_whatever_the_compute_thinks(blobs: Blobs, view):
    say(blobs, "failed", NOW - 9999, exit_code=3, reason="exit code 3")
    status = now_of(blobs, seen(view))
    assert (status.state, status.exit_code) == ("failed", 3)


def test_a_job_that_waits_is_queued_and_one_that_started_without_a_word_prepares(blobs: Blobs):
    assert now_of(blobs, seen("queued")).state == "queued"
    assert now_of(blobs, seen("running")).state == "preparing"


def test_a_running_job_shows_what_its_wrapper_says(blobs: Blobs):
    say(blobs, "running", metrics={"loss": 0.5})
    status = now_of(blobs, seen("running"))
    assert (status.state, status.metrics, status.note) == ("running", {"loss": 0.5}, "")


def test_a_living_wrapper_is_believed_even_if_its_compute_has_given_it_up(blobs: Blobs):
    say(blobs, "running", NOW - 5)
    assert now_of(blobs, seen("failed", "killed")).state == "running"


def test_a_job_that_ended_without_a_word_failed_with_the_computes_reason(blobs: Blobs):
    say(blobs, "running", NOW - 9999)
    status = now_of(blobs, seen("failed", "the node is gone"))
    assert (status.state, status.reason) == ("failed", "the node is gone")


def test_it_was_canceled_if_somebody_asked_for_that(blobs: Blobs):
    asked = replace(WAITING, cancel_asked=True)
    assert now_of(blobs, seen("failed"), asked).state == "canceled"
    assert now_of(blobs, seen(None), asked).state == "canceled"


def test_a_job_unknown_to_its_compute_failed_unless_it_is_just_on_its_way(blobs: Blobs):
    assert now_of(blobs, seen(None)).state == "failed"
    fresh = submitted("job-1", 1)
    assert now_of(blobs, seen(None), fresh).state == "preparing"
    slow = seen(None)
    slow.on_its_way_s = 3600.0
    assert now_of(blobs, slow).state == "preparing"


def test_silence_is_noted(blobs: Blobs):
    say(blobs, "running", NOW - 300)
    assert "nothing heard from node-7 for 300 s" in now_of(blobs, seen("running")).note


def test_a_compute_that_is_away_changes_nothing_but_the_note(blobs: Blobs):
    run = replace(WAITING, status=Status("running"))
    status = now_of(blobs, Seer(None), run)
    assert status.state == "running"
    assert "cannot be reached" in status.note


def test_final_jobs_are_never_asked_about_and_the_others_in_one_question(blobs: Blobs):
    seer = Seer({})
    done = submitted("old", 9, Status("completed", exit_code=0))
    runs = [done, WAITING, submitted("job-2", 600)]
    assert current_status(blobs, seer, runs, lambda: NOW)[0].state == "completed"
    assert seer.asked == [["job-1", "job-2"]]
    current_status(blobs, seer, [done], lambda: NOW)
    assert len(seer.asked) == 1


def test_a_last_word_that_came_while_the_compute_was_asked_is_heard(blobs: Blobs):
    class Late(Seer):
        def states(self, jobs: Sequence[str]) -> dict[str, ObservedState]:
            return super().states(jobs)

    class LateBlobs:
        """The first read finds the job running, the second finds it completed."""

        def __init__(self) -> None:
            self.words = [
                JobProgress("running", 1, "n", NOW - 999),
                JobProgress("completed", 1, "n", NOW),
            ]

        def read_document(self, key: str) -> bytes:
            return self.words.pop(0).to_json()

    status = current_status(
        LateBlobs(), Late({"job-1": ObservedState("completed")}), [WAITING], lambda: NOW
    )[0]  # type: ignore[arg-type]
    assert status.state == "completed"


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (seen("running"), ("running", "its compute is storing its outputs")),
        (Seer(None), ("running", "the compute seer cannot be reached: no answer")),
        (seen("completed"), ("completed", "")),
        (seen("failed", "no right to write"), ("failed", "")),
        (seen(None), ("completed", "")),
    ],
    ids=["finalizing", "away", "done", "refused", "forgotten"],
)
def test_a_job_whose_compute_stores_its_outputs_ends_with_it(blobs: Blobs, view, expected):
    say(blobs, "completed", exit_code=0, compute_stores=True)
    status = now_of(blobs, view)
    assert status.state == expected[0] and status.note.startswith(expected[1])
    refused = "the compute could not store what it wrote: no right to write"
    assert status.reason == (refused if expected[0] == "failed" else "")


def test_a_job_whose_compute_is_away_is_asked_to_end_through_the_store(tmp_path: Path):
    (tmp_path / "edgeloop.yaml").write_text(
        "computes: {cluster: {kind: ray, address: 'http://127.0.0.1:1'}}"
    )
    jobs = Jobs(Settings.load(tmp_path))
    facts = {"compute": "cluster", "store": str(jobs.settings.location), "created": now()}
    run = jobs.runs.add("waits", lambda name, job: record(name, job, **facts))
    with pytest.raises(ComputeUnavailable, match="the store asks its jobs to end, which they do"):
        jobs.cancel([run])
    assert jobs.blobs.size(cancel_key(run.record.id)) is not None
    assert jobs.runs.get("waits").cancel_asked
