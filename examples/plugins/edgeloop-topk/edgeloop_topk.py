"""A task: images in a folder per class, and whether the right class is among the best three."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgeloop.errors import BadInput
from edgeloop.tasks import Interval, Labels, Output, Samples, Score

K = 3
Counts = NDArray[np.int64]


class TopK:
    """Half of the images, chosen by their names, are for calibration; the others test."""

    name = "topk"

    def __init__(self, dataset: Path, cache: Path) -> None:
        self._dataset = dataset
        self._cache = cache

    @cached_property
    def classes(self) -> Sequence[str]:
        return sorted(path.name for path in self._dataset.iterdir() if path.is_dir())

    def calibration(self, height: int, width: int, count: int) -> Samples:
        return self._samples(self._files[: len(self._files) // 2][:count], height, width)

    def test(self, height: int, width: int, count: int) -> Samples:
        return self._samples(self._files[len(self._files) // 2 :][-count:], height, width)

    def scorer(self, curves: bool = True) -> TopKScorer:
        return TopKScorer(len(self.classes))

    def check_output(self, shape: Sequence[int]) -> None:
        if len(shape) != 2 or shape[1] != len(self.classes):
            reason = f"the output {list(shape)} does not fit topk: [n, {len(self.classes)}] is due"
            raise BadInput(reason=reason)

    def interval(self, counts: Counts) -> Interval:
        return _bootstrap(counts)

    def difference(self, first: Counts, second: Counts) -> Interval:
        return _bootstrap(first - second)

    @cached_property
    def _files(self) -> list[Path]:
        files = self._dataset.glob("*/*.png")
        return sorted(files, key=lambda path: sha256(path.name.encode()).digest())

    def _samples(self, files: list[Path], height: int, width: int) -> Samples:
        """Resized once; the file in the cache is mapped, not read."""
        content = sha256(f"{height}x{width}".encode())
        for path in files:
            content.update(path.read_bytes())
        prepared = self._cache / f"topk-{content.hexdigest()}.npy"
        if not prepared.exists():
            images = [Image.open(path).convert("RGB").resize((width, height)) for path in files]
            prepared.parent.mkdir(parents=True, exist_ok=True)
            part = prepared.with_suffix(".part.npy")
            np.save(part, np.stack([np.asarray(image) for image in images]))
            part.replace(prepared)
        labels = np.array([self.classes.index(path.parent.name) for path in files], np.uint16)
        return Samples(np.load(prepared, mmap_mode="r"), labels, content.hexdigest())


class TopKScorer:
    """Keeps one number per image: 1 for a hit."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._hits: list[int] = []

    def add(self, outputs: Output, labels: Labels) -> None:
        if outputs.shape != (len(labels), self._classes):
            raise BadInput(reason=f"an output {list(outputs.shape)} is not [n, {self._classes}]")
        best = np.argsort(-outputs, axis=1, kind="stable")[:, :K]
        self._hits += (best == labels[:, None]).any(axis=1).astype(int).tolist()

    def score(self) -> Score:
        if not self._hits:
            raise BadInput(reason="no image was scored: the test set is empty")
        share = float(np.mean(self._hits))
        return Score(share, {f"top{K}": {"overall": share}}, np.array(self._hits), {})


def _bootstrap(values: Counts) -> Interval:
    """The mean, with the 95 % interval over images."""
    dice = np.random.default_rng(0)
    means = dice.choice(values, (1_000, len(values))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(values.mean()), float(low), float(high))
