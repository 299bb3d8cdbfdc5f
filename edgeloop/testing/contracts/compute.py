"""What every compute promises: jobs wait, run, end and are canceled, once each and with reasons."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edgeloop.errors import BlobMissing, Infeasible
from edgeloop.jobs.bundle import ensure_wrapper
from edgeloop.jobs.computes import Compute, JobOrder, ObservedState, Resources
from edgeloop.node.ticket import (
    FINAL_STATES,
    JobProgress,
    Ticket,
    outputs_folder,
    state_key,
    ticket_key,
    wrapper_key,
)
from edgeloop.store import Blobs
from edgeloop.store.location import open_blobs, parse_location
from edgeloop.testing.waiting import wait_until

LIMIT_S = 60.0
SLEEP = "import time; time.sleep(600)"
# Creates a file to say that it runs, and ends when another file appears.
HOLD = """\
import sys, time, pathlib
pathlib.Path(sys.argv[1] + ".runs").touch()
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""
# Creates a file to say that it runs; on SIGTERM it takes its time to write a last output.
TIDY = """\
import os, signal, sys, time, pathlib
def tidy(*_):
    time.sleep(float(sys.argv[2]))
    pathlib.Path(os.environ["EDGELOOP_OUTPUT_DIR"], "last.txt").write_text("tidy")
    sys.exit(0)
signal.signal(signal.SIGTERM, tidy)
pathlib.Path(sys.argv[1] + ".runs").touch()
while True:
    time.sleep(0.02)
"""


@dataclass
class JobHarness:
    """Sends jobs with the real wrapper to a compute and observes them."""

    compute: Compute
    blobs: Blobs
    folder: Path
    sent: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def order(
        self,
        *command: str,
        wrapper: str = "",
        resources: Resources | None = None,
        priority: int = 0,
    ) -> JobOrder:
        """An order whose ticket is in the store; nothing is sent yet."""
        job = f"job-{next(self.numbers)}-{secrets.token_hex(4)}"
        ticket = Ticket(job, "a-name", "default", command, code="", grace_s=20.0)
        self.blobs.put(ticket_key(job), ticket.to_json())
        access = self.blobs.access(3600)
        key = wrapper or ensure_wrapper(self.blobs)
        return JobOrder(job, "a-name", resources or Resources(), priority, access, key)

    def send(
        self,
        *command: str,
        wrapper: str = "",
        resources: Resources | None = None,
        priority: int = 0,
    ) -> str:
        order = self.order(*command, wrapper=wrapper, resources=resources, priority=priority)
        return self.submit(order)

    def submit(self, order: JobOrder) -> str:
        self.compute.submit(order)
        self.sent.append(order.job)
        return order.job

    def hold(self, name: str, resources: Resources | None = None) -> str:
        """A job that runs until `release` is called with its name."""
        return self.send("python", "-c", HOLD, str(self.folder / name), resources=resources)

    def release(self, name: str) -> None:
        (self.folder / name).touch()

    def runs(self, name: str) -> bool:
        return (self.folder / f"{name}.runs").exists()

    def wait_until_runs(self, name: str) -> None:
        wait_until(lambda: self.runs(name), LIMIT_S, f"{name} to run")

    def seen(self, job: str) -> ObservedState:
        return self.compute.states([job])[job]

    def wait_for(self, job: str, state: str) -> ObservedState:
        try:
            wait_until(lambda: self.seen(job).state == state, LIMIT_S, f"{job} to be {state}")
        except TimeoutError as late:
            raise TimeoutError(f"{late}; it is {self.seen(job)}") from None
        return self.seen(job)

    def progress(self, job: str) -> JobProgress | None:
        try:
            return JobProgress.from_json(self.blobs.read(state_key(job)))
        except BlobMissing:
            return None

    def wait_for_end(self, job: str) -> JobProgress:
        """The final state as the wrapper wrote it."""

        def is_over() -> bool:
            progress = self.progress(job)
            return progress is not None and progress.state in FINAL_STATES

        wait_until(is_over, LIMIT_S, f"the final state of {job}")
        progress = self.progress(job)
        assert progress is not None
        return progress

    def close(self) -> None:
        self.compute.cancel(self.sent)
        wait_until(self._all_over, LIMIT_S, "the test's jobs to end")

    def _all_over(self) -> bool:
        states = self.compute.states(self.sent).values()
        return all(seen.state in FINAL_STATES or seen.state is None for seen in states)


def processes_with(mark: str) -> list[int]:
    """Processes of any namespace that have this text in their command line."""
    pids = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in line.read_bytes():
                pids.append(int(line.parent.name))
        except OSError:
            continue
    return pids


class ComputeContract:
    """Fixture: `compute`. Attributes: `everything` fills one node of it, `too_much` is what it can
    never provide, and `too_much_says` is a part of its refusal, which names what there is.
    `tidying_s` is how long a canceled job needs for its last output: longer than what the compute
    would leave it unasked.

    Jobs must see the files of this machine. Their store is a folder; override the fixture `blobs`
    where it must be another one."""

    everything: Resources
    too_much: Resources
    too_much_says: str
    tidying_s = 4.0  # Ray kills three seconds after a stop unless it is told otherwise

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return open_blobs(parse_location(f"sqlite:{tmp_path / 'store'}"))

    @pytest.fixture
    def harness(self, compute: Compute, blobs: Blobs, tmp_path: Path) -> Iterator[JobHarness]:
        harness = JobHarness(compute, blobs, tmp_path)
        yield harness
        harness.close()

    def test_a_job_waits_then_runs_then_completes(self, harness: JobHarness) -> None:
        first = harness.hold("first", resources=self.everything)
        second = harness.hold("second", resources=self.everything)
        harness.wait_until_runs("first")
        assert harness.seen(first).state == "running"
        assert harness.seen(second).state == "queued"
        assert not harness.runs("second")
        harness.release("first")
        assert harness.wait_for(first, "completed") == ObservedState("completed")
        harness.wait_until_runs("second")
        assert harness.seen(second).state == "running"
        harness.release("second")
        harness.wait_for(second, "completed")
        assert harness.wait_for_end(second).exit_code == 0

    def test_a_script_that_fails_is_a_failed_job_with_its_exit_code(
        self, harness: JobHarness
    ) -> None:
        job = harness.send("python", "-c", "raise SystemExit(3)")
        assert "exit code 3" in harness.wait_for(job, "failed").reason
        end = harness.wait_for_end(job)
        assert (end.state, end.exit_code) == ("failed", 3)

    def test_a_waiting_job_that_is_canceled_never_runs(self, harness: JobHarness) -> None:
        harness.hold("blocker", resources=self.everything)
        harness.wait_until_runs("blocker")
        waiting = harness.hold("waiting", resources=self.everything)
        harness.wait_for(waiting, "queued")
        harness.compute.cancel([waiting])
        harness.wait_for(waiting, "canceled")
        harness.release("blocker")
        after = harness.hold("after", resources=self.everything)
        harness.release("after")
        harness.wait_for(after, "completed")
        assert harness.seen(waiting).state == "canceled"
        assert not harness.runs("waiting")

    def test_a_running_job_that_is_canceled_may_tidy_up_and_is_gone(
        self, harness: JobHarness
    ) -> None:
        mark = str(harness.folder / "tidy")
        job = harness.send("python", "-c", TIDY, mark, str(self.tidying_s))
        harness.wait_until_runs("tidy")
        assert processes_with(str(harness.folder / "tidy"))
        harness.compute.cancel([job])
        harness.wait_for(job, "canceled")
        assert harness.wait_for_end(job).state == "canceled"
        assert harness.blobs.read(f"{outputs_folder(job)}last.txt") == b"tidy"
        assert not processes_with(str(harness.folder / "tidy"))

    def test_a_job_that_is_submitted_twice_runs_once(self, harness: JobHarness) -> None:
        code = "import sys; open(sys.argv[1], 'a').write('ran\\n')"
        order = harness.order("python", "-c", code, str(harness.folder / "lines"))
        harness.submit(order)
        harness.submit(order)
        harness.wait_for(order.job, "completed")
        harness.submit(order)
        assert harness.seen(order.job).state == "completed"
        assert (harness.folder / "lines").read_text() == "ran\n"

    def test_jobs_that_nobody_knows_are_no_trouble(self, harness: JobHarness) -> None:
        assert harness.compute.states(["nobody"]) == {"nobody": ObservedState(None)}
        harness.compute.cancel(["nobody"])
        harness.compute.forget(["nobody"])
        assert harness.compute.logs("nobody") == ""
        assert harness.compute.states([]) == {}

    def test_twenty_jobs_canceled_at_once_all_end(self, harness: JobHarness) -> None:
        mark = f"mark-{secrets.token_hex(8)}"
        orders = [harness.order("python", "-c", SLEEP, mark) for _ in range(20)]
        harness.compute.submit_many(orders)
        jobs = [order.job for order in orders]
        harness.sent += jobs
        wait_until(lambda: bool(processes_with(mark)), LIMIT_S, "some of them to run")
        harness.compute.cancel(jobs)
        for job in jobs:
            harness.wait_for(job, "canceled")
        wait_until(lambda: not processes_with(mark), LIMIT_S, "the processes to be gone")

    def test_what_can_never_run_is_refused_with_what_there_is(self, harness: JobHarness) -> None:
        with pytest.raises(Infeasible) as refusal:
            harness.compute.check(self.too_much)
        assert self.too_much_says in str(refusal.value)
        order = harness.order("python", "-c", SLEEP, resources=self.too_much)
        with pytest.raises(Infeasible):
            harness.compute.submit(order)
        assert harness.seen(order.job) == ObservedState(None)
        harness.compute.check(self.everything)

    def test_a_wrapper_that_cannot_start_leaves_its_words(self, harness: JobHarness) -> None:
        content = b"raise SystemExit('this wrapper cannot start')"
        key = wrapper_key(hashlib.sha256(content).hexdigest())
        harness.blobs.put(key, content)
        job = harness.send("python", "-c", SLEEP, wrapper=key)
        assert harness.wait_for(job, "failed").reason
        assert "this wrapper cannot start" in harness.compute.logs(job)

    def test_a_job_that_is_over_can_be_forgotten_and_a_running_one_cannot(
        self, harness: JobHarness
    ) -> None:
        over = harness.send("python", "-c", "pass")
        runs = harness.hold("runs")
        harness.wait_for(over, "completed")
        harness.wait_until_runs("runs")
        harness.compute.forget([over, runs])
        assert harness.seen(over) == ObservedState(None)
        assert harness.seen(runs).state == "running"

    def test_no_secret_of_the_store_is_shown(self, harness: JobHarness) -> None:
        order = harness.order("python", "-c", SLEEP)
        assert "options" not in repr(order)
        assert str(harness.folder) not in repr(order)
