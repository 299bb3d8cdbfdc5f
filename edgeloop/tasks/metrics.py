"""The formulas: IoU, F1, average precision, their overall values, and how sure we are of them.

IoU = TP / max(1, G + P − TP) and F1 = 2 TP / max(1, G + P), with G the truth and P the answers of a
class, summed over all images. Overall = Σ w·m / Σ w with w = 1/√G: rare classes count more than
their pixels, and a class without truth counts nothing. See docs/reference/tasks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.tasks.base import Interval
from edgeloop.tasks.tally import Counts, Histograms

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
Headline = Callable[[Floats], Floats]

RESAMPLES = 1000
SEED = 20_261_115
_AT_ONCE = 4_000_000  # weights of resamples in memory at a time


@dataclass(frozen=True)
class ClassScores:
    """A value a class; leading dimensions, where there are any, are resamples."""

    iou: Floats
    f1: Floats
    truth: Floats


def class_scores(hits: Floats, truth: Floats, answers: Floats) -> ClassScores:
    """From TP, G and P, each (…, classes)."""
    both = truth + answers
    return ClassScores(
        iou=hits / np.maximum(1, both - hits), f1=2 * hits / np.maximum(1, both), truth=truth
    )


def scores_of(confusion: Counts) -> ClassScores:
    hits, truth, answers = margins(confusion)
    return class_scores(hits, truth, answers)


def margins(confusion: Counts) -> tuple[Floats, Floats, Floats]:
    """TP, G and P of confusion matrices (…, truth, answer)."""
    hits = np.diagonal(confusion, axis1=-2, axis2=-1).astype(np.float64)
    truth, answers = confusion.sum(axis=-1), confusion.sum(axis=-2)
    return hits, truth.astype(np.float64), answers.astype(np.float64)


def rarity_weighted(values: Floats, truth: Floats, counted: Sequence[int]) -> Floats:
    """The overall value of segmentation: w = 1/√(truth pixels) over the counted classes."""
    chosen = list(counted)
    truth = truth[..., chosen]
    weights = np.where(truth > 0, 1 / np.sqrt(np.maximum(1, truth)), 0.0)
    return _weighted(values[..., chosen], weights)


def macro(values: Floats, truth: Floats) -> Floats:
    """The overall value of classification: the plain mean over the classes that have truth."""
    return _weighted(values, (truth > 0).astype(np.float64))


def curve_of(seen: Counts, hits: Counts) -> Curve:
    """(recall, precision) from the most certain bin down; bins without pixels are left out."""
    used = np.flatnonzero(seen)[::-1]
    found = np.cumsum(hits[used])
    recall = found / max(1, int(hits.sum()))
    return recall, found / np.cumsum(seen[used])


def average_precision(curve: Curve) -> float:
    """The step sum Σ (Rᵢ − Rᵢ₋₁) · Pᵢ."""
    recall, precision = curve
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def curves_of(histograms: Histograms) -> list[Curve]:
    return [curve_of(*pair) for pair in zip(histograms.seen, histograms.hits, strict=True)]


def bootstrap(images: int, headline: Headline, seed: int = SEED) -> Interval:
    """95 % of what the headline would be on other test sets like this one.

    `headline` maps weights (resamples, images), how often each image was drawn, to values
    (resamples). A paired difference is the same with a headline that subtracts two: both models
    see the same drawn images, so what is hard about an image cancels out.
    """
    if images < 1:
        raise BadInput(reason="There is no scored image to make an interval of")
    value = float(headline(np.ones((1, images)))[0])
    drawn = np.concatenate([headline(weights) for weights in _resamples(images, seed)])
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Interval(value, float(low), float(high))


def check_paired(first: Counts, second: Counts) -> None:
    if first.shape != second.shape:
        raise BadInput(
            reason=f"A paired difference needs the same images twice: here are {len(first)} and "
            f"{len(second)}. Score both models on the same test set"
        )


def _resamples(images: int, seed: int) -> Iterator[Floats]:
    rng = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // images)
    for start in range(0, RESAMPLES, step):
        rows = min(step, RESAMPLES - start)
        drawn = rng.integers(0, images, (rows, images))
        drawn += np.arange(0, rows * images, images)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * images)
        yield counts.reshape(rows, images).astype(np.float64)


def _weighted(values: Floats, weights: Floats) -> Floats:
    total = weights.sum(axis=-1)
    result: Floats = (weights * values).sum(axis=-1) / np.where(total > 0, total, 1.0)
    return result
