"""Datasets from strangers, read as the tasks read them, each in a process of its own."""

from __future__ import annotations

import os
import resource
import traceback
from pathlib import Path

import pytest

import edgeloop.tasks.depth
import edgeloop.tasks.detection  # noqa: F401  before a process is forked for each input
from edgeloop.errors import EdgeloopError
from edgeloop.graph.info import GraphInfo, TensorInfo
from edgeloop.tasks import open_task
from edgeloop.tasks.tensors import given_inputs
from tests.hostile import datasets
from tests.hostile.harness import CPU_S, PEAK_MB

pytestmark = pytest.mark.slow  # a process for every input

INPUTS = [(task, name) for task, inputs in datasets.FAMILIES.items() for name in inputs]


def read(task: str, folder: Path, cache: Path) -> None:
    if task == "tensors":
        tensor = TensorInfo("x", (1, 4), "float32")
        given_inputs(folder, GraphInfo((tensor,), (tensor,), 0, 0), 8)
        return
    opened = open_task(task, folder, cache)
    opened.calibration(8, 8, 4)
    opened.test(8, 8, 4)


def apart(task: str, folder: Path, cache: Path, said: Path) -> tuple[int, float, float]:
    """Exit code, CPU seconds and megabytes beyond what this process has already."""
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    child = os.fork()
    if child == 0:
        code = 3
        try:
            read(task, folder, cache)
            code = 0
        except EdgeloopError as error:
            said.write_text(str(error))
            code = 1
        except BaseException:
            said.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024 - before_mb


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("task", "name"), INPUTS)
def test_a_hostile_dataset_is_refused_within_bounds(
    tmp_path: Path, task: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = tmp_path / "data", tmp_path / "said"
    folder.mkdir()
    datasets.FAMILIES[task][name](folder)
    monkeypatch.chdir(tmp_path)
    code, cpu_s, more_mb = apart(task, folder, tmp_path / "cache", said)
    assert code == 1 or (code == 0 and name in datasets.ODD), said.read_text()
    assert cpu_s < CPU_S and more_mb < PEAK_MB - 150
    assert not list(tmp_path.rglob("owned"))
    if code:
        assert 20 < len(said.read_text()) < 100_000
