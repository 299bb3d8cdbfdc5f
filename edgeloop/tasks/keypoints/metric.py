"""PCK, the share of keypoints that are near enough, and COCO's AP with OKS as the overlap.

A point is right if it is not farther from the truth than a tenth of the longer side of its object's
box. OKS is the mean over the labelled keypoints of exp(−d² / 2(2σ)²A), with the area A of the
object and a spread σ for each keypoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeloop.tasks.base import Interval
from edgeloop.tasks.detection.metric import average_precisions, match, matches_type
from edgeloop.tasks.metrics import Floats, Headline, bootstrap, check_paired

# Measured by COCO, of its 17 keypoints from nose to ankles.
COCO_SIGMAS = np.array(
    (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89), np.float64
)
COCO_SIGMAS /= 1000
OTHER_SIGMA = 0.05
MOST_IN_AN_IMAGE = 20  # answers that count, as COCO has it


@dataclass(frozen=True)
class Pose:
    """What was answered about an object, and the truth, in pixels of the original image."""

    image: int
    answer: Floats  # (K, 2)
    score: float
    truth: Floats  # (K, 2)
    is_labelled: NDArray[np.bool_]
    area: float


def oks(answers: Floats, truth: Pose, sigmas: Floats) -> Floats:
    """Of answers (n, K, 2) with the truth of an object."""
    away = ((answers - truth.truth) ** 2).sum(axis=2)
    spread = 2 * (2 * sigmas) ** 2 * (truth.area + np.spacing(1))
    alike = np.exp(-away / spread)[:, truth.is_labelled]
    similarity: Floats = alike.mean(axis=1)
    return similarity


def oks_precision(poses: Sequence[Pose], sigmas: Floats) -> Floats:
    """AP at each threshold."""
    by_image: dict[int, list[Pose]] = {}
    for pose in poses:
        by_image.setdefault(pose.image, []).append(pose)
    matches = np.zeros(len(by_image), matches_type(1, MOST_IN_AN_IMAGE))
    matches["class"] = -1
    for row, own in zip(matches, by_image.values(), strict=True):
        order = np.argsort([-pose.score for pose in own], kind="stable")[:MOST_IN_AN_IMAGE]
        answers = np.stack([own[place].answer for place in order])
        overlaps = np.stack([oks(answers, pose, sigmas) for pose in own], axis=1)
        hit, _ = match(overlaps, np.zeros(len(own), np.bool_))
        row["truth"] = len(own)
        row["class"][: len(order)] = 0
        row["score"][: len(order)] = [own[place].score for place in order]
        row["hit"][: len(order)] = hit
    ((precision, _),) = average_precisions(matches, np.ones((1, len(matches))))
    levels: Floats = precision[0]
    return levels


def pck_interval(counts: NDArray[np.int64]) -> Interval:
    return bootstrap(len(counts), _share(counts))


def pck_difference(first: NDArray[np.int64], second: NDArray[np.int64]) -> Interval:
    check_paired(first, second)
    ours, theirs = _share(first), _share(second)
    return bootstrap(len(first), lambda weights: ours(weights) - theirs(weights))


def _share(counts: NDArray[np.int64]) -> Headline:
    """`counts` (n, 2): how many points of a crop are right, of how many."""
    right, labelled = counts.astype(np.float64).T

    def value(weights: Floats) -> Floats:
        share: Floats = (weights @ right) / np.maximum(weights @ labelled, 1)
        return share

    return value
