"""Cross-entropy weighted by class, for (n, classes, …) logits and labels of bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Σ w·(−log p) / Σ w, with the weight of each pixel looked up by its label.

    `weights` has an entry for every label there can be; labels that do not count weigh 0.
    """
    if not logits.is_cuda:
        return _plain(logits.float(), labels, weights)
    value: Tensor = _Loss.apply(logits, labels, weights)  # type: ignore[no-untyped-call]
    return value


def _plain(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    classes = logits.shape[1]
    truth = labels.to(torch.int64)
    truth = torch.where(weights[truth] > 0, truth, torch.full_like(truth, -100))
    return functional.cross_entropy(logits, truth, weights[:classes])


class _Loss(torch.autograd.Function):
    """The same on a GPU in half the bytes and without the slow kernels.

    PyTorch's own makes float32 copies of all logits, turns them channels first, and sums with a
    single block of threads. Here logits stay as they are: log-probabilities are rounded to
    bfloat16, which costs the gradient less than a percent, and sums are float32.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        classes = logits.shape[1]
        flat = logits.movedim(1, -1).reshape(-1, classes)
        truth = labels.reshape(-1, 1).to(torch.int64)
        weight = weights[truth]
        log_p = torch.log_softmax(flat, 1)
        truth = truth.clamp_(max=classes - 1)
        total = weight.sum().clamp_(min=1e-6)
        ctx.save_for_backward(log_p, truth, weight, total)
        ctx.shape = logits.shape
        return -(log_p.gather(1, truth).float() * weight).sum() / total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        log_p, truth, weight, total = ctx.saved_tensors
        ones = torch.full_like(truth, -1, dtype=log_p.dtype)
        slope = log_p.exp().scatter_add_(1, truth, ones)
        slope *= (weight * (gradient / total)).to(slope.dtype)
        count, classes, *sides = ctx.shape
        return slope.view(count, *sides, classes).movedim(-1, 1), None, None
