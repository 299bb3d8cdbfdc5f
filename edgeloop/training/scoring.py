"""The quality of a model in training, on the whole validation set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeloop.tasks import Task
from edgeloop.training.data import plain

if TYPE_CHECKING:
    from torch import nn

    from edgeloop.training.data import ImageSet
    from edgeloop.training.device import Machine


@dataclass(frozen=True)
class Quality:
    """F1 by the task's own formula, and the mean IoU."""

    f1: float
    miou: float


def quality_of(
    net: nn.Module, images: ImageSet, task: Task, machine: Machine, batch: int
) -> Quality:
    """Scored by the task's scorer, like the outputs of a chip."""
    import torch

    scorer = task.scorer(curves=False)
    was_training = net.training
    net.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(images), batch):
                pixels = images.images[start : start + batch].to(machine.device)
                with machine.mixed():
                    answers = net(plain(pixels, torch.float32)).argmax(1)
                labels = images.labels[start : start + batch].cpu().numpy()
                scorer.add(answers.to(torch.int32).cpu().numpy(), labels)
    finally:
        net.train(was_training)
    score = scorer.score()
    return Quality(score.headline, mean_iou(_confusion(score.counts, len(task.classes))))


def mean_iou(confusion: NDArray[np.int64]) -> float:
    """Over the classes that occur in truth or prediction: counting absent classes as right would
    inflate the score."""
    hits = np.diagonal(confusion).astype(np.float64)
    union = confusion.sum(axis=0) + confusion.sum(axis=1) - hits
    there = union > 0
    return float((hits[there] / union[there]).mean()) if there.any() else 0.0


def _confusion(counts: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Scorers keep one matrix per image, or for classification (truth, prediction) pairs."""
    if counts.ndim == 3:
        total: NDArray[np.int64] = counts.sum(axis=0)
        return total
    pairs = np.bincount(counts[:, 0] * classes + counts[:, 1], minlength=classes * classes)
    return pairs.reshape(classes, classes).astype(np.int64)
