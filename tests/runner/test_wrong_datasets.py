"""A dataset of the wrong kind ends a runner before its first claim, and marks no model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.testing.faces import make_faces
from tests.cli.running import run_main
from tests.runner.test_machine_faults import Project

COUNT = 6


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset for every task, in a folder named after it."""
    folder = tmp_path_factory.mktemp("kinds")
    make_faces(folder / "segmentation", COUNT, 32, seed=1)
    for number in range(COUNT):
        for place in ("classification/cat", "classification/dog", "detection/images", "depth"):
            _image(folder / place / f"{number}.png")
        _image(folder / f"super-resolution/{number}.png")
        depths = np.full((32, 32), 900 + number, np.uint16)
        Image.fromarray(depths).save(folder / f"depth/{number}_depth.png")
    shutil.copytree(folder / "detection", folder / "keypoints")
    _annotate(folder / "detection", {"bbox": [2, 2, 10, 10], "area": 100})
    points = {"bbox": [2, 2, 10, 10], "area": 100, "keypoints": [3, 3, 2], "num_keypoints": 1}
    _annotate(folder / "keypoints", points, keypoints=["nose"])
    return folder


def _image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((32, 32, 3), 99, np.uint8)).save(path)


def _annotate(folder: Path, fields: dict[str, object], **category: object) -> None:
    images = [{"id": n, "file_name": f"{n}.png", "width": 32, "height": 32} for n in range(COUNT)]
    things = [{"id": n + 1, "image_id": n, "category_id": 1, **fields} for n in range(COUNT)]
    categories = [{"id": 1, "name": "person", **category}]
    content = {"images": images, "categories": categories, "annotations": things}
    (folder / "annotations.json").write_text(json.dumps(content))


SENTENCES = {
    "segmentation": ("there are no images NNNNNN.png", "every image needs its labels"),
    "classification": ("one folder per class",),
    "detection": ("there are no annotations",),
    "keypoints": ("there are no annotations", "no annotation with keypoints"),
    "depth": ("there are no images with depths",),
    "super-resolution": ("super-resolution needs",),
}
ALSO_FIT = {("detection", "keypoints")}  # people have boxes, too


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project") / "own")


@pytest.mark.parametrize("task", SENTENCES)
def test_every_wrong_kind_of_dataset_ends_the_runner_before_it_takes_work(
    shared: Project,
    kinds: Path,
    task: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(shared.folder)
    for data in sorted(kinds.iterdir()):
        if data.name == task or (task, data.name) in ALSO_FIT:
            continue
        line = ("runner", "--task", task, "--dataset", data, "--drain")
        said = run_main(line, monkeypatch, capfd).sentence
        assert any(sentence in said for sentence in SENTENCES[task]), (data.name, said)
        assert str(data) in said
    assert set(shared.statuses().values()) == {"new"}
    assert shared.attempts() == {(0, 0)}


def test_a_model_that_does_not_fit_a_dataset_that_is_fine_says_why(
    kinds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path / "project")
    monkeypatch.chdir(project.folder)
    line = ("runner", "--task", "classification", "--dataset", kinds / "classification", "--drain")
    said = run_main(line, monkeypatch, capfd)
    assert said.code == 1
    with project.workspace() as workspace:
        errors = {str(row["error"]) for row in workspace.status()}
    assert all("does not fit a classification into 2 classes" in error for error in errors)
