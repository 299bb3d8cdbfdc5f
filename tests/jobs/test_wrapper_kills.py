"""Every way to end a job from outside: nothing that was written is lost, and nothing runs on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeloop.node import outputs
from edgeloop.node.files import FolderBlobs
from edgeloop.node.outputs import recover
from edgeloop.node.ticket import Pace
from tests.jobs.wrapped import LIMIT_S, Wrapped, kill, python_of
from tests.peers.process import wait_until

pytestmark = pytest.mark.slow

MEMORY = Path("/sys/fs/cgroup/memory")
# Looks at outputs so seldom that only the last copy can bring what a test finds there.
LAST_COPY_ONLY = Pace(log_s=0.1, outputs_s=3600, heartbeat_s=0.5, patience_s=60)

WRITE_AND_WAIT = """
import time
open("outputs/before", "w").write("the kill")
print("printed before the kill", flush=True)
open("outputs/ready", "w").close()
time.sleep(600)
"""

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("outputs/ready", "w").close()
time.sleep(600)
"""

FAMILY = """
import os, signal, subprocess, sys, time
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", ignore])  # a child
subprocess.Popen([sys.executable, "-c", ignore], start_new_session=True)  # its own session
if os.fork() == 0:  # a daemon
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen([sys.executable, "-c", ignore], **quiet)
        subprocess.Popen([sys.executable, "-c", ignore], env={"NAME": "none"})  # without our mark
        open("outputs/ready", "w").close()
        time.sleep(600)
    os._exit(0)
os.wait()
"""


@pytest.fixture(params=["here", pytest.param("3.8", marks=pytest.mark.soak)])
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> Wrapped:
    blobs, python = FolderBlobs(tmp_path / "store"), python_of(request.param)
    return Wrapped(blobs, tmp_path / "node", pace=LAST_COPY_ONLY, python=python)


def sleepers(wrapped: Wrapped) -> list[int]:
    """Processes in the job's folder: how a test finds those that dropped even their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink() == wrapped.scratch / "work":
                found.append(int(entry.name))
    return found


def test_a_command_killed_from_outside_is_told_apart_from_one_that_failed(wrapped: Wrapped):
    wrapped.order_script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert wrapped.run()[0] == 128 + signal.SIGSEGV
    progress = wrapped.final()
    assert progress.exit_code == 128 + signal.SIGSEGV
    assert progress.reason == "killed by SIGSEGV"


def test_a_killed_command_leaves_what_it_wrote(wrapped: Wrapped):
    wrapped.order_script(WRITE_AND_WAIT)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        for pid in wrapped.processes():
            kill(pid)
        assert launcher.wait(LIMIT_S) == 137
    progress = wrapped.final()
    assert progress.state == "failed"
    assert progress.reason == "killed by SIGKILL, perhaps out of memory"
    assert wrapped.stored()["before"] == b"the kill"


@contextlib.contextmanager
def little_memory(size: int) -> Iterator[Path | None]:
    """A group of processes that may use so much together; None where we may not make one."""
    group = MEMORY / f"edgeloop-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        (group / "memory.limit_in_bytes").write_text(str(size))
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), LIMIT_S, "its processes")
        group.rmdir()


def test_a_command_that_ran_out_of_memory_is_said_to_have(wrapped: Wrapped):
    greedy = """
open("outputs/before", "w").write("the kill")
import os, signal
blocks = []
for _ in range(2_000 if {limited} else 0):
    blocks.append(bytearray(os.urandom(1 << 20)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    with little_memory(200 << 20) as group:
        wrapped.order_script(greedy.format(limited=group is not None))
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"] if group else []
        assert wrapped.run(before=enter)[0] == 137
    reason = wrapped.final().reason
    if group is None:
        assert reason == "killed by SIGKILL, perhaps out of memory"
    else:
        assert reason == "killed by SIGKILL; the system was out of memory"
    assert wrapped.stored() == {"before": b"the kill"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_canceled_job_may_still_save_its_work(wrapped: Wrapped, number: int):
    script = """
import signal, sys, time
def save(*_):
    time.sleep(0.5)
    open("outputs/checkpoint", "w").write("saved after the signal")
    sys.exit(5)
signal.signal(signal.SIGTERM, save)
open("outputs/ready", "w").close()
time.sleep(600)
"""
    wrapped.order_script(script, retries=1)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        launcher.send_signal(number)
        assert launcher.wait(LIMIT_S) == 143
    progress = wrapped.final()
    assert (progress.state, progress.exit_code, progress.reason) == ("canceled", 5, "canceled")
    assert progress.attempt == 1, "a canceled command is not started again"
    assert wrapped.stored()["checkpoint"] == b"saved after the signal"


def test_a_shell_that_ends_at_once_does_not_cut_short_what_it_started(wrapped: Wrapped):
    script = """
import signal, sys, time
def save(*_):
    time.sleep(1)
    open("outputs/checkpoint", "w").write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("outputs/ready", "w").close()
time.sleep(600)
"""
    wrapped.order(["sh", "-c", "python3 script.py; true"], {"script.py": script})
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        launcher.terminate()
        assert launcher.wait(LIMIT_S) == 143
    assert wrapped.stored()["checkpoint"] == b"saved"


def test_a_command_that_ignores_the_signal_is_killed_after_its_grace(wrapped: Wrapped):
    wrapped.order_script(STUBBORN, grace_s=0.5)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        launcher.terminate()
        assert launcher.wait(LIMIT_S) == 143
    progress = wrapped.final()
    assert (progress.state, progress.exit_code) == ("canceled", 137)


def test_children_and_daemons_end_with_the_command(wrapped: Wrapped):
    wrapped.order_script(FAMILY, grace_s=0.5)
    assert wrapped.run()[0] == 0
    assert wrapped.final().state == "completed"
    assert (wrapped.processes(), sleepers(wrapped)) == ([], [])


def test_children_and_daemons_end_when_the_job_is_canceled(wrapped: Wrapped):
    wrapped.order_script(FAMILY + "time.sleep(600)", grace_s=0.5)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        assert len(sleepers(wrapped)) >= 5
        launcher.terminate()
        assert launcher.wait(LIMIT_S) == 143
        assert (wrapped.processes(), sleepers(wrapped)) == ([], [])


def test_a_killed_launcher_ends_the_job_as_a_cancel_would(wrapped: Wrapped):
    script = WRITE_AND_WAIT.replace(
        "time.sleep(600)",
        """
import signal, sys
def save(*_):
    open("outputs/checkpoint", "w").write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("outputs/set", "w").close()
time.sleep(600)
""",
    )
    wrapped.order_script(script)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("set")
        launcher.kill()
        progress = wrapped.final()
        assert progress.state == "canceled"
        expected = "canceled: the process that the compute had started was killed"
        assert progress.reason == expected
        assert {"before", "checkpoint", "ready", "set"} == set(wrapped.stored())
        assert "printed before the kill" in wrapped.log()
        assert wrapped.processes() == []


def test_killing_the_launcher_and_its_children_does_not_reach_the_supervisor(wrapped: Wrapped):
    """As Ray does, three seconds after it asked."""
    wrapped.order_script(WRITE_AND_WAIT)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        parent = f"PPid:\t{launcher.pid}\n"
        assert wrapped.supervisor() != launcher.pid
        assert parent not in Path(f"/proc/{wrapped.supervisor()}/status").read_text()
        os.killpg(launcher.pid, signal.SIGKILL)
        assert wrapped.final().state == "canceled"
    assert wrapped.stored()["before"] == b"the kill"


def test_a_killed_supervisor_is_replaced_by_the_launcher(wrapped: Wrapped):
    wrapped.order_script(FAMILY + WRITE_AND_WAIT.replace("ready", "really"))
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        wrapped.wait_for_file("really")
        kill(wrapped.supervisor())
        assert launcher.wait(LIMIT_S) == 137
        assert wrapped.processes() == []
    progress = wrapped.final()
    assert progress.state == "failed" and progress.outputs_complete
    assert progress.reason == "the job's supervisor process was killed"
    assert wrapped.stored()["before"] == b"the kill"
    assert "printed before the kill" in wrapped.log()
    for pid in sleepers(wrapped):  # one without our mark, and without a supervisor to adopt it
        kill(pid)


def test_a_job_whose_wrapper_died_as_a_whole_is_finished_by_somebody_else(
    wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch
):
    wrapped.order_script(WRITE_AND_WAIT)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        with monkeypatch.context() as impatient:
            impatient.setattr(outputs, "_DYING_S", 0.1)
            assert not recover(wrapped.scratch, wrapped.blobs, "found dead"), "it is alive"
        supervisor = wrapped.supervisor()
        os.kill(launcher.pid, signal.SIGSTOP)
        kill(supervisor)
        launcher.kill()
        launcher.wait()
        assert recover(wrapped.scratch, wrapped.blobs, "found dead")
        assert wrapped.processes() == []
    progress = wrapped.final()
    assert (progress.state, progress.reason) == ("failed", "found dead")
    assert wrapped.stored()["before"] == b"the kill"
    assert not wrapped.scratch.exists()
    assert recover(wrapped.scratch, wrapped.blobs, "found dead"), "twice does no harm"


def test_a_job_that_starts_again_after_its_machine_was_lost_goes_on_with_its_outputs(
    wrapped: Wrapped, tmp_path: Path
):
    wrapped.pace = Pace(log_s=0.1, outputs_s=0.1, heartbeat_s=0.5, patience_s=60)
    script = """
import os, time
print("attempt", os.environ["EDGELOOP_ATTEMPT"], flush=True)
if os.path.exists("outputs/checkpoint"):
    open("outputs/second", "w").write(open("outputs/checkpoint").read())
else:
    open("outputs/checkpoint", "w").write("of the first")
    time.sleep(600)
"""
    wrapped.order_script(script)
    with wrapped.running() as launcher:
        wrapped.wait_for_output("checkpoint", b"of the first")
        wait_until(lambda: "attempt 1" in wrapped.log(), LIMIT_S, "its log")
        supervisor = wrapped.supervisor()
        os.kill(launcher.pid, signal.SIGSTOP)
        kill(supervisor)
    elsewhere = Wrapped(
        wrapped.blobs, tmp_path / "another node", job=wrapped.job, pace=wrapped.pace
    )
    assert elsewhere.run()[0] == 0
    assert elsewhere.final().attempt == 2
    assert elsewhere.stored()["second"] == b"of the first"
    assert elsewhere.log().startswith("attempt 1\nattempt 2\n")


def test_a_second_wrapper_of_a_running_job_does_nothing(wrapped: Wrapped):
    wrapped.order_script(WRITE_AND_WAIT)
    with wrapped.running() as launcher:
        wrapped.wait_for_file("ready")
        assert wrapped.run()[0] == 75
        assert launcher.poll() is None
        launcher.terminate()
        assert launcher.wait(LIMIT_S) == 143


def test_a_job_can_be_canceled_while_it_is_prepared(wrapped: Wrapped, tmp_path: Path):
    slow = tmp_path / "bin/conda"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\necho building\nexec sleep 600\n")
    slow.chmod(0o755)
    wrapped.variables["PATH"] = f"{slow.parent}:{os.environ['PATH']}"
    from edgeloop.node.ticket import Environment

    environment = Environment("conda", "conda.yaml")
    wrapped.order(["true"], {"conda.yaml": "name: x"}, environment=environment)
    with wrapped.running() as launcher:
        wait_until(lambda: "building\n" in wrapped.log(), LIMIT_S, "conda to start")
        progress = wrapped.progress()
        assert progress is not None and progress.state == "preparing"
        launcher.terminate()
        assert launcher.wait(LIMIT_S) == 143
        assert wrapped.processes() == []
    progress = wrapped.final()
    assert (progress.state, progress.exit_code) == ("canceled", None)
