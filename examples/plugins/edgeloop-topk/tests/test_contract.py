"""The task passes the suite that Edgeloop's own tasks pass."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.tasks import Task, open_task
from edgeloop.testing.contracts.task import TaskContract

CLASSES = ("bear", "cat", "dog", "eel", "fox")


class TestTopK(TaskContract):
    @pytest.fixture
    def task(self, tmp_path: Path) -> Task:
        dice = np.random.default_rng(0)
        for number in range(40):
            path = tmp_path / "animals" / CLASSES[number % 5] / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(dice.integers(0, 256, (40, 40, 3), np.uint8)).save(path)
        return open_task("topk", tmp_path / "animals", tmp_path / "cache")

    def test_the_third_best_answer_counts_and_the_fourth_does_not(self, task: Task) -> None:
        scorer = task.scorer()
        logits = np.array([[5, 4, 3, 2, 1]] * 5, np.float32)
        scorer.add(logits, np.arange(5, dtype=np.uint16))
        assert scorer.score().headline == pytest.approx(3 / 5)
