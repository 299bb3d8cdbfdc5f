"""What a runner does while it has nothing to do."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edgeloop.runner import coordinator as coordinator_module
from edgeloop.runner.coordinator import Coordinator, IdleWork
from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.runner.presence import RunnerEvent
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace


def run_idle(folder: Path, options: RunnerOptions, calls: list[str]) -> list[RunnerEvent]:
    reports: list[RunnerEvent] = []

    def on_idle() -> None:
        calls.append(threading.current_thread().name)
        raise ValueError("the store is upside down")

    with Workspace(Settings.load(folder, {"HOME": str(folder)})) as workspace:
        run(workspace, options, reports.append, on_idle)
    return reports


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "IDLE_S", 0.05)


def test_idle_work_is_done_beside_the_runner_and_its_errors_do_not_end_it(tmp_path: Path) -> None:
    calls: list[str] = []
    reports = run_idle(tmp_path, RunnerOptions(idle_s=0.5, idle_work_s=0), calls)
    assert len(calls) >= 2
    assert set(calls) == {"idle-work"}
    said = [report.text for report in reports if "upside down" in report.text]
    assert said == ["the store is upside down"], "said once in a row"


def test_a_drain_ends_instead(tmp_path: Path) -> None:
    calls: list[str] = []
    run_idle(tmp_path, RunnerOptions(drain=True, idle_work_s=0), calls)
    assert calls == []


def test_it_is_not_done_more_often_than_the_interval_nor_twice_at_a_time() -> None:
    calls: list[int] = []
    may_end = threading.Event()

    def work() -> None:
        calls.append(1)
        may_end.wait(60)

    slow = IdleWork(work, calls.append, interval_s=0)
    coordinator = Coordinator(1, on_idle=slow.offer)
    for _ in range(3):
        coordinator.wait("a", coordinator.look("a"), drain=False)
        coordinator.tell()
    assert calls == [1], "the first one is still under way"
    may_end.set()
    slow.end(60)

    rare = IdleWork(lambda: calls.append(2), calls.append, interval_s=3_600)
    rare._due_at = 0.0
    for _ in range(3):
        rare.offer()
        rare.end(60)
    assert calls == [1, 2]
