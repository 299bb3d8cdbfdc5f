"""Latency needs no dataset, and what was calibrated without one is never scored by mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.models.runners import Registry, RunnerDevice, RunnerEntry
from edgeloop.store import Values
from edgeloop.testing.models import save_segmentation_model
from tests.conftest import clean_environ
from tests.graph import odd_models
from tests.runner.conftest import NETS, SIZES, Farm

pytestmark = pytest.mark.slow

SCORES = ("f1_1k", "f1_10k")


@pytest.fixture
def farm(tmp_path: Path, faces: Path) -> Farm:
    made = Farm.make(tmp_path / "project", faces, clean_environ())
    odd = save_segmentation_model(tmp_path / "odd.onnx", classes=7)  # no task here has seven
    made.edgeloop("upload", str(odd), "--name", "odd", "--benchmark-only")
    made.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "full")
    return made


def rows(farm: Farm) -> dict[str, Values]:
    with farm.workspace() as workspace:
        return {str(row["name"]): row for row in workspace.status()}


def test_a_runner_without_a_dataset_measures_latency_and_says_what_it_was_calibrated_on(
    farm: Farm,
) -> None:
    alone = ("runner", "--device", "host", "--drain", *SIZES)
    with farm.workspace() as workspace:
        scoring = RunnerEntry("other|1", "other", workspace.experiment, task="segmentation")
        Registry(workspace.store).write(scoring)
    left = farm.edgeloop(*alone, check=False)
    assert left.returncode == 1, "that runner does not convert either"
    assert "left: other scores models with a dataset that this machine does not have" in left.stdout
    found = rows(farm)
    assert (found["odd"]["status"], found["odd"]["calibration"]) == ("complete", "random")
    assert "random images" in str(found["odd"]["notes"])
    assert "quantized" not in found["full"], "another runner has a dataset, and will score it"

    with farm.workspace() as workspace:
        able = RunnerDevice(can=("quantize", "onnx"))
        Registry(workspace.store).write(replace(scoring, devices=(able,)))
    farm.edgeloop(*alone)
    assert "quantized" not in rows(farm)["full"], "it converts, too: this is left to it"

    done = farm.edgeloop(*alone, "--benchmark-only")
    assert "latency only, calibrated on random inputs" in done.stdout
    found = rows(farm)
    assert "mean" in found["full"]
    assert not set(found["full"]) & {"f1_onnx", *SCORES}

    farm.drain(device="host")
    found = rows(farm)
    assert {found["full"][score] for score in SCORES} == {"n/a"}
    assert float(found["full"]["f1_onnx"]) > 0.3, "the float model needs no calibration"
    report = farm.folder / "report.html"
    farm.edgeloop("report", "-o", str(report))
    assert "random images" in report.read_text()

    farm.edgeloop("reset", "full", "--stage", "convert")
    assert not {"calibration", "notes"} & set(rows(farm)["full"])
    farm.drain(device="host")
    found = rows(farm)
    assert found["full"]["calibration"] == "dataset"
    assert all(float(found["full"][score]) > 0.3 for score in SCORES)


def test_models_are_calibrated_on_given_images(farm: Farm) -> None:
    given = ("--calibration", str(farm.faces), "--benchmark-only")
    done = farm.edgeloop("runner", "--device", "host", "--drain", *given, *SIZES)
    assert "calibrated on inputs of" in done.stdout
    assert {row["calibration"] for row in rows(farm).values()} == {"given"}
    farm.drain(device="host")
    assert all(float(rows(farm)["full"][score]) > 0.3 for score in SCORES)


def test_a_runner_leaves_to_the_cpu_what_the_chip_lacks_where_that_is_allowed(
    tmp_path: Path, faces: Path
) -> None:
    farm = Farm.make(tmp_path / "project", faces, clean_environ())
    net = odd_models.with_product(tmp_path / "net.onnx")
    farm.edgeloop("upload", str(net), "--name", "net", "--no-check", "--benchmark-only")
    drain = ("runner", "--device", "htp:qcs8550", "--drain", "--ok-if-errors", *SIZES)
    farm.edgeloop(*drain)
    assert "does not take ReduceProd (layer 'odd')" in str(rows(farm)["net"]["error"])
    farm.edgeloop("reset", "net")
    farm.edgeloop(*drain, "--allow-cpu-fallback")
    row = rows(farm)["net"]
    assert row["status"] == "complete" and float(row["mean"]) > 0
    assert "ReduceProd 'odd' run on the CPU" in str(row["notes"])


def test_a_runner_that_asks_for_a_dataset_names_one_that_would_be_used(farm: Farm) -> None:
    bench = ("runner", "--device", "host", "--no-quantize", "--benchmark-only", "--drain")
    said = farm.edgeloop(*bench, check=False).stdout
    assert "Latency only: this runner needs no dataset." in said
    farm.edgeloop("experiment", "set", "--dataset", "random")
    said = farm.edgeloop("runner", "--once", "--subset", "none", *SIZES, check=False).stdout
    assert "random inputs and compared with the float model; the experiment asks for that" in said
    assert "--dataset FOLDER" not in said
