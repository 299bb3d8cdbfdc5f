"""CPUs that runners reserve, and turns of those that have none."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgeloop._util.system import available_cpus, usable_cpus
from edgeloop.errors import BadInput
from edgeloop.runner import resources as resources_module
from edgeloop.runner.resources import CpuPool, NoCpusError

STOPPED = threading.Event()
STOPPED.set()


class Pools:
    """Runners on a made machine with four CPUs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.notes: list[str] = []

    def reserve(self, held: ExitStack, count: int, stopping: threading.Event) -> CpuPool:
        pool = CpuPool(self._folder, may_bind=True)
        held.enter_context(pool.reserve(count, stopping, self.notes.append))
        return pool


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What this process would have been bound to, one after the other."""
    asked: list[list[int]] = []
    monkeypatch.setenv("EDGELOOP_CPUS", "")  # put back afterwards: runners here share a process
    monkeypatch.setattr(resources_module, "usable_cpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(resources_module, "bind_to_cpus", lambda cpus: asked.append(list(cpus)))
    return asked


def test_each_runner_gets_cpus_of_its_own_and_gives_them_back(
    tmp_path: Path, bound: list[list[int]]
) -> None:
    pools = Pools(tmp_path)
    with ExitStack() as first, ExitStack() as second:
        pools.reserve(first, 1, STOPPED)
        pools.reserve(second, 2, STOPPED)
        assert bound == [[0], [1, 2]]
        assert available_cpus() <= 2, "thread counts follow"
        with ExitStack() as third, pytest.raises(NoCpusError):
            pools.reserve(third, 2, STOPPED)
        first.close()
        with ExitStack() as third:
            pools.reserve(third, 2, STOPPED)
            assert bound[-1] == [0, 3]
    assert pools.notes == [
        f"Waiting for 2 of 4 CPUs: other runners have reserved them (process {os.getpid()})."
    ]


def test_more_than_there_are_is_an_error_at_once(tmp_path: Path, bound: list[list[int]]) -> None:
    with ExitStack() as held, pytest.raises(BadInput, match="--cpus 5 is more than the 4"):
        Pools(tmp_path).reserve(held, 5, threading.Event())


def test_a_waiting_runner_takes_cpus_when_they_are_free(
    tmp_path: Path, bound: list[list[int]]
) -> None:
    pools, waits = Pools(tmp_path), threading.Event()
    pools.notes = waiting_notes = _Notes(waits)
    with ExitStack() as first, ExitStack() as second:
        pools.reserve(first, 3, STOPPED)
        thread = threading.Thread(target=pools.reserve, args=(second, 2, threading.Event()))
        thread.start()
        assert waits.wait(60)
        first.close()
        thread.join(60)
        assert len(bound[-1]) == 2 and set(bound[-1]) < {0, 1, 2}, "they become free one by one"
    assert len(waiting_notes) == 1, "it is said once"


class _Notes(list[str]):
    def __init__(self, heard: threading.Event) -> None:
        self._heard = heard

    def append(self, text: str) -> None:
        super().append(text)
        self._heard.set()


def test_runners_without_cpus_quantize_one_at_a_time_on_what_is_left(
    tmp_path: Path, bound: list[list[int]]
) -> None:
    pools, one, other = Pools(tmp_path), CpuPool(tmp_path, True), CpuPool(tmp_path, True)
    with one.turn(STOPPED):
        assert bound == [], "nobody has reserved any"
        with pytest.raises(NoCpusError), other.turn(STOPPED):
            pass
        with ExitStack() as third, pytest.raises(NoCpusError):
            pools.reserve(third, 1, STOPPED)
    with ExitStack() as held:
        reserved = pools.reserve(held, 3, STOPPED)
        with reserved.turn(STOPPED), reserved.turn(STOPPED), one.turn(STOPPED):
            assert bound[-1] == [3]
        assert bound[-1] == [0, 1, 2, 3]
        pools.reserve(held, 1, STOPPED)
        with pytest.raises(NoCpusError), one.turn(STOPPED):
            pass


def test_where_cpus_cannot_be_chosen_threads_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers and outside Linux; the processes of a runner inherit the variables."""
    monkeypatch.delattr(os, "sched_setaffinity")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    monkeypatch.setattr(resources_module, "is_container", lambda: False)
    with CpuPool(tmp_path).reserve(1, STOPPED, print):
        assert available_cpus() == 1
        assert os.environ["OMP_NUM_THREADS"] == "1"
        assert os.environ["MKL_NUM_THREADS"] == "7", "somebody has chosen that"
    assert "OMP_NUM_THREADS" not in os.environ and "EDGELOOP_CPUS" not in os.environ


TREE = """
import os, sys, threading
from pathlib import Path
import onnxruntime
from edgeloop._util.system import available_cpus
from edgeloop._util.isolation import WorkerProcess
from edgeloop.platforms.batching import image_batches
from edgeloop.platforms.qnn.quantize import limited_sessions
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.runner.resources import CpuPool
from edgeloop.platforms import open_device
from edgeloop.settings import Settings
from edgeloop.tasks.base import Samples
import numpy as np

folder, net = Path(sys.argv[1]), Path(sys.argv[2])
pool = CpuPool(folder, may_bind=True)
with WorkerProcess() as early:
    early.call("qnn.hello")
    with pool.reserve(1, threading.Event(), print), QnnToolchain() as toolchain:
        info = toolchain.inspect(net)
        images = np.zeros((4, info.height, info.width, 3), np.uint8)
        samples = Samples(images, np.zeros(images.shape[:3], np.uint8), "test")
        made = toolchain.convert(net, samples, folder, "a8w8", ())
        quantized = made.files[f"{net.stem}.quant.onnx"]
        htp = open_device("htp", Settings.load(folder))
        list(htp.infer(quantized, info, "quantized", image_batches(info, images)))
        with limited_sessions():  # as the calibrator makes them
            session = onnxruntime.InferenceSession(net, onnxruntime.SessionOptions())
        for pid in (os.getpid(), early.pid, toolchain._process.pid, htp._processes.items[0].pid):
            for task in Path(f"/proc/{pid}/task").iterdir():
                print(pid, task.name, sorted(os.sched_getaffinity(int(task.name))))
        print(len(htp._processes.items), available_cpus())
        htp.close()
"""


@pytest.mark.slow
def test_the_whole_tree_of_processes_stays_on_reserved_cpus(tmp_path: Path) -> None:
    """Also a process that was there before, and the threads of ONNX Runtime, which binds its own
    to any CPU of the machine where it is left to choose."""
    net = Path(__file__).parents[1] / "data/nets/unet-w8.onnx"
    done = subprocess.run(
        [sys.executable, "-c", TREE, str(tmp_path), str(net)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    *threads, last = done.stdout.splitlines()
    assert last == "1 1", "a simulator per CPU, threads per CPU"
    places = {line.split(" ", 2)[2] for line in threads}
    assert places == {f"[{min(usable_cpus())}]"}, done.stdout
