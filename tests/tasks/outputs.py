"""Outputs of models that were never there."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgeloop.tasks.segmentation import FACE_CLASSES, Segmentation

CLASSES = len(FACE_CLASSES)


def task() -> Segmentation:
    """For what needs no dataset."""
    return Segmentation(Path("unused"), Path("unused"))


def made_up(
    seed: int, count: int = 3, side: int = 24, certainty: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    """Logits that know something of their labels, some of which are to be ignored."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, (count, side, side)).astype(np.uint8)
    logits = rng.standard_normal((count, CLASSES, side, side), dtype=np.float32)
    logits += certainty * (np.arange(CLASSES)[None, :, None, None] == labels[:, None])
    labels[rng.random(labels.shape) < 0.1] = 255
    return logits.astype(np.float32), labels
