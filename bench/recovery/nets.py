"""A small MobileNet-like segmentation model as a space: `edgeloop arch train` takes it by its file.

Depthwise layers between pointwise ones are where quantization loses most: a depthwise kernel has
nine weights per channel and nothing to average their errors over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def build(trial: Any, shape: Any, classes: int) -> nn.Module:
    width = trial.suggest_categorical("width", [12, 16, 24])
    return MobileUnet(width, classes)


class MobileUnet(nn.Module):
    """Two levels down, two up, with skips that are added."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = _layer(3, width, 3, 2)
        self.first = _inverted(width, width, 1)
        self.down = _inverted(width, 2 * width, 2)
        self.second = _inverted(2 * width, 2 * width, 1)
        self.lower = _inverted(2 * width, 4 * width, 2)
        self.third = _inverted(4 * width, 4 * width, 1)
        self.up = _inverted(4 * width, 2 * width, 1)
        self.top = _inverted(2 * width, width, 1)
        self.head = nn.Conv2d(width, classes, 1)
        self.twice = nn.Upsample(scale_factor=2, mode="nearest")
        self.last = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, x: Tensor) -> Tensor:
        high = self.stem(x)
        high = high + self.first(high)
        middle = self.down(high)
        middle = middle + self.second(middle)
        low = self.lower(middle)
        low = low + self.third(low)
        middle = middle + self.twice(self.up(low))
        high = high + self.twice(self.top(middle))
        logits: Tensor = self.last(self.head(torch.relu(high)))
        return logits


def _inverted(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Wider, depthwise, narrower; the last convolution is linear."""
    wide = 3 * inputs
    return nn.Sequential(
        _layer(inputs, wide, 1, 1),
        _layer(wide, wide, 3, stride, groups=wide),
        nn.Conv2d(wide, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
    )


def _layer(inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())
