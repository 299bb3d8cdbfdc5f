"""Small nets, faces drawn once, and evaluators that are closed whatever happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgeloop.search.base import Evaluator
from edgeloop.search.nets.architecture import Architecture
from edgeloop.testing.faces import make_faces
from tests.search.program import Program

SIDE = 32

# A user's space with nets of every kind of misfortune; `what` chooses.
SPACE = """
import os
import time
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, what, width, classes):
        super().__init__()
        self.what = what
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, classes, 1),
            nn.Upsample(scale_factor=2, mode="nearest"),
        )

    def forward(self, x):
        if self.training and self.what == "huge":
            torch.empty(2**50)
        if self.training and self.what == "killed":
            os.kill(os.getpid(), 9)
        if self.training and self.what == "nan":
            return self.net(x) * float("nan")
        return self.net(x)


def build(trial, shape, classes):
    what = trial.suggest_categorical(
        "what", ["good", "huge", "killed", "nan", "crash", "endless", "large", "slow"]
    )
    width = trial.suggest_int("width", 4, 64)
    if what == "crash":
        os.abort()
    if what == "large":
        torch.empty(2**50)
    while what == "endless":
        time.sleep(0.1)
    if what == "slow":
        time.sleep(1)
    return Net(what, width, classes)
"""


def net(what: str = "good", width: int = 8) -> Architecture:
    params = {"what": what, "width": width}
    return Architecture("nets.py:build", params, (1, 3, SIDE, SIDE), 19)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the space of this test, where a search would stand."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "edgeloop.yaml").write_text("benchmark_runs: 2\nlease_seconds: 5\n")
    (folder / "nets.py").write_text(SPACE)
    return folder


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Program:
    return Program(tmp_path, monkeypatch, capfd)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Trainings take no time, here and as jobs, but do not begin before this file is removed, if
    the test writes it."""
    for where in ("local", "jobs"):
        module = f"edgeloop.search.evaluators.{where}._MODULE"
        monkeypatch.setattr(module, "tests.search.quick_trainer")
    monkeypatch.setattr("edgeloop.search.evaluators.jobs._LINGER_S", 0.5)
    monkeypatch.setattr("edgeloop.search.evaluators.threads.LONGEST_PAUSE_S", 0.3)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("QUICK_WAIT", str(tmp_path / "wait"))
    return tmp_path / "wait"


@pytest.fixture(scope="session")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "faces"
    make_faces(folder, 80, SIDE, seed=5)
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def closing() -> Iterator[Callable[[Evaluator], Evaluator]]:
    with ExitStack() as stack:

        def close_later(evaluator: Evaluator) -> Evaluator:
            stack.callback(evaluator.close)
            return evaluator

        yield close_later


@pytest.fixture
def good() -> list[Architecture]:
    return [net(width=8), net(width=16)]


@pytest.fixture
def bad() -> Architecture:
    """For evaluators that train."""
    return net("nan")


@pytest.fixture
def processes() -> Callable[[], set[int]]:
    """The processes below this one."""
    return lambda: below(os.getpid())


@pytest.fixture
def files_of() -> Callable[[Architecture], dict[str, Path]]:
    return lambda arch: {}


def below(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
    found, fresh = set(), {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found
