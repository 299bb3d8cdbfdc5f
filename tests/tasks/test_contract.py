"""The built-in tasks keep the promises of every task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.tasks import Labels, Task, Tensors, open_task
from edgeloop.testing.contracts.task import TaskContract
from tests.tasks import coco, made


class TestSegmentation(TaskContract):
    @pytest.fixture
    def task(self, shared_faces: Path, tmp_path: Path) -> Task:
        return open_task("segmentation", shared_faces, tmp_path / "cache")


class TestClassification(TaskContract):
    @pytest.fixture
    def task(self, tmp_path: Path) -> Task:
        dice = np.random.default_rng(3)
        for number in range(30):
            path = tmp_path / "data" / ("cat", "dog", "owl")[number % 3] / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(dice.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
        return open_task("classification", tmp_path / "data", tmp_path / "cache")


class TestDetection(TaskContract):
    @pytest.fixture
    def task(self, tmp_path: Path) -> Task:
        root = coco.write(tmp_path / "data", coco.content())
        return open_task("detection", root, tmp_path / "cache")

    def perfect(self, task: Task, labels: Labels) -> Tensors:
        return coco.boxes_and_scores(labels, len(task.classes))


class TestDepth(TaskContract):
    @pytest.fixture
    def task(self, tmp_path: Path) -> Task:
        return open_task("depth", made.depths(tmp_path / "data"), tmp_path / "cache")

    def perfect(self, task: Task, labels: Labels) -> Tensors:
        return {"depth": np.array(labels)}


class TestSuperResolution(TaskContract):
    best = 100.0

    @pytest.fixture
    def task(self, tmp_path: Path) -> Task:
        return open_task("super-resolution", made.sharp(tmp_path / "data"), tmp_path / "cache")

    def perfect(self, task: Task, labels: Labels) -> Tensors:
        return {"image": labels.transpose(0, 3, 1, 2).astype(np.float32) / 255}


class TestKeypoints(TaskContract):
    @pytest.fixture
    def task(self, tmp_path: Path) -> Task:
        root = coco.write(tmp_path / "data", coco.poses())
        return open_task("keypoints", root, tmp_path / "cache")

    def perfect(self, task: Task, labels: Labels) -> Tensors:
        return {"points": labels[:, : len(task.classes), :2] / (self.width, self.height)}
