"""F1 and PR curves of 256 × 256 × 19 logits: ours beside the straightforward NumPy way.

The reference is what one writes first: softmax of the whole tensor, argmax, and two histograms of
10⁶ bins a class. Both score the same images, taking turns; medians are compared. Logits are those
of a fair net (most pixels right and certain, some wrong) and of one that guesses.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from bench.tables import markdown
from edgeloop.tasks.segmentation import COUNTED, FACE_CLASSES, SegmentationScorer

SIDE = 256
BATCH = 8
ROUNDS = 5
BINS = 1_000_000
CLASSES = len(FACE_CLASSES)


def run() -> str:
    rows = []
    for name, certainty in (("fair", 6.0), ("guessing", 0.2)):
        logits, labels = _images(certainty)
        ours_s, reference_s = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            reference = Reference()
            for image, truth in zip(logits, labels, strict=True):
                reference.add(image, truth)
            reference_f1, reference_ap = reference.score()
            reference_s.append((time.perf_counter() - began) / BATCH)
            began = time.perf_counter()
            scorer = SegmentationScorer()
            scorer.add(logits, labels)
            score = scorer.score()
            ours_s.append((time.perf_counter() - began) / BATCH)
        ap = [score.table["AP"][name] for name in FACE_CLASSES]
        rows.append(
            (
                name,
                f"{median(reference_s) * 1e3:.0f}",
                f"{median(ours_s) * 1e3:.1f}",
                f"{median(reference_s) / median(ours_s):.0f}",
                "≥ 10",
                f"{abs(score.headline - reference_f1):.0e}",
                f"{np.abs(np.subtract(ap, reference_ap)).max():.0e}",
            )
        )
    headings = ("net", "10⁶ bins, ms an image", "ours, ms an image", "ratio", "goal")
    return markdown((*headings, "F1 differs (≤ 1e-12)", "AP differs (≤ 1e-3)"), rows)


class Reference:
    """Histograms of all images are summed, as they must be for a curve of the whole test set."""

    def __init__(self) -> None:
        self.confusion = np.zeros((CLASSES, CLASSES), np.int64)
        self.hits = np.zeros((CLASSES, BINS), np.int64)
        self.misses = np.zeros((CLASSES, BINS), np.int64)

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        kept = labels.ravel() != 255
        flat, truth = logits.reshape(CLASSES, -1)[:, kept], labels.ravel()[kept]
        power = np.exp(flat - flat.max(axis=0))
        probability = power / power.sum(axis=0)
        np.add.at(self.confusion, (truth, flat.argmax(axis=0)), 1)
        for c in range(CLASSES):
            self.hits[c] += np.histogram(probability[c][truth == c], BINS, (0, 1))[0]
            self.misses[c] += np.histogram(probability[c][truth != c], BINS, (0, 1))[0]

    def score(self) -> tuple[float, list[float]]:
        right, truth = np.diag(self.confusion), self.confusion.sum(axis=1)
        f1 = 2 * right / np.maximum(1, truth + self.confusion.sum(axis=0))
        weighed = [c for c in COUNTED if truth[c]]
        weight = np.array([1 / np.sqrt(truth[c]) for c in weighed])
        return float((weight * f1[weighed]).sum() / weight.sum()), [
            self._average_precision(c) for c in range(CLASSES)
        ]

    def _average_precision(self, c: int) -> float:
        found = np.cumsum(self.hits[c][::-1])
        given = found + np.cumsum(self.misses[c][::-1])
        recall, precision = found / max(1, found[-1]), found / np.maximum(1, given)
        return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def _images(certainty: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels in blobs, as faces have them; logits that are right more often the more certain."""
    rng = np.random.default_rng(3)
    coarse = rng.integers(0, CLASSES, (BATCH, SIDE // 16, SIDE // 16)).astype(np.uint8)
    labels = coarse.repeat(16, axis=1).repeat(16, axis=2)
    logits = rng.standard_normal((BATCH, CLASSES, SIDE, SIDE), dtype=np.float32)
    logits *= 1 + certainty / 4
    right = np.arange(CLASSES)[None, :, None, None] == labels[:, None]
    logits += right.astype(np.float32) * np.float32(certainty)
    labels[:, :4] = 255
    return logits, labels
