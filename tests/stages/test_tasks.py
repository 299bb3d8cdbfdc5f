"""Every task with a model that solves it: converted, quantized and scored."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeloop.platforms import Device, open_device
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.runner.stages.accuracy import accuracy
from edgeloop.runner.stages.base import Assignment, Equipment, Sizes
from edgeloop.runner.stages.convert import convert
from edgeloop.tasks import open_task
from tests.stages.solvable import CASES, Case

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def toolchain() -> Iterator[QnnToolchain]:
    with QnnToolchain() as opened:
        yield opened


@pytest.fixture(scope="module")
def host() -> Iterator[Device]:
    device = open_device("host")
    yield device
    device.close()


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_model_that_solves_its_task_scores_well_before_and_after_quantization(
    tmp_path: Path, toolchain: QnnToolchain, host: Device, case: Case
):
    name, write_dataset, write_model, metric, least = case
    write_dataset(tmp_path / "data")
    model = write_model(tmp_path / "net.onnx")
    task = open_task(name, tmp_path / "data", tmp_path / "cache")
    equipment = Equipment(toolchain, host, task, host, sizes=Sizes(8, 8, 8))
    files = {"net.onnx": model}
    converted = convert(Assignment("m", "convert", {}, files, tmp_path), equipment)
    assert "quantized" in converted.summary
    files = {**files, **converted.files}
    for stage in ("f1_onnx", "f1_1k"):
        (folder := tmp_path / stage).mkdir()
        result = accuracy(Assignment("m", stage, {}, files, folder), equipment)
        assert least <= float(str(result.columns[stage])) <= (100 if metric == "PSNR" else 1)
        results = result.files[f"test_results_{stage}.csv"]
        with results.open(newline="") as table:
            rows = {row["metric"]: row["overall"] for row in csv.DictReader(table)}
        assert float(rows[metric]) == result.columns[stage]
        assert float(rows[f"{metric}_low"]) <= float(rows[metric]) <= float(rows[f"{metric}_high"])
        has_curves = name in ("detection", "segmentation", "classification")
        assert (f"pr_curve_{stage}.png" in result.files) == has_curves
