"""Images of examples as tests of segmentation leave them: faces, drawn, with answers of two models
that are nearly right."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgeloop.tasks import FACE_CLASSES, Illustration, write_examples
from edgeloop.testing.faces import make_faces

Array = NDArray[np.uint8]
SIZE, COUNT = 64, 4


@cache
def faces(count: int = COUNT, size: int = SIZE) -> tuple[Array, Array]:
    """Images and labels; a corner of the last one does not count."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_faces(root / "faces", count, size, seed=11)
        names = sorted(path for path in (root / "faces").glob("*.png") if "_seg" not in path.name)
        images = np.stack([np.asarray(Image.open(name).convert("RGB")) for name in names])
        seg = [np.asarray(Image.open(p.with_name(f"{p.stem}_seg.png"))) for p in names]
    labels = np.stack(seg).astype(np.uint8)
    labels[-1, : size // 4, : size // 3] = 255
    return images, labels


def nearly(labels: Array, seed: int, shift: int, spots: int) -> Array:
    """Moved by a pixel here and there, with spots of a class from elsewhere."""
    dice = np.random.default_rng(seed)
    found = np.where(labels == 255, 0, labels).astype(np.uint8)
    found = np.roll(found, shift, axis=2)
    side = labels.shape[1]
    for answers in found:
        for _ in range(spots):
            y, x = dice.integers(0, side - side // 8, 2)
            answers[y : y + side // 12, x : x + side // 9] = answers[side // 2, side // 2]
    return found


@cache
def _examples(stage: str, count: int, size: int, device: str) -> tuple[tuple[str, bytes], ...]:
    images, labels = faces(count, size)
    answers = nearly(labels, 1, 1, 1)
    if stage in ("f1_1k", "f1_10k"):
        answers = np.where(nearly(labels, 2, 0, 2) != answers, nearly(labels, 3, 1, 4), answers)
    return written(stage, images, labels, answers, FACE_CLASSES, device)


def examples(
    stage: str, count: int = COUNT, size: int = SIZE, device: str = "htp:snapdragon-888"
) -> dict[str, bytes]:
    """The files of a stage."""
    return dict(_examples(stage, count, size, "host" if stage == "f1_onnx" else device))


def written(
    stage: str, images: Array, labels: Array, answers: Array, classes: Sequence[str], device: str
) -> tuple[tuple[str, bytes], ...]:
    with tempfile.TemporaryDirectory() as folder:
        shown = Illustration(labels, answers, classes)
        files = write_examples(Path(folder), stage, images, shown, "segmentation", device)
        return tuple((name, path.read_bytes()) for name, path in files.items())
