"""bench and inspect on devices that are not the default: boards, and the eight everyday exports."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.graph.info import fitting_task
from edgeloop.graph.isolated import GraphProcess
from edgeloop.runner.bench import BenchOptions, bench_model
from edgeloop.runner.inspection import inspect_model
from tests.exports import EVERYDAY, export_everyday

pytestmark = pytest.mark.slow
TASKS = {"classifier": "classification"}


def test_a_board_is_measured_beside_an_estimate(board, sdk, small_net, monkeypatch):
    monkeypatch.setenv("SNPE_ROOT", str(sdk))
    name = f"adb:{board.serial}"
    report = bench_model(small_net.model, [name, "htp:snapdragon-888"], BenchOptions(runs=2))
    measured, estimated = report.results
    assert (measured.device, measured.kind, measured.error) == (name, "measured", "")
    assert measured.low_ms <= measured.latency_ms <= measured.high_ms
    assert (estimated.device, estimated.kind) == ("htp:snapdragon-888", "estimate")
    (answer,) = inspect_model(small_net.model, [name]).chips
    assert (answer.device, answer.answer) == (name, "unknown")


def test_every_everyday_export_has_a_task(tmp_path: Path):
    process = GraphProcess()
    for name, export in EVERYDAY.items():
        model = export_everyday(name, tmp_path, external=True)
        shapes = {"image": export.shape} if export.needs_shape else None
        found = process.summarize(model, shapes)
        assert found.problem == "" and found.info is not None, name
        assert {t.name: t.shape for t in found.info.outputs} == export.outputs
        assert fitting_task(found.info).task == TASKS.get(name, "segmentation"), name
        if export.needs_shape:
            assert "--shape image=" in process.summarize(model).problem
    process.close()
