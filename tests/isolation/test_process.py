"""The process for native work: what happens when it crashes, hangs, or says no."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeloop._util.isolation import WorkerProcess, as_file, mapped
from edgeloop._util.system import waited_for_cpu_s
from edgeloop.errors import BadInput, BadModel, ModelFailed, ModelRefused, WorkerFailed
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from tests.converted import samples, smooth_images
from tests.graph import odd_models
from tests.isolation.killing import kill_in_call
from tests.jobs.waiting import eventually


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    """The next call works, whatever a test did to it."""
    with WorkerProcess() as one:
        yield one


def test_a_crash_is_an_error_of_the_model_and_the_next_call_works(process, monkeypatch):
    process.call("qnn.hello")
    before = process.pid
    kill_in_call(process, signal.SIGSEGV, monkeypatch)
    with pytest.raises(ModelFailed, match="crashed its process with SIGSEGV") as caught:
        process.call("qnn.wait", seconds=30)
    assert not isinstance(caught.value, ModelRefused), "it may be the machine's: it is tried again"
    assert process.call("qnn.hello")[0]["onnxruntime"]
    assert process.pid != before


def starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, every process waits for a CPU all the time."""
    began = time.monotonic()
    waited = lambda session: time.monotonic() - began  # noqa: E731
    monkeypatch.setattr("edgeloop._util.system.waited_for_cpu_s", waited)


def test_on_a_busy_machine_a_call_gets_the_time_that_others_took(process, monkeypatch):
    process.call("qnn.hello")
    starve(monkeypatch)
    process.call("qnn.wait", seconds=1.2, limit_s=0.5)


def test_a_call_that_a_busy_machine_never_lets_end_is_not_the_models_fault(process, monkeypatch):
    process.call("qnn.hello")
    starve(monkeypatch)
    with pytest.raises(WorkerFailed, match=r"did not end within 0\.2 s .* too busy"):
        process.call("qnn.wait", seconds=30, limit_s=0.2)
    assert process.call("qnn.hello")[0]["onnxruntime"]


def test_the_time_that_processes_wait_for_a_cpu_is_known():
    script = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nos.fork()\n"
    busy = subprocess.Popen(
        [sys.executable, "-c", script + "while True: pass"], start_new_session=True
    )
    try:
        eventually(lambda: waited_for_cpu_s(busy.pid) > 0.2)
    finally:
        os.killpg(busy.pid, signal.SIGKILL)
        busy.wait()


def test_a_call_that_does_not_end_is_stopped_and_the_next_one_works(process):
    process.call("qnn.hello")
    before = process.pid
    with pytest.raises(ModelFailed, match=r"did not end within 0\.5 s"):
        process.call("qnn.wait", seconds=600, limit_s=0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    process.call("qnn.hello")


@pytest.mark.slow
def test_a_picture_too_large_to_compile_ends_at_the_limit(tmp_path):
    model = odd_models.deep(tmp_path / "huge.onnx", 8192)
    with QnnToolchain(limit_s=1) as toolchain:
        toolchain.warm()
        began = time.monotonic()
        with pytest.raises(ModelFailed, match="screen did not end within 1 s"):
            toolchain.screen(model, find_chip("qcs8550"))
        assert time.monotonic() - began < 60, "a busy machine gets more, within bounds"


def test_errors_of_ours_arrive_as_what_they_are(process, tmp_path):
    path = odd_models.no_number(tmp_path / "m.onnx")
    with pytest.raises(BadModel, match="NaN"):
        process.call("qnn.inspect", model=str(path))


def test_what_a_library_raises_is_the_models_error_with_its_last_words(process, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelRefused, match="deploy failed"):
        process.call("qnn.deploy", quantized=str(path), target=str(tmp_path / "d"), layout="NCHW")


def test_nothing_is_left_behind(tmp_path):
    script = (
        "import sys\n"
        "from edgeloop._util.isolation import WorkerProcess\n"
        "import edgeloop.platforms.qnn.toolchain\n"
        "process = WorkerProcess()\n"
        "process.call('qnn.hello')\n"
        "print(process._folder.path, process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder, pid = child.stdout.readline().split()
    child.kill()  # no chance to tidy up: the process for native work sees its pipe close
    child.wait()
    child.stdin.close()
    child.stdout.close()
    eventually(lambda: not Path(folder).exists() and not is_running(int(pid)))


def is_running(pid: int) -> bool:
    """A process that nobody has waited for yet is a zombie, not a running one."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_images_in_a_file_are_not_copied(tmp_path):
    images = smooth_images(6, 16)
    in_a_file = samples(images, tmp_path).images
    found = as_file(in_a_file[2:4], tmp_path)
    assert found["file"] == str(tmp_path / "images.npy")
    np.testing.assert_array_equal(mapped(found), images[2:4])
    every_other = as_file(in_a_file[::2], tmp_path)
    assert every_other["file"] == str(tmp_path / "calibration.bin")
    np.testing.assert_array_equal(mapped(every_other), images[::2])
    tokens = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(mapped(as_file(tokens, tmp_path)), tokens)


def test_an_unknown_chip_lists_those_known():
    with pytest.raises(BadInput, match=r"did you mean 'snapdragon-888'.*qcs8550"):
        find_chip("snapdragon-898")
    assert find_chip("Snapdragon 8 Gen 2").arch == 73


def test_closing_in_the_middle_of_a_call_ends_it():
    """A runner whose grace period is over does not wait for a compiler, nor blames the model."""
    process = WorkerProcess()
    process.call("qnn.hello")
    failures = []

    def call() -> None:
        try:
            process.call("qnn.wait", seconds=600, limit_s=600)
        except WorkerFailed as error:
            failures.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    eventually(process._lock.locked)
    process.close()
    thread.join(60)
    assert len(failures) == 1
    with pytest.raises(WorkerFailed, match="it was closed"):
        process.call("qnn.hello")
    assert process.pid is None, "a closed one is not started again"
