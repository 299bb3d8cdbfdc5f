"""A model as Microsoft Archai's face segmentation exports it, 18 classes at opset 11, through every
stage: on the host, on the simulator of a chip, and on a board."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeloop.store import Values
from tests.conftest import clean_environ
from tests.nets_archai import CLASSES, SIZE, export_archai
from tests.peers.board import VirtualBoard
from tests.runner.conftest import Farm
from tests.runner.test_walk import cpu, f1, face_test_set

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_archai(tmp_path_factory.mktemp("archai") / "model.onnx")


@pytest.fixture
def farm(tmp_path: Path, faces: Path, model: Path) -> Farm:
    made = Farm.make(tmp_path / "project", faces, clean_environ())
    made.edgeloop("upload", str(model), "--name", "net")
    return made


def row_of(farm: Farm) -> Values:
    with farm.workspace() as workspace:
        return workspace.status()[0]


def check_evaluated(farm: Farm, model: Path) -> None:
    """Labels of the class that the model does not have are pixels it gets wrong."""
    row = row_of(farm)
    assert row["status"] == "complete", row
    assert json.loads(str(row["output_shape"])) == [SIZE, SIZE, CLASSES]
    runs = 1 if row["latency_kind"] == "estimate" else 2  # an estimate is the same each time
    assert len(json.loads(str(row["total_inference_avg"]))) == runs
    images, labels = face_test_set(farm.faces, 20)
    assert (labels == CLASSES).any(), "the test set has pixels of the class it lacks"
    assert row["f1_onnx"] == pytest.approx(f1(cpu(model, images), labels))
    for stage in ("f1_1k", "f1_1k_f", "f1_10k"):
        assert row[stage] == pytest.approx(row["f1_onnx"], abs=0.1)
    farm.edgeloop("download", "net", "--output", "files")
    with next((farm.folder / "files").rglob("test_results_f1_10k.csv")).open() as file:
        heading, *_ = csv.reader(file)
    assert heading[-2:] == ["facewear", "overall"]


@pytest.mark.soak
def test_on_a_simulated_chip_and_side_by_side_with_float(farm: Farm, model: Path) -> None:
    farm.drain()
    check_evaluated(farm, model)
    arguments = ("compare", "net", "--dataset", str(farm.faces), "--images", "8", "--json")
    variants = json.loads(farm.edgeloop(*arguments).stdout)
    assert len(variants) == 4
    assert all(variant["agreement"] > 0.8 for variant in variants), variants


@pytest.mark.soak
def test_on_a_board(
    farm: Farm, model: Path, sdk: Path, boards: Callable[..., VirtualBoard]
) -> None:
    board = boards("a")
    farm.environ.update({**board.environ, "SNPE_ROOT": str(sdk)})
    board.warm_up()
    farm.drain(device=f"adb:{board.serial}")
    check_evaluated(farm, model)


def test_on_the_host(farm: Farm, model: Path) -> None:
    farm.drain(device="host")
    check_evaluated(farm, model)
