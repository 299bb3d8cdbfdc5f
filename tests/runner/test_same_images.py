"""Scores say how many images they are of, and a test that was done already is not done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.models.columns import score_meaning
from edgeloop.models.plan import default_plan
from edgeloop.platforms import open_device
from edgeloop.runner.stages.base import Assignment, Equipment, Result, Sizes, perform
from edgeloop.tasks import open_task
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from edgeloop.view.measures import measure_of
from tests.stages.inspecting import Inspecting


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("same") / "faces"
    make_faces(folder, 12, 64, seed=3)
    return folder


@pytest.fixture
def equipment(faces: Path, tmp_path: Path) -> Equipment:
    host = open_device("host")
    task = open_task("segmentation", faces, tmp_path / "cache")
    return Equipment(Inspecting(), host, task, host)


def done(stage: str, equipment: Equipment, folder: Path, row=None, files=None) -> Result:
    target = folder / stage
    target.mkdir(parents=True)
    model = save_segmentation_model(folder / "net.onnx", 64)
    work = Assignment("m", stage, row or {}, {"net.onnx": model, **(files or {})}, target)
    return perform(work, equipment)


def test_a_stage_on_the_images_of_another_copies_its_result_and_says_so(equipment, tmp_path):
    first = done("f1_onnx", equipment, tmp_path)
    count = first.columns["f1_onnx_images"]
    assert 0 < count < 12 and f"on {count} images" in first.summary
    again = done("f1_1k_f", equipment, tmp_path, first.columns, first.files)
    assert again.summary.endswith(f"copied from f1_onnx: same {count} images")
    for what in ("", "_images", "_set"):
        assert again.columns[f"f1_1k_f{what}"] == first.columns[f"f1_onnx{what}"]
    assert {name.replace("f1_1k_f", "f1_onnx") for name in again.files} == set(first.files)
    for name, path in again.files.items():
        source = first.files[name.replace("f1_1k_f", "f1_onnx")]
        assert path != source and path.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("what", ["images", "files", "task"])
def test_another_test_is_done_by_itself(equipment, tmp_path, what):
    first = done("f1_onnx", equipment, tmp_path)
    row, files = dict(first.columns), dict(first.files)
    if what == "images":
        equipment = replace(equipment, sizes=Sizes(quick=2))
    elif what == "files":
        files.pop("test_results_f1_onnx.csv")
    else:
        row["task"] = "another"
    again = done("f1_1k_f", equipment, tmp_path, row, files)
    assert "copied" not in again.summary
    assert again.columns["f1_1k_f_images"] == (2 if what == "images" else row["f1_onnx_images"])


def test_labels_say_how_many_images_there_really_were():
    rows = [{"f1_1k": 0.8, "f1_1k_images": 120}, {"f1_1k": 0.7, "f1_1k_images": 120}]
    meaning = score_meaning(rows)
    assert meaning.heading("f1_1k") == "f1_1k (120)" and meaning.heading("f1_10k") == "f1_10k"
    measure = measure_of("f1_1k", meaning)
    assert measure.label == "F1 on the device, quantized, 120 images"
    assert measure.heading == "f1_1k (120)"
    mixed = score_meaning([*rows, {"f1_1k": 0.7, "f1_1k_images": 1000, "metric": "mAP"}])
    assert mixed.heading("f1_1k") == "mAP_1k (120–1,000)"
    whole = score_meaning([{"f1_1k": 0.7, "f1_1k_images": 1000}, {"f1_10k": 0.8}])
    assert (whole.heading("f1_1k"), whole.heading("f1_10k")) == ("f1_1k", "f1_10k")
    assert measure_of("f1_1k", whole).label == "F1 on the device, quantized, 1,000 images"
    assert {"f1_1k_images", "f1_1k_set"} <= set(default_plan()["f1_1k"].clears)
