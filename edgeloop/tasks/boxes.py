"""Average precision as COCO defines it, from matches that are kept per image.

Detections of a class are matched to the truth of an image in the order of their scores: each takes
the truth that it overlaps most, if that is free and the overlap (IoU) reaches a threshold. There
are ten thresholds, 0.5 to 0.95. Crowds are neither found nor missed: what lies in one does not
count. AP is the mean precision at 101 recalls, mAP its mean over thresholds and classes. The
results are those of pycocotools; keypoints use the same with another overlap (OKS).

An image keeps only which of its detections matched at which threshold, as bits of a number, so AP
of any resample of the images is a matter of cumulative sums: precision is needed at the matches
alone, since between two of them it only falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.tasks.base import Interval, Score
from edgeloop.tasks.metrics import Curve, Floats, Headline, bootstrap, check_paired

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
RESAMPLES = 200  # each of them sorts out all detections
_AT_50, _AT_75 = 0, 5
_AT_ONCE = 4_000_000  # weights of detections in memory at a time
_ALMOST_ONE = 1 - 1e-10

Matches = NDArray[Any]  # one per image, see `matches_type`


@dataclass(frozen=True)
class Found:
    """Detections of one image, best first."""

    boxes: Floats  # (n, 4): left, top, right, bottom
    scores: Floats
    classes: NDArray[np.intp]


@dataclass(frozen=True)
class Truth:
    """The objects of one image."""

    boxes: Floats
    classes: NDArray[np.intp]
    is_crowd: NDArray[np.bool_]


def matches_type(classes: int, most: int) -> np.dtype[Any]:
    """`truth` counts the objects of each class; the rest is about detections, `most` of them, class
    −1 where there are fewer. Bit t of `hit` and `ignored` is for the threshold t."""
    return np.dtype(
        [
            ("truth", np.int32, (classes,)),
            ("class", np.int16, (most,)),
            ("score", np.float32, (most,)),
            ("hit", np.uint16, (most,)),
            ("ignored", np.uint16, (most,)),
        ]
    )


def matched(found: Found, truth: Truth, kind: np.dtype[Any]) -> Matches:
    """What remains of an image: an array of one element."""
    result = np.zeros(1, kind)
    count = min(len(found.scores), result["class"].shape[1])
    result["class"] = -1
    result["class"][0, :count] = found.classes[:count]
    result["score"][0, :count] = found.scores[:count]
    counted = truth.classes[~truth.is_crowd]
    result["truth"][0] = np.bincount(counted, minlength=result["truth"].shape[1])
    for label in np.unique(truth.classes):
        own = np.flatnonzero(found.classes[:count] == label)
        true = truth.classes == label
        overlaps = ious(found.boxes[own], truth.boxes[true], truth.is_crowd[true])
        result["hit"][0, own], result["ignored"][0, own] = match(overlaps, truth.is_crowd[true])
    return result


def ious(boxes: Floats, others: Floats, is_crowd: NDArray[np.bool_] | None = None) -> Floats:
    """(boxes, others). A box in a crowd overlaps it by the part of the box that lies inside."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    own, other = _areas(boxes)[:, None], _areas(others)[None, :]
    union = own + other - shared
    if is_crowd is not None:
        union = np.where(is_crowd[None, :], own, union)
    result: Floats = shared / np.where(union > 0, union, 1)
    return result


def _areas(boxes: Floats) -> Floats:
    areas: Floats = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1)
    return areas


def match(
    overlaps: Floats, is_ignored: NDArray[np.bool_]
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Bits of `hit` and `ignored` for each detection, in the order of their scores."""
    count, truths = overlaps.shape
    hit, ignored = np.zeros(count, np.uint16), np.zeros(count, np.uint16)
    if not truths:
        return hit, ignored
    levels = np.minimum(THRESHOLDS, _ALMOST_ONE)
    is_taken = np.zeros((len(levels), truths), np.bool_)
    bits = np.left_shift(1, np.arange(len(levels))).astype(np.uint16)
    for number in np.flatnonzero(overlaps.max(axis=1) >= levels[0]):
        fits = overlaps[number] >= levels[:, None]
        for group in (~is_ignored, is_ignored):  # what is ignored is for those that find nothing
            free = fits & group & (~is_taken | is_ignored)
            found = free.any(axis=1)
            if not found.any():
                continue
            # Of equal overlaps the last one counts, as in pycocotools.
            values = np.where(free, overlaps[number], -1.0)
            best = truths - 1 - values[:, ::-1].argmax(axis=1)
            is_taken[found, best[found]] = True
            (ignored if group is is_ignored else hit)[number] |= bits[found].sum(dtype=np.uint16)
            fits = fits & ~found[:, None]
    return hit, ignored


@dataclass(frozen=True)
class _OfClass:
    """The detections of a class in all images, best first."""

    image: NDArray[np.intp]
    hit: NDArray[np.bool_]  # (detections, thresholds)
    ignored: NDArray[np.bool_]


def average_precisions(matches: Matches, weights: Floats) -> Iterator[tuple[Floats, Floats]]:
    """For each class: AP (resamples, thresholds), and how many objects there are (resamples).
    `weights` (resamples, images) say how often each image counts."""
    for label in range(matches["truth"].shape[1]):
        truth = weights @ matches["truth"][:, label].astype(np.float64)
        yield _class_precision(_of_class(matches, label), weights, truth), truth


def _of_class(matches: Matches, label: int) -> _OfClass:
    image, place = np.nonzero(matches["class"] == label)
    order = np.argsort(-matches["score"][image, place], kind="stable")
    image, place = image[order], place[order]
    bits = np.arange(len(THRESHOLDS))

    def flags(name: str) -> NDArray[np.bool_]:
        return (matches[name][image, place][:, None] >> bits & 1).astype(np.bool_)

    return _OfClass(image, flags("hit"), flags("ignored"))


def _class_precision(own: _OfClass, weights: Floats, truth: Floats) -> Floats:
    rows = max(1, _AT_ONCE // max(1, len(own.image)))
    result = np.zeros((len(weights), len(THRESHOLDS)))
    for start in range(0, len(weights), rows):
        part = slice(start, start + rows)
        counted = weights[part][:, own.image]
        total = None if own.ignored.any() else counted.cumsum(axis=1)
        for level in range(len(THRESHOLDS)):
            hits = np.flatnonzero(own.hit[:, level])
            if not hits.size:
                continue
            if total is not None:
                seen = total[:, hits]
            else:
                seen = (counted * ~own.ignored[:, level]).cumsum(axis=1)[:, hits]
            right = counted[:, hits].cumsum(axis=1)
            result[part, level] = _area(right, seen, truth[part])
    return result


def _area(right: Floats, seen: Floats, truth: Floats) -> Floats:
    """The mean of the highest precision at or beyond each recall."""
    precision = _from_the_right(right / np.maximum(seen, 1))
    recall = right / np.maximum(truth, 1)[:, None]
    reached = np.searchsorted(RECALLS, recall, side="right")
    steps = np.diff(reached, prepend=0, axis=1)
    area: Floats = (steps * precision).sum(axis=1) / len(RECALLS)
    return area


def _from_the_right(precision: Floats) -> Floats:
    highest: Floats = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    return highest


def mean_precision(matches: Matches) -> Headline:
    """mAP as a function of how often each image counts: the mean over the classes that occur."""

    def value(weights: Floats) -> Floats:
        total, classes = np.zeros(len(weights)), np.zeros(len(weights))
        for precision, truth in average_precisions(matches, weights):
            total += np.where(truth > 0, precision.mean(axis=1), 0.0)
            classes += truth > 0
        mean: Floats = total / np.maximum(classes, 1)
        return mean

    return value


def interval_of(matches: Matches) -> Interval:
    return bootstrap(len(matches), mean_precision(matches), resamples=RESAMPLES, centred=True)


def difference_of(first: Matches, second: Matches) -> Interval:
    check_paired(first, second)
    ours, theirs = mean_precision(first), mean_precision(second)
    headline = partial(_less, ours, theirs)
    return bootstrap(len(first), headline, resamples=RESAMPLES, centred=True)


def _less(first: Headline, second: Headline, weights: Floats) -> Floats:
    return first(weights) - second(weights)


def score_of(matches: Matches, classes: Sequence[str], note: str) -> Score:
    """Rows mAP, AP50 and AP75; classes without an object have no value. The curves are those at an
    IoU of 0.5."""
    rows: dict[str, dict[str, float]] = {"mAP": {}, "AP50": {}, "AP75": {}}
    curves: dict[str, Curve] = {}
    every = np.ones((1, len(matches)))
    results = zip(classes, average_precisions(matches, every), strict=True)
    for label, (name, (precision, truth)) in enumerate(results):
        if not truth[0]:
            continue
        rows["mAP"][name] = float(precision[0].mean())
        rows["AP50"][name] = float(precision[0, _AT_50])
        rows["AP75"][name] = float(precision[0, _AT_75])
        curves[name] = _curve(_of_class(matches, label), float(truth[0]))
    for row in rows.values():
        row["overall"] = float(np.mean(list(row.values()))) if row else 0.0
    return Score(rows["mAP"]["overall"], rows, matches, curves, curve_row="AP50", note=note)


def _curve(own: _OfClass, truth: float) -> Curve:
    """Precision at the 101 recalls, where they are reached."""
    counts = ~own.ignored[:, _AT_50]
    hits = own.hit[counts, _AT_50]
    right = hits.cumsum().astype(np.float64)
    precision = _from_the_right(right / np.arange(1, len(right) + 1))
    reached = np.searchsorted(right / truth, RECALLS)
    there = reached < len(right)
    return RECALLS[there], precision[reached[there]]
