"""The metrics: IoU, F1, average precision, their overall values and intervals.

IoU = TP / max(1, G + P − TP) and F1 = 2 TP / max(1, G + P), with G the truth and P the predictions
of a class, summed over all images. Overall = Σ w·m / Σ w with w = 1/√G: rare classes count more
than their pixels, and a class without truth counts nothing. See docs/reference/tasks.md.

Counting must be fast, since every test image of every model goes through it: one pass over an
image's logits, in pieces that fit the cache. Each piece of pixels gives the confusion matrix and,
for curves, two histograms per class over 2,048 bins of probability: how many pixels have about that
probability, and for how many of those the class is true. Both are one `bincount`, because the class
is part of the bin's index. A PR curve needs only the sums of the histograms over images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.tasks.base import Interval, Labels, Output, Task, Tensors
from edgeloop.tasks.dataset import IGNORE

BINS = 2048
_STEP = 0.05
_CERTAIN = 1e-6
PIECE = 8192  # pixels at a time: the buffers of 19 classes stay in the second-level cache

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Histograms:
    """`seen[c, b]`: pixels given probability b of class c. `hits[c, b]`: those truly of class c."""

    seen: Counts
    hits: Counts

    @classmethod
    def empty(cls, classes: int) -> Histograms:
        return cls(np.zeros((classes, BINS), np.int64), np.zeros((classes, BINS), np.int64))

    def include(self, other: Histograms) -> None:
        np.add(self.seen, other.seen, out=self.seen)
        np.add(self.hits, other.hits, out=self.hits)


@dataclass(frozen=True)
class Tally:
    """One image. Rows of `confusion` are the truth; ignored pixels are nowhere."""

    confusion: Counts
    histograms: Histograms | None = None


def tally_logits(
    logits: Output,
    labels: Labels,
    curves: bool = True,
    ignore: int | None = IGNORE,
    classes: int | None = None,
) -> Tally:
    """Logits (classes, pixels), of any strides and float type, beside labels (pixels).

    `classes` is how many the labels have; a model that has fewer never answers the others.
    """
    model_classes, pixels = logits.shape
    classes = classes or model_classes
    confusion = np.zeros((classes, classes), np.int64)
    histograms = Histograms.empty(classes) if curves else None
    for start in range(0, pixels, PIECE):
        truth = labels[start : start + PIECE].astype(np.intp)
        piece = logits[:, start : start + PIECE].astype(np.float32, order="C")
        if model_classes < classes:
            never = np.full((classes - model_classes, len(truth)), -np.inf, np.float32)
            piece = np.concatenate((piece, never))
        is_counted = np.ones(len(truth), np.bool_) if ignore is None else truth != ignore
        if not is_counted.all():
            truth, piece = truth[is_counted], np.ascontiguousarray(piece[:, is_counted])
        if not truth.size:
            continue
        highest = _highest(piece)
        confusion += _confusion(truth, _first_equal(piece, highest), classes)
        if histograms is not None:
            _count_probabilities(piece, highest, truth, histograms)
    return Tally(confusion, histograms)


def tally_classes(answers: Output, labels: Labels, classes: int) -> Tally:
    """Class numbers (pixels), as a model with an ArgMax at its end gives them."""
    is_counted = labels != IGNORE
    truth, answer = labels[is_counted].astype(np.intp), answers[is_counted].astype(np.intp)
    if answer.size and not 0 <= answer.min() <= answer.max() < classes:
        wrong = int(answer.min() if answer.min() < 0 else answer.max())
        raise BadInput(
            reason=f"the model answered class {wrong}, but the classes are "
            f"0–{classes - 1}: does it belong to another task?"
        )
    return Tally(_confusion(truth, answer, classes))


def are_logits(scores: Output) -> bool:
    """Whether scores of one class cannot be probabilities. A quantized sigmoid may leave 0 to 1 by
    a step of its scale."""
    return bool(scores.size) and not (scores.min() >= -_STEP and scores.max() <= 1 + _STEP)


def of_two_classes(scores: Output, is_logit: bool) -> NDArray[np.float32]:
    """Logits (2, …) of a model that gives one score, of the second of two classes: their softmax
    is the sigmoid of that score."""
    second = scores.astype(np.float32)
    if not is_logit:
        share = np.clip(second, _CERTAIN, 1 - _CERTAIN)
        second = np.log(share / (1 - share))
    return np.stack([np.zeros_like(second), second])


def _highest(piece: NDArray[np.float32]) -> NDArray[np.float32]:
    highest: NDArray[np.float32] = piece.max(axis=0)
    if not np.isfinite(highest).all():
        raise BadInput(
            reason="the model's output holds NaN or infinite values, which no score can be made "
            "of: check its weights, or run it with a wider number type"
        )
    return highest


def _first_equal(piece: NDArray[np.float32], highest: NDArray[np.float32]) -> NDArray[np.intp]:
    """argmax(axis=0), ten times faster than NumPy's own: comparisons of whole rows, no copies."""
    classes = len(piece)
    rank = np.arange(classes, 0, -1, dtype=np.uint8 if classes < 256 else np.uint16)
    best = np.multiply(piece == highest, rank[:, None]).max(axis=0)
    first: NDArray[np.intp] = classes - best.astype(np.intp)
    return first


def _confusion(truth: NDArray[np.intp], answer: NDArray[np.intp], classes: int) -> Counts:
    if truth.size and truth.max() >= classes:
        raise BadInput(
            reason=f"a label is {truth.max()}, but the classes are 0–{classes - 1} "
            f"(and {IGNORE} for pixels that do not count)"
        )
    counts = np.bincount(truth * classes + answer, minlength=classes * classes)
    return counts.reshape(classes, classes)


def _count_probabilities(
    piece: NDArray[np.float32],
    highest: NDArray[np.float32],
    truth: NDArray[np.intp],
    histograms: Histograms,
) -> None:
    """Overwrites the piece with its stable softmax, scaled so that its whole part is the bin."""
    classes, pixels = piece.shape
    np.subtract(piece, highest, out=piece)
    np.exp(piece, out=piece)
    np.multiply(piece, np.float32(BINS - 1) / piece.sum(axis=0), out=piece)
    bins = piece.astype(np.intp)
    bins += np.arange(0, classes * BINS, BINS, dtype=np.intp)[:, None]
    of_truth = bins.ravel().take(truth * pixels + np.arange(pixels))
    for total, numbers in ((histograms.seen, bins.ravel()), (histograms.hits, of_truth)):
        counts = np.bincount(numbers, minlength=classes * BINS)
        np.add(total, counts.reshape(classes, BINS), out=total)


Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
Headline = Callable[[Floats], Floats]

RESAMPLES = 1000
SEED = 20_261_115
_NORMAL = 1.959964  # 97.5 % of a normal distribution lie below
_FEW_STUDENT_T = (12.706, 4.303, 3.182)
_SHARE = 1.5  # a headline up to here is a share
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
    hit_sums = np.cumsum(hits[used])
    recall = hit_sums / max(1, int(hits.sum()))
    return recall, hit_sums / np.cumsum(seen[used])


def average_precision(curve: Curve) -> float:
    """The step sum Σ (Rᵢ − Rᵢ₋₁) · Pᵢ."""
    recall, precision = curve
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def curves_of(histograms: Histograms) -> list[Curve]:
    return [curve_of(*pair) for pair in zip(histograms.seen, histograms.hits, strict=True)]


def bootstrap(
    images: int,
    headline: Headline,
    seed: int = SEED,
    resamples: int = RESAMPLES,
    centred: bool = False,
) -> Interval:
    """95 % of what the headline would be on other test sets like this one.

    `headline` maps weights (resamples, images), how often each image was drawn, to values
    (resamples). A paired difference is the same with a headline that subtracts two: both models
    see the same drawn images, so what is hard about an image cancels out.

    `centred` is for headlines that are higher on a resample than on the images themselves, such as
    those that take the best of several values: the interval then has their spread only.
    """
    if images < 1:
        raise BadInput(reason="there is no scored image to make an interval of")
    value = float(headline(np.ones((1, images)))[0])
    pieces = [headline(weights) for weights in _resamples(images, seed, resamples)]
    drawn = np.concatenate(pieces)
    if centred:
        drawn += value - drawn.mean()
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Interval(value, float(low), float(high))


def paired_interval(task: Task, first: NDArray[Any], second: NDArray[Any]) -> Interval:
    """How much better the first model is than the second on the same images, with the 95 % of what
    that would be on other images like these. Both are `Score.counts`, or `AgreementScorer.counts`.

    The bootstrap of a few images is too narrow, since their own spread is smaller than that of all
    images: it is widened as Student's t is. One image says nothing of others: its interval has no
    ends. Two models that answer alike differ by exactly 0, however few images there are.
    """
    difference = task.difference(first, second)
    images = len(first)
    if np.array_equal(first, second, equal_nan=first.dtype.kind == "f"):
        return Interval(0.0, 0.0, 0.0)
    if images == 1:
        return Interval(difference.value, -math.inf, math.inf)
    factor = student_t(images - 1) / _NORMAL * math.sqrt(images / (images - 1))
    low, high = (
        difference.value + factor * (end - difference.value)
        for end in (difference.low, difference.high)
    )
    return Interval(difference.value, low, high)


def score_unit(value: float, metric: str) -> tuple[float, str]:
    """What differences of a score are shown and limited in, and the factor to it: points, which are
    hundredths, for F1, mAP and other shares; else the metric's own unit, such as dB."""
    if abs(value) <= _SHARE:
        return 100.0, "points"
    return 1.0, "dB" if metric == "PSNR" else metric


def student_t(freedom: int) -> float:
    """The 97.5 % quantile, to within half a percent."""
    if freedom <= len(_FEW_STUDENT_T):
        return _FEW_STUDENT_T[freedom - 1]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def paired_difference(
    first: NDArray[Any], second: NDArray[Any], headline: Callable[[NDArray[Any]], Headline]
) -> Interval:
    """The headline of the first model minus that of the second, on the same images."""
    check_paired(first, second)
    ours, theirs = headline(first), headline(second)
    return bootstrap(len(first), lambda weights: ours(weights) - theirs(weights))


def check_paired(first: NDArray[Any], second: NDArray[Any]) -> None:
    if first.shape != second.shape:
        raise BadInput(
            reason=f"a paired difference needs the same images twice: here are {len(first)} and "
            f"{len(second)}. Score both models on the same test set"
        )


def _resamples(images: int, seed: int, resamples: int) -> Iterator[Floats]:
    rng = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // images)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, images, (rows, images))
        drawn += np.arange(0, rows * images, images)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * images)
        yield counts.reshape(rows, images).astype(np.float64)


def _weighted(values: Floats, weights: Floats) -> Floats:
    total = weights.sum(axis=-1)
    result: Floats = (weights * values).sum(axis=-1) / np.where(total > 0, total, 1.0)
    return result


# Tasks whose answer is an image: a map of distances, or a sharper image.
#
# Their score is the mean over the images of the test, so intervals need one value per image.


_LEAST_SIDE = 4
_MAP, _IMAGE = 3, 4  # dimensions


def mean_interval(values: Floats) -> Interval:
    """Of the first column; images without a value (NaN) do not count."""
    return bootstrap(len(values), _mean(values))


def mean_difference(first: Floats, second: Floats) -> Interval:
    return paired_difference(first, second, _mean)


def _mean(values: Floats) -> Headline:
    column = np.asarray(values, np.float64)[:, 0]
    is_known = np.isfinite(column)
    known_values = np.where(is_known, column, 0.0)

    def value(weights: Floats) -> Floats:
        mean: Floats = (weights @ known_values) / np.maximum(
            weights @ is_known.astype(np.float64), 1
        )
        return mean

    return value


def channels_of(shape: Sequence[int]) -> int:
    """Of an image (n, channels, H, W) or (n, H, W, channels), or a map (n, H, W); 0: neither."""
    sides = tuple(shape[1:])
    if len(shape) == _MAP:
        return 1 if min(sides) >= _LEAST_SIDE else 0
    if len(shape) != _IMAGE or sides[1] < _LEAST_SIDE:
        return 0
    return min(sides[0], sides[2])


def chosen(shapes: Mapping[str, Sequence[int]], channels: int, expected: str) -> str:
    """The output with so many channels: the largest, and the first of those."""
    fitting = {n: int(np.prod(s)) for n, s in shapes.items() if channels_of(s) == channels}
    if fitting:
        return max(fitting, key=lambda name: fitting[name])
    have = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    raise BadInput(reason=f"the model's output ({have}) is not {expected}")


def as_images(outputs: Tensors, channels: int, expected: str, count: int) -> Output:
    """The chosen output as (n, H, W, channels), in floats."""
    shapes = {name: array.shape for name, array in outputs.items()}
    array = outputs[chosen(shapes, channels, expected)]
    if array.ndim == _MAP:
        array = array[..., None]
    elif array.shape[-1] != channels:
        array = array.transpose(0, 2, 3, 1)
    if len(array) != count:
        raise BadInput(reason=f"{len(array)} images were answered, but {count} asked")
    if not np.isfinite(array).all():
        raise BadInput(
            reason="the model's output holds NaN or infinite values, which no score can be made "
            "of: check its weights, or run it with a wider number type"
        )
    return array.astype(np.float32)
