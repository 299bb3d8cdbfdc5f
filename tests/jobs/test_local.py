"""This machine as a compute."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from edgeloop.errors import BadInput, BadName, BadSetting, ComputeUnavailable, Infeasible
from edgeloop.jobs.computes import Resources, base, compute_kinds, make_compute, queue
from edgeloop.jobs.computes.local import LocalCompute, LocalOptions
from edgeloop.jobs.computes.queue import interpreter, job_environment
from edgeloop.node.ticket import log_key, outputs_folder
from edgeloop.testing.contracts.compute import (
    HOLD,
    LIMIT_S,
    ComputeContract,
    JobHarness,
    processes_with,
)
from tests.jobs.wrapped import python_of
from tests.peers.process import wait_until

pytestmark = pytest.mark.slow

SUBMITTER = """\
import json, pathlib, sys, time
from edgeloop.jobs.computes import JobOrder, Resources, make_compute
from edgeloop.store import Access
settings, state, job, wrapper, make, options = map(json.loads, sys.argv[1:])
access = Access(make, options)
compute = make_compute("local", settings, pathlib.Path(state))
compute.submit(JobOrder(job, "far", Resources(), 0, access, wrapper))
time.sleep(600)
"""


@pytest.fixture
def settings():
    return {"cpus": 2, "memory": "1 GB", "gpus": [], "custom": {"board": 1}}


@pytest.fixture
def compute(tmp_path: Path, settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    return make_compute("local", settings, tmp_path / "state")


class TestLocal(ComputeContract):
    everything = Resources(cpus=2)
    too_much = Resources(cpus=3, custom={"board": 2})
    tidying_s = 1.0
    too_much_says = "cpus 3 (the most is 2), board 2 (the most is 1); this machine has cpus 2"

    def test_jobs_start_by_priority_and_then_by_submission(self, harness: JobHarness):
        harness.hold("blocker", resources=self.everything)
        harness.wait_until_runs("blocker")
        lines = harness.folder / "lines"
        code = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '\\n')"
        plan = [("late", 5), ("third", 0), ("fourth", 0), ("first", -7), ("second", -1)]
        jobs = [
            harness.send(
                *("python", "-c", code, str(lines), name),
                priority=priority,
                resources=self.everything,
            )
            for name, priority in plan
        ]
        harness.release("blocker")
        for job in jobs:
            harness.wait_for(job, "completed")
        assert lines.read_text().split() == ["first", "second", "third", "fourth", "late"]

    def test_jobs_run_together_while_there_is_room_and_no_job_is_overtaken(
        self, harness: JobHarness
    ):
        harness.hold("one")
        harness.hold("two", resources=Resources(cpus=0.5))
        harness.wait_until_runs("one")
        harness.wait_until_runs("two")
        large = harness.hold("large", resources=self.everything)
        small = harness.hold("small", resources=Resources(cpus=0.5))
        harness.release("two")
        assert harness.seen(large).state == harness.seen(small).state == "queued"
        harness.release("one")
        harness.wait_until_runs("large")
        assert harness.seen(small).state == "queued"
        harness.release("large")
        harness.wait_until_runs("small")

    def test_boards_and_memory_are_counted_too(self, harness: JobHarness):
        harness.hold("one", resources=Resources(cpus=0.1, custom={"board": 1}))
        harness.wait_until_runs("one")
        board = harness.hold("board", resources=Resources(cpus=0.1, custom={"board": 1}))
        harness.wait_for(board, "queued")
        harness.release("one")
        harness.wait_until_runs("board")
        with pytest.raises(Infeasible, match=r"memory 2\.0 GB \(the most is 1\.0 GB\)"):
            harness.compute.check(Resources(memory_bytes=2 * 10**9))

    @pytest.mark.soak
    def test_a_hundred_jobs_canceled_at_once_all_end_and_none_runs_on(self, harness: JobHarness):
        mark = f"hundred-{os.urandom(8).hex()}"
        orders = [harness.order("python", "-c", "import time; time.sleep(600)", mark)]
        orders += [harness.order("python", "-c", "pass", mark) for _ in range(99)]
        harness.hold("blocker", resources=self.everything)
        harness.compute.submit_many(orders)
        jobs = [order.job for order in orders]
        assert {seen.state for seen in harness.compute.states(jobs).values()} == {"queued"}
        harness.compute.cancel([*harness.sent, *jobs])
        assert {seen.state for seen in harness.compute.states(jobs).values()} == {"canceled"}
        wait_until(lambda: not all_processes(harness), LIMIT_S, "the waiting processes to end")
        assert not processes_with(mark)
        assert all(harness.progress(job) is None for job in jobs)

    def test_a_waiting_job_is_a_small_process(self, harness: JobHarness):
        harness.hold("blocker", resources=self.everything)
        harness.wait_until_runs("blocker")
        for number in range(3):
            harness.hold(f"waiting-{number}", resources=self.everything)
        status = Path(f"/proc/{front_of(harness, harness.sent[-1])}/status").read_text()
        [resident] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        assert int(resident) < 12_000

    def test_a_job_outlives_the_terminal_it_was_submitted_from(self, harness: JobHarness, settings):
        """The submitter has a terminal of its own; the kernel sends SIGHUP when that is closed."""
        order = harness.order("python", "-c", HOLD, str(harness.folder / "far"))
        harness.sent.append(order.job)
        state, access = str(harness.folder / "state"), order.access
        said = [settings, state, order.job, order.wrapper, access.make, dict(access.options)]
        command = [sys.executable, "-c", SUBMITTER, *map(json.dumps, said)]
        submitter, terminal = pty.fork()
        if submitter == 0:
            os.execv(sys.executable, command)
        harness.wait_until_runs("far")
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(submitter, 0)[1]) == -signal.SIGHUP
        assert harness.seen(order.job).state == "running"
        harness.release("far")
        harness.wait_for(order.job, "completed")

    def test_a_waiting_process_that_is_killed_holds_nobody_up(self, harness: JobHarness):
        harness.hold("blocker", resources=self.everything)
        harness.wait_until_runs("blocker")
        killed = harness.hold("killed", resources=self.everything)
        after = harness.hold("after", resources=self.everything)
        os.kill(front_of(harness, killed), signal.SIGKILL)
        assert "ended while it waited" in harness.wait_for(killed, "failed").reason
        harness.release("blocker")
        harness.wait_until_runs("after")
        assert not harness.runs("killed")
        assert "ended while it waited" in harness.wait_for(killed, "failed").reason
        assert harness.seen(after).state == "running"

    def test_a_wrapper_that_is_killed_gives_its_room_back(self, harness: JobHarness):
        killed = harness.hold("killed", resources=self.everything)
        harness.wait_until_runs("killed")
        harness.hold("after", resources=self.everything)
        os.kill(front_of(harness, killed), signal.SIGKILL)
        harness.wait_until_runs("after")
        assert harness.seen(killed).state == "failed"
        assert harness.wait_for_end(killed).state in ("canceled", "failed")
        assert not processes_with(str(harness.folder / "killed"))

    def test_a_job_of_which_all_was_killed_is_recovered(self, harness: JobHarness):
        code = "import os, time, pathlib, sys\n"
        code += (
            "pathlib.Path(os.environ['EDGELOOP_OUTPUT_DIR'], 'made.txt').write_text('precious')\n"
        )
        code += "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
        job = harness.send("python", "-c", code, str(harness.folder / "all.runs"))
        harness.wait_until_runs("all")
        both = processes_of(harness, job)
        assert len(both) == 2
        for process in both:
            os.kill(process, signal.SIGSTOP)
        for process in both:
            os.kill(process, signal.SIGKILL)
        assert "without reporting" in harness.wait_for(job, "failed").reason
        assert harness.compute.rescue(job, harness.blobs)
        assert harness.wait_for_end(job).state == "failed"
        assert harness.blobs.read(f"{outputs_folder(job)}made.txt") == b"precious"
        assert not processes_with(str(harness.folder / "all.runs"))

    def test_a_canceled_job_that_died_before_it_could_say_so_is_canceled(self, harness: JobHarness):
        job = harness.hold("canceled")
        harness.wait_until_runs("canceled")
        both = processes_of(harness, job)
        for process in both:
            os.kill(process, signal.SIGSTOP)
        harness.compute.cancel([job])
        for process in both:
            os.kill(process, signal.SIGKILL)
        harness.wait_for(job, "canceled")
        assert harness.compute.rescue(job, harness.blobs)
        assert harness.wait_for_end(job).state == "canceled"
        assert not processes_with(str(harness.folder / "canceled"))

    def test_a_process_that_took_over_the_number_of_a_dead_job_is_left_alone(
        self, harness: JobHarness
    ):
        job = harness.hold("dead")
        harness.wait_until_runs("dead")
        for process in processes_of(harness, job):
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: harness.seen(job).state == "failed", LIMIT_S, "it to be seen as dead")
        with subprocess.Popen(["sleep", "600"]) as innocent:
            file = harness.folder / "state/running" / job
            content = json.loads(file.read_text())
            file.write_text(json.dumps({**content, "pid": innocent.pid}))
            harness.compute.cancel([job])
            assert innocent.poll() is None
            innocent.kill()
        harness.compute.rescue(job, harness.blobs)


class TestGpus:
    @pytest.fixture
    def settings(self):
        return {"cpus": 8, "gpus": ["3", "5"]}

    @pytest.fixture
    def harness(self, compute, folder_blobs, tmp_path):
        harness = JobHarness(compute, folder_blobs, tmp_path)
        yield harness
        harness.close()

    def given(self, harness: JobHarness, name: str, gpus: float) -> str:
        code = "import os, pathlib, sys\n"
        code += (
            "pathlib.Path(sys.argv[1] + '.gpus').write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n"
        )
        resources = Resources(cpus=1, gpus=gpus)
        harness.send("python", "-c", code + HOLD, str(harness.folder / name), resources=resources)
        harness.wait_until_runs(name)
        return (harness.folder / f"{name}.gpus").read_text()

    def test_each_job_sees_its_own_gpus_and_one_that_asked_for_none_sees_none(
        self, harness: JobHarness
    ):
        assert self.given(harness, "none", 0) == ""
        assert self.given(harness, "one", 1) == "3"
        assert self.given(harness, "half", 0.5) == "5"
        assert self.given(harness, "other-half", 0.5) == "5"
        waits = harness.hold("waits", resources=Resources(gpus=1))
        assert harness.seen(waits).state == "queued"
        harness.release("one")
        harness.wait_until_runs("waits")

    def test_parts_of_several_gpus_are_refused(self, compute):
        with pytest.raises(
            BadInput, match=r"gpus 1\.5: ask for a fraction of one GPU, or for whole ones"
        ):
            compute.check(Resources(gpus=1.5))
        with pytest.raises(Infeasible, match=r"gpus 3 \(the most is 2\)"):
            compute.check(Resources(gpus=3))


def test_a_job_runs_the_python_of_the_active_environment(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    assert interpreter({"VIRTUAL_ENV": str(tmp_path)}) == tmp_path / "bin/python"
    assert interpreter({"CONDA_PREFIX": str(tmp_path)}) == tmp_path / "bin/python"
    assert interpreter({"VIRTUAL_ENV": str(tmp_path / "gone")}) == Path(sys.executable)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VIRTUAL_ENV", str(tmp_path))
        local = LocalCompute("local", LocalOptions(), tmp_path / "jobs")
        assert local.note == f"Python of {tmp_path}", "a submission says which"
        patched.setenv("VIRTUAL_ENV", str(tmp_path / "gone"))
        patched.delenv("CONDA_PREFIX", raising=False)
        assert local.note == ""
    assert job_environment({"A": "1"}, {"B": "2"})["EDGELOOP_PYTHON"] == sys.executable


@pytest.mark.parametrize("version", ["here", pytest.param("3.8", marks=pytest.mark.soak)])
def test_the_active_environment_may_have_another_python(
    compute, folder_blobs, tmp_path, monkeypatch, version
):
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(python_of(version))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    with contextlib.closing(JobHarness(compute, folder_blobs, tmp_path)) as harness:
        job = harness.send("python", "-c", "import sys; print(sys.executable)")
        harness.wait_for(job, "completed")
        expected = f"{tmp_path}/env/bin/python\n"
        assert folder_blobs.read(log_key(job, 0)).startswith(expected.encode())


def test_a_stopped_process_that_holds_the_lock_is_named(compute, monkeypatch):
    compute.check(Resources())
    monkeypatch.setattr(queue, "_LOCK_LIMIT_S", 0.1)
    with compute._queue._locked(), pytest.raises(ComputeUnavailable, match="a stopped process"):
        compute.cancel(["anything"])


@pytest.mark.parametrize("name", ["../up", "", "a/b", ".hidden", "a\nb"])
def test_an_id_that_is_no_file_name_is_refused(compute, folder_blobs, tmp_path, name):
    order = JobHarness(compute, folder_blobs, tmp_path).order("true")
    with pytest.raises(BadName):
        compute.submit(replace(order, job=name))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"cpu": 2}, "unknown key 'cpu': did you mean 'cpus'?"),
        ({"cpus": "two"}, "cpus must be a number, 0 or more, not 'two'"),
        ({"cpus": float("nan")}, "cpus must be a number, 0 or more, not nan"),
        ({"memory": "lots"}, "memory must be a size like 4GB or 512MiB, not 'lots'"),
        ({"gpus": 1.5}, "gpus must be a whole number or a list, not 1.5"),
        ({"custom": ["board"]}, "custom must hold 'key: value' lines, not ['board']"),
        ({"custom": {"board": -1}}, "custom.board must be a number, 0 or more, not -1"),
        ({"kind": "locall"}, "unknown kind 'locall': did you mean 'local'?"),
        ({"kind": "moon"}, "unknown kind 'moon': there are local, ray, azureml."),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(config, sentence, tmp_path):
    with pytest.raises(BadSetting) as refusal:
        make_compute("local", config, tmp_path)
    assert str(refusal.value) == f"computes.local: {sentence}"


def test_a_compute_of_somebody_else_is_found_by_its_entry_point(monkeypatch, tmp_path):
    made = []
    point = EntryPoint("moon", "tests.jobs.test_local:nothing", "edgeloop.computes")
    monkeypatch.setattr(EntryPoint, "load", lambda _: lambda *given: made.append(given))
    monkeypatch.setattr(base, "entry_points", lambda **wanted: _chosen([point], **wanted))
    make_compute("far", {"kind": "moon", "craters": 3}, tmp_path)
    assert made == [("far", {"kind": "moon", "craters": 3}, tmp_path)]
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    make_compute("far", {"kind": "moon"})  # as commands do: it gets a folder of its own
    assert made[-1] == ("far", {"kind": "moon"}, tmp_path / "state/moon")
    assert compute_kinds() == ("local", "ray", "azureml", "moon")
    with pytest.raises(BadSetting, match="unknown kind 'mooon': did you mean 'moon'"):
        make_compute("mooon")


def _chosen(points, group, name=None):
    assert group == "edgeloop.computes"
    return [point for point in points if name in (None, point.name)]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ComputeUnavailable, match="local cannot be reached: Not a directory"):
        make_compute("local", {}, tmp_path / "file/state").check(Resources())


def test_a_submission_cut_short_does_not_keep_the_job_from_being_submitted(
    compute, folder_blobs, tmp_path
):
    """Killed between taking the job's lock and writing its entry."""
    compute.check(Resources())
    harness = JobHarness(compute, folder_blobs, tmp_path)
    order = harness.order("python", "-c", "pass")
    (tmp_path / "state/alive" / order.job).touch()
    assert harness.seen(order.job).state is None
    harness.submit(order)
    harness.wait_for(order.job, "completed")


def test_sizes_may_have_units(tmp_path):
    for text, size in [("16 GB", 16 * 10**9), ("8Gi", 8 * 2**30), (1000, 1000), ("1.5k", 1500)]:
        compute = make_compute("local", {"memory": text}, tmp_path)
        with pytest.raises(Infeasible):
            compute.check(Resources(memory_bytes=size + 1))
        compute.check(Resources(memory_bytes=size))


def all_processes(harness: JobHarness) -> list[int]:
    return processes_with(str(harness.folder / "state/wrappers/waiter-"))


def processes_of(harness: JobHarness, job: str) -> list[int]:
    """Of a job of this harness: one while it waits, later the launcher and the supervisor."""
    return sorted({*all_processes(harness)} & {*processes_with(f".{job}\0")})


def front_of(harness: JobHarness, job: str) -> int:
    """The launcher leads the session it was started in; the supervisor has left it."""

    def launchers() -> list[int]:
        return [process for process in processes_of(harness, job) if os.getsid(process) == process]

    wait_until(lambda: bool(launchers()), LIMIT_S, f"the process of {job}")
    return launchers()[0]
