"""What every compute promises. A compute's test file makes a `compute` fixture, says what fills it
(`everything`) and what it could never give (`too_much`), and inherits this."""

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
from edgeloop.jobs.computes import Compute, Order, Resources, Seen
from edgeloop.jobs.ticket import (
    FINAL_STATES,
    Progress,
    Ticket,
    outputs_folder,
    state_key,
    ticket_key,
    wrapper_key,
)
from edgeloop.store import Blobs
from tests.peers.process import wait_until

LIMIT_S = 60.0
SLEEP = "import time; time.sleep(600)"
# Ends when a file appears, and says first that it runs.
HOLD = """\
import sys, time, pathlib
pathlib.Path(sys.argv[1] + ".runs").touch()
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""
# Says that it runs; asked to end, it takes its time and writes a last file.
TIDY = """\
import os, signal, sys, time, pathlib
def tidy(*_):
    time.sleep(4)
    pathlib.Path(os.environ["EDGELOOP_OUTPUT_DIR"], "last.txt").write_text("tidy")
    sys.exit(0)
signal.signal(signal.SIGTERM, tidy)
pathlib.Path(sys.argv[1] + ".runs").touch()
while True:
    time.sleep(0.02)
"""


@dataclass
class Yard:
    """Sends jobs with the real wrapper to a compute, and looks at what comes of them."""

    compute: Compute
    blobs: Blobs
    folder: Path
    sent: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def order(self, *command: str, wrapper: str = "", **changes) -> Order:
        """A job whose ticket is in the store, not sent yet."""
        job = f"job-{next(self.numbers)}-{secrets.token_hex(4)}"
        ticket = Ticket(job, "a-name", "default", command, code="", grace_s=20.0)
        self.blobs.put(ticket_key(job), ticket.to_json())
        resources = changes.get("resources", Resources())
        access = self.blobs.access(3600)
        key = wrapper or ensure_wrapper(self.blobs)
        return Order(job, "a-name", resources, changes.get("priority", 0), access, key)

    def send(self, *command: str, **changes) -> str:
        return self.submit(self.order(*command, **changes))

    def submit(self, order: Order) -> str:
        self.compute.submit(order)
        self.sent.append(order.job)
        return order.job

    def hold(self, name: str, **changes) -> str:
        """A job that runs until `release` of its name."""
        return self.send("python", "-c", HOLD, str(self.folder / name), **changes)

    def release(self, name: str) -> None:
        (self.folder / name).touch()

    def runs(self, name: str) -> bool:
        return (self.folder / f"{name}.runs").exists()

    def wait_until_runs(self, name: str) -> None:
        wait_until(lambda: self.runs(name), LIMIT_S, f"{name} to run")

    def seen(self, job: str) -> Seen:
        return self.compute.states([job])[job]

    def wait_for(self, job: str, state: str) -> Seen:
        try:
            wait_until(lambda: self.seen(job).state == state, LIMIT_S, f"{job} to be {state}")
        except TimeoutError as late:
            raise TimeoutError(f"{late}; it is {self.seen(job)}") from None
        return self.seen(job)

    def progress(self, job: str) -> Progress | None:
        try:
            return Progress.from_json(self.blobs.read(state_key(job)))
        except BlobMissing:
            return None

    def wait_for_word(self, job: str) -> Progress:
        """The wrapper's last one."""

        def said() -> bool:
            progress = self.progress(job)
            return progress is not None and progress.state in FINAL_STATES

        wait_until(said, LIMIT_S, f"the last word of {job}")
        found = self.progress(job)
        assert found is not None
        return found

    def close(self) -> None:
        self.compute.cancel(self.sent)
        wait_until(self._all_over, LIMIT_S, "the test's jobs to end")

    def _all_over(self) -> bool:
        states = self.compute.states(self.sent).values()
        return all(seen.state in FINAL_STATES or seen.state is None for seen in states)


def processes_with(mark: str) -> list[int]:
    """Those that have this text in their command line, in any namespace."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in line.read_bytes():
                found.append(int(line.parent.name))
        except OSError:
            continue
    return found


class ComputeContract:
    everything: Resources
    too_much: Resources
    too_much_says: str

    @pytest.fixture
    def yard(self, compute, folder_blobs, tmp_path) -> Iterator[Yard]:
        yard = Yard(compute, folder_blobs, tmp_path)
        yield yard
        yard.close()

    def test_a_job_waits_then_runs_then_completes(self, yard: Yard):
        first = yard.hold("first", resources=self.everything)
        second = yard.hold("second", resources=self.everything)
        yard.wait_until_runs("first")
        assert yard.seen(first).state == "running"
        assert yard.seen(second).state == "queued"
        assert not yard.runs("second")
        yard.release("first")
        assert yard.wait_for(first, "completed") == Seen("completed")
        yard.wait_until_runs("second")
        assert yard.seen(second).state == "running"
        yard.release("second")
        yard.wait_for(second, "completed")
        assert yard.wait_for_word(second).exit_code == 0

    def test_a_script_that_fails_is_a_failed_job_with_its_exit_code(self, yard: Yard):
        job = yard.send("python", "-c", "raise SystemExit(3)")
        assert "exit code 3" in yard.wait_for(job, "failed").reason
        word = yard.wait_for_word(job)
        assert (word.state, word.exit_code) == ("failed", 3)

    def test_a_waiting_job_that_is_canceled_never_runs(self, yard: Yard):
        yard.hold("blocker", resources=self.everything)
        yard.wait_until_runs("blocker")
        waiting = yard.hold("waiting", resources=self.everything)
        yard.wait_for(waiting, "queued")
        yard.compute.cancel([waiting])
        yard.wait_for(waiting, "canceled")
        yard.release("blocker")
        after = yard.hold("after", resources=self.everything)
        yard.release("after")
        yard.wait_for(after, "completed")
        assert yard.seen(waiting).state == "canceled"
        assert not yard.runs("waiting")

    def test_a_running_job_that_is_canceled_may_tidy_up_and_is_gone(self, yard: Yard):
        job = yard.send("python", "-c", TIDY, str(yard.folder / "tidy"))
        yard.wait_until_runs("tidy")
        assert processes_with(str(yard.folder / "tidy"))
        yard.compute.cancel([job])
        yard.wait_for(job, "canceled")
        assert yard.wait_for_word(job).state == "canceled"
        assert yard.blobs.read(f"{outputs_folder(job)}last.txt") == b"tidy"
        assert not processes_with(str(yard.folder / "tidy"))

    def test_a_job_that_is_submitted_twice_runs_once(self, yard: Yard):
        code = "import sys; open(sys.argv[1], 'a').write('ran\\n')"
        order = yard.order("python", "-c", code, str(yard.folder / "lines"))
        yard.submit(order)
        yard.submit(order)
        yard.wait_for(order.job, "completed")
        yard.submit(order)
        assert yard.seen(order.job).state == "completed"
        assert (yard.folder / "lines").read_text() == "ran\n"

    def test_jobs_that_nobody_knows_are_no_trouble(self, yard: Yard):
        assert yard.compute.states(["nobody"]) == {"nobody": Seen(None)}
        yard.compute.cancel(["nobody"])
        yard.compute.forget(["nobody"])
        assert yard.compute.logs("nobody") == ""
        assert yard.compute.states([]) == {}

    def test_twenty_jobs_canceled_at_once_all_end(self, yard: Yard):
        mark = f"mark-{secrets.token_hex(8)}"
        orders = [yard.order("python", "-c", SLEEP, mark) for _ in range(20)]
        yard.compute.submit_many(orders)
        jobs = [order.job for order in orders]
        yard.sent += jobs
        wait_until(lambda: bool(processes_with(mark)), LIMIT_S, "some of them to run")
        yard.compute.cancel(jobs)
        for job in jobs:
            yard.wait_for(job, "canceled")
        wait_until(lambda: not processes_with(mark), LIMIT_S, "the processes to be gone")

    def test_what_can_never_run_is_refused_with_what_there_is(self, yard: Yard):
        with pytest.raises(Infeasible) as refusal:
            yard.compute.check(self.too_much)
        assert self.too_much_says in str(refusal.value)
        order = yard.order("python", "-c", SLEEP, resources=self.too_much)
        with pytest.raises(Infeasible):
            yard.compute.submit(order)
        assert yard.seen(order.job) == Seen(None)
        yard.compute.check(self.everything)

    def test_a_wrapper_that_cannot_start_leaves_its_words(self, yard: Yard):
        content = b"raise SystemExit('this wrapper cannot start')"
        key = wrapper_key(hashlib.sha256(content).hexdigest())
        yard.blobs.put(key, content)
        job = yard.send("python", "-c", SLEEP, wrapper=key)
        assert yard.wait_for(job, "failed").reason
        assert "this wrapper cannot start" in yard.compute.logs(job)

    def test_a_job_that_is_over_can_be_forgotten_and_a_running_one_cannot(self, yard: Yard):
        over = yard.send("python", "-c", "pass")
        runs = yard.hold("runs")
        yard.wait_for(over, "completed")
        yard.wait_until_runs("runs")
        yard.compute.forget([over, runs])
        assert yard.seen(over) == Seen(None)
        assert yard.seen(runs).state == "running"

    def test_no_secret_of_the_store_is_shown(self, yard: Yard):
        order = yard.order("python", "-c", SLEEP)
        assert "options" not in repr(order)
        assert str(yard.folder) not in repr(order)
