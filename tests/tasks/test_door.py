"""Tasks are opened by name; those of others by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from edgeloop import tasks
from edgeloop.errors import BadInput
from edgeloop.tasks import open_task, task_names
from edgeloop.tasks.segmentation import FACE_CLASSES, Segmentation

BUILT_IN = (
    *("classification", "depth", "detection", "keypoints", "segmentation"),
    "super-resolution",
)


class Matting(Segmentation):
    name = "matting"


@pytest.fixture
def plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = EntryPoints([EntryPoint("matting", f"{__name__}:Matting", "edgeloop.tasks")])
    monkeypatch.setattr(tasks, "entry_points", ours.select)


def test_built_in_tasks_open_without_touching_the_dataset(tmp_path: Path):
    for name in BUILT_IN:
        assert open_task(name, tmp_path / "nowhere", tmp_path / "cache").name == name
    assert list(tmp_path.iterdir()) == []


def test_the_classes_of_faces_are_in_order():
    assert len(FACE_CLASSES) == 19
    assert (FACE_CLASSES[0], FACE_CLASSES[3], FACE_CLASSES[18]) == (
        "background",
        "right_eye",
        "facewear",
    )


def test_tasks_of_others_are_found_by_entry_point(plugged_in: None, tmp_path: Path):
    assert open_task("matting", tmp_path, tmp_path / "cache").name == "matting"
    assert {"matting", *BUILT_IN} <= set(task_names())


def test_an_unknown_name_gets_a_suggestion(plugged_in: None, tmp_path: Path):
    with pytest.raises(BadInput, match=r"unknown task 'segmentaton': did you mean 'segmentation'"):
        open_task("segmentaton", tmp_path, tmp_path)
    with pytest.raises(BadInput, match="there are classification, depth, detection"):
        open_task("xyz", tmp_path, tmp_path)
