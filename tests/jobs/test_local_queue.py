"""The queue of this machine under faults: a full disk, entries that cannot be read, and many who
wait."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgeloop.errors import ComputeUnavailable
from edgeloop.jobs.computes import Resources, make_compute, waiting
from edgeloop.jobs.computes.queue import UNREADABLE, Capacity, JobQueue, QueueEntry
from edgeloop.testing.contracts.compute import LIMIT_S, JobHarness
from tests.peers.process import wait_until

pytestmark = pytest.mark.slow

EVERYTHING = Resources(cpus=2)


@pytest.fixture
def harness(tmp_path: Path, folder_blobs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    compute = make_compute("local", {"cpus": 2, "memory": "1 GB", "gpus": []}, tmp_path / "state")
    harness = JobHarness(compute, folder_blobs, tmp_path)
    yield harness
    harness.close()


def entry(job: str) -> QueueEntry:
    return QueueEntry(job, 0, 0.0, Resources(), Capacity(2.0), "")


FULL_DISK = """\
import os, sys, time
from pathlib import Path
from edgeloop.jobs.computes import Resources, make_compute
from edgeloop.store import open_access, Access
from edgeloop.testing.contracts.compute import JobHarness

folder = Path(sys.argv[1])
os.environ["EDGELOOP_CACHE"] = str(folder / "cache")
blobs = open_access(Access("LocalStore", {"folder": str(folder / "blobs")}))
compute = make_compute("local", {"cpus": 2, "memory": "1 GB", "gpus": []}, folder / "state")
harness = JobHarness(compute, blobs, folder)
harness.hold("blocker", resources=Resources(cpus=2))
harness.wait_until_runs("blocker")
jobs = [harness.send("python", "-c", "pass", resources=Resources(cpus=2)) for _ in range(4)]
canceled = harness.send("python", "-c", "pass", resources=Resources(cpus=2))
with (folder / "state/filler").open("wb", buffering=0) as filler:
    for size in (4096, 1):
        try:
            while True:
                filler.write(bytes(size))
        except OSError as error:
            assert error.errno == 28, error
compute.cancel([canceled])
harness.release("blocker")
for job in jobs:
    harness.wait_for(job, "completed")
harness.wait_for(canceled, "canceled")
harness.wait_for(harness.sent[0], "completed")
(folder / "state/filler").unlink()
harness.wait_for(harness.send("python", "-c", "pass"), "completed")
"""


@pytest.mark.server  # needs root
def test_a_full_disk_ends_no_job_and_loses_no_end(tmp_path: Path):
    (tmp_path / "state").mkdir()
    mount = f"mount -t tmpfs -o size=2m none '{tmp_path}/state' && exec \"$@\""
    done = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c", mount, "sh"),
            *(sys.executable, "-c", FULL_DISK, str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=10 * LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_start_that_cannot_be_noted_is_tried_again(tmp_path: Path, monkeypatch):
    """Where not even the entry can be overwritten, as on a file system that copies on write."""
    queue = JobQueue(tmp_path)
    queue.create()
    entered = queue.enter(entry("mine"))
    assert entered is not None
    name, lock = entered
    refusals = []

    def full(*_: object) -> None:
        if len(refusals) < 3:
            refusals.append(1)
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert waiting.wait(str(tmp_path), name)
    os.close(lock)
    assert len(refusals) == 3
    assert queue.snapshot().running == {"mine"} and not queue.snapshot().waiting
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b'{"job": 1}', b"null"])
def test_whatever_an_entry_holds_it_ends_as_a_failed_job(tmp_path: Path, content: bytes):
    queue = JobQueue(tmp_path)
    queue.create()
    entered = queue.enter(entry("mine"))
    assert entered is not None
    (tmp_path / "waiting" / entered[0]).write_bytes(content)
    assert queue.start(entered[0]) is None
    os.close(entered[1])
    ended = queue.ended("mine")
    assert ended is not None and (ended.state, ended.reason) == ("failed", UNREADABLE)
    (tmp_path / "over/mine").write_bytes(content)
    assert queue.ended("mine") == ended


def test_an_entry_that_cannot_be_read_is_a_failed_job_and_stops_no_other(
    harness: JobHarness,
):
    state = harness.folder / "state"
    harness.hold("blocker", resources=EVERYTHING)
    harness.wait_until_runs("blocker")
    dead, alive, canceled = (harness.hold(name, resources=EVERYTHING) for name in "dac")
    last = harness.send("python", "-c", "pass", resources=EVERYTHING)
    (state / "waiting/.nfs0001").touch()
    for job in (dead, alive, canceled):
        [file] = (state / "waiting").glob(f"*.{job}")
        file.write_bytes(b"")
    (state / "count").write_bytes(b"")
    (state / "alive" / dead).unlink()  # as if its process were gone
    harness.compute.cancel([canceled])
    assert harness.seen(canceled).state == "canceled"
    later = harness.send("python", "-c", "pass", resources=EVERYTHING)
    harness.release("blocker")
    harness.wait_for(last, "completed")
    harness.wait_for(later, "completed")
    for job in (dead, alive):
        assert harness.wait_for(job, "failed").reason == UNREADABLE
    harness.compute.forget([dead, alive, canceled, last, later])
    assert harness.seen(dead).state is None


def test_the_entry_of_a_running_job_may_be_damaged_too(harness: JobHarness):
    state = harness.folder / "state"
    runs = harness.hold("runs", resources=Resources(cpus=0.5))
    harness.wait_until_runs("runs")
    (state / "running" / runs).write_bytes(b"")
    after = harness.send("python", "-c", "pass", resources=Resources(cpus=0.5))
    harness.compute.cancel([runs])  # nobody knows its process: nothing is signaled
    assert {job: seen.state for job, seen in harness.compute.states([runs, after]).items()} == {
        runs: "running",
        after: "queued",  # what a damaged entry holds is unknown
    }
    harness.release("runs")
    harness.wait_for(after, "completed")
    assert harness.compute.rescue(runs, harness.blobs) is False


def test_an_empty_program_of_an_earlier_submission_is_replaced(harness: JobHarness):
    first = harness.send("python", "-c", "pass")
    harness.wait_for(first, "completed")
    for file in (harness.folder / "state/wrappers").iterdir():
        file.write_bytes(b"")
    harness.wait_for(harness.send("python", "-c", "pass"), "completed")


def test_a_submission_to_a_full_disk_is_one_sentence_and_leaves_nothing(harness: JobHarness):
    harness.wait_for(harness.send("python", "-c", "pass"), "completed")
    order = harness.order("python", "-c", "pass")
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, kept[1]))  # no file may grow beyond 8 bytes
    try:
        with pytest.raises(ComputeUnavailable, match="File too large"):
            harness.compute.submit(order)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, ignored)
    assert harness.seen(order.job).state is None
    harness.submit(order)
    harness.wait_for(order.job, "completed")


def test_of_many_who_wait_a_change_wakes_only_the_first_few(tmp_path: Path, monkeypatch):
    """Each looks when it begins. From then on only those look that may be next."""
    queue = JobQueue(tmp_path)
    queue.create()
    monkeypatch.setattr(JobQueue, "start", lambda *_: None)  # nobody can start yet
    looks: dict[int, int] = {}
    really = waiting.queue_names

    def counted(folder: str) -> list[str]:
        who = threading.get_ident()
        looks[who] = looks.get(who, 0) + 1
        return really(folder)

    monkeypatch.setattr(waiting, "queue_names", counted)
    monkeypatch.setattr(waiting, "SLEEP_S", 10 * LIMIT_S)
    names, threads = [], []
    for number in range(60):
        entered = queue.enter(entry(f"job-{number}"))
        assert entered is not None
        names.append(entered)
    for name, _ in names:
        thread = threading.Thread(target=waiting.wait, args=(str(tmp_path), name), daemon=True)
        thread.start()
        threads.append(thread)
    wait_until(lambda: len(looks) == 60, LIMIT_S, "everybody to have looked once")
    far = [thread.ident for thread in threads[12:]]
    first = threads[0].ident
    for number in range(5):  # the first ones are canceled one after another
        before = looks[threads[number + 1].ident]
        queue.cancel([f"job-{number}"])
        wait_until(lambda n=number: not threads[n].is_alive(), LIMIT_S, "it to end")
        wait_until(lambda n=number, b=before: looks[threads[n + 1].ident] > b, LIMIT_S, "a look")
    assert first is not None and {looks[who] for who in far} == {1}
    queue.cancel([f"job-{number}" for number in range(5, 59)])
    for thread in threads[:59]:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert threads[59].is_alive()
    assert sum(looks[who] for who in far[:-1]) <= 2 * len(far)
    queue.cancel(["job-59"])
    threads[59].join(LIMIT_S)
    for _, lock in names:
        os.close(lock)
    assert json.loads((tmp_path / "over/job-59").read_text())["state"] == "canceled"
