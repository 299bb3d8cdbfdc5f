"""FFNet: a slim ResNet and one upward branch, for pictures of streets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.latency.networks.recipe import IMAGENET, Recipe

_CLASSES = 19


class Simple(nn.Module):
    """`stem` and `widths` of the four levels, `blocks` in each after the first stem; `base` are
    the channels of the levels once they are joined, `sides` those that each gives to the head."""

    def __init__(
        self,
        stem: Sequence[int],
        widths: Sequence[int],
        blocks: Sequence[int],
        first_stride: int,
        is_small: bool,
    ) -> None:
        super().__init__()
        base = (128, 128, 128, 128) if is_small else (64, 128, 128, 256)
        sides = (128, 16, 16, 16) if is_small else (96, 96, 64, 32)
        strides = [2 if i < 2 else 1 for i in range(len(stem))]
        sources = (3, *stem)
        self.stem = nn.Sequential(
            *(
                _layer(source, target, 3, stride)
                for source, target, stride in zip(sources, stem, strides, strict=False)
            )
        )
        # With three stages the stem itself is the finest level.
        self.has_stem_level = len(blocks) == 3
        width, stages = stem[-1], []
        for target, count in zip(widths[-len(blocks) :], blocks, strict=True):
            stride = first_stride if not stages else 2
            steps = [_Block(width, target, stride)]
            stages.append(
                nn.Sequential(*steps, *(_Block(target, target) for _ in range(count - 1)))
            )
            width = target
        self.stages = nn.ModuleList(stages)
        self.adapters = nn.ModuleList(_layer(w, b, 1) for w, b in zip(widths, base, strict=True))
        self.smooth = nn.ModuleList(_layer(b, s, 3) for b, s in zip(base, sides, strict=True))
        self.upward = nn.ModuleList(
            _layer(coarse, fine, 1) for fine, coarse in itertools.pairwise(base)
        )
        middle, kernel = (128, 1) if is_small else (256, 3)
        self.head = nn.Sequential(
            _layer(sum(sides), middle, kernel),
            nn.Conv2d(middle, _CLASSES, kernel, padding=kernel // 2),
        )

    def forward(self, image: Tensor) -> Tensor:
        values = self.stem(image)
        levels = [values] if self.has_stem_level else []
        for stage in self.stages:
            values = stage(values)
            levels.append(values)
        levels = [adapter(one) for adapter, one in zip(self.adapters, levels, strict=True)]
        joined = levels[3]
        smoothed = [self.smooth[3](joined)]
        for i in (2, 1, 0):
            joined = _enlarged(self.upward[i](joined), levels[i]) + levels[i]
            smoothed.insert(0, self.smooth[i](joined))
        values = smoothed[0]
        for one in smoothed[1:]:
            values = torch.cat((values, _enlarged(one, values)), 1)
        return self.head(values)


class _Block(nn.Module):
    """Two convolutions and a residual."""

    def __init__(self, width: int, target: int, stride: int = 1) -> None:
        super().__init__()
        self.first = _layer(width, target, 3, stride)
        self.second = _layer(target, target, 3, is_active=False)
        is_same = stride == 1 and width == target
        self.shortcut = nn.Identity() if is_same else _layer(width, target, 1, stride, False)

    def forward(self, values: Tensor) -> Tensor:
        return functional.relu(self.second(self.first(values)) + self.shortcut(values))


def _layer(
    width: int, target: int, kernel: int, stride: int = 1, is_active: bool = True
) -> nn.Sequential:
    layers = [
        nn.Conv2d(width, target, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(target),
    ]
    return nn.Sequential(*layers, nn.ReLU()) if is_active else nn.Sequential(*layers)


def _enlarged(values: Tensor, target: Tensor) -> Tensor:
    return functional.interpolate(values, target.shape[2:], mode="nearest")


_SLIM = (64, 128, 192, 320)
_NARROW = (64, 64, 128, 256)


def _large(blocks: Sequence[int]) -> Recipe:
    return Recipe(lambda: Simple((32, 64), _SLIM, blocks, 2, False), (1024, 2048), IMAGENET)


RECIPES = {
    "ffnet_40s": _large((4, 5, 6, 4)),
    "ffnet_54s": _large((5, 8, 8, 5)),
    "ffnet_78s": _large((6, 12, 12, 8)),
    "ffnet_78s_lowres": Recipe(
        lambda: Simple((32, 64), _SLIM, (6, 12, 12, 8), 1, True), (512, 1024), IMAGENET
    ),
    "ffnet_122ns_lowres": Recipe(
        lambda: Simple((64, 64, 64), _NARROW, (16, 24, 20), 2, True), (512, 1024), IMAGENET
    ),
}
