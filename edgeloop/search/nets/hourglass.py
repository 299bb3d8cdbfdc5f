"""The stacked-hourglass space for segmentation: one or two encoder-decoder stacks.

    stem        a convolution (two for stride 4) to `base_channels` at 1/`stem_stride` of the side
    hourglass   `depth` down blocks, each halving the side and widening by its factor;
                `depth` − 1 up blocks, each doubling the side and adding the output of the skip
                block of that level; one last doubling followed by 0–2 layers
    head        1 × 1 to the classes, upsampled to the size of the image

Skips are added, not concatenated: a sum needs no copy on the chip, and its latency estimate does
not depend on scales.

All values are suggested before the first layer is built: a search samples far more often than it
builds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeloop.errors import BadInput
from edgeloop.search.nets.architecture import Shape
from edgeloop.search.nets.trial import Trial

if TYPE_CHECKING:
    from torch import nn

STEMS = (1, 2, 4)
BASE = (16, 24, 32, 48)
FACTORS = (1, 1.2, 1.5, 1.6, 2, 2.2)
KERNELS = ("conv3x3", "conv5x5", "conv7x7")
DEEPEST = 5
_USUAL_STEM = 2
_SMALLEST_SIDE = 2
_CHANNEL_STEP = 4
_STEM_STRIDES = {1: (1,), 2: (2,), 4: (2, 2)}  # a single stride of 4 would skip pixels
_KERNEL_SIDES = {"conv1x1": 1, "conv3x3": 3, "conv5x5": 5, "conv7x7": 7}


@dataclass(frozen=True)
class ConvLayer:
    """A convolution with norm and ReLU; the fields are those of `layers.ConvNormRelu`."""

    inputs: int
    outputs: int
    kernel: int
    stride: int


Block = tuple[ConvLayer, ...]


@dataclass(frozen=True)
class HourglassPlan:
    """The blocks of one hourglass: down from the top, skip and up from the bottom."""

    down: tuple[Block, ...]
    skip: tuple[Block, ...]
    up: tuple[Block, ...]
    last: Block
    channels: int


@dataclass(frozen=True)
class NetworkPlan:
    """Everything needed to build the network."""

    stem: Block
    stride: int
    hourglasses: tuple[HourglassPlan, ...]
    classes: int


def build(trial: Trial, shape: Shape, classes: int, **options: Any) -> nn.Module:
    """Takes the options of `ask`."""
    from edgeloop.search.nets.layers import stacked_hourglasses

    return stacked_hourglasses(ask(trial, shape, classes, **options))


def ask(
    trial: Trial,
    shape: Shape,
    classes: int,
    *,
    depth: int | Sequence[int] | None = None,
    stems: Sequence[int] = STEMS,
    base_channels: Sequence[int] = BASE,
    factors: Sequence[float] = FACTORS,
    kernels: Sequence[str] = KERNELS,
    most_layers: int = 4,
    most_hourglasses: int = 2,
) -> NetworkPlan:
    """Options narrow the space, for example to few channels and small kernels on a laptop. Several
    depths widen it: a shallow hourglass is faster, and sees less of the image at once."""
    sides = shape[2:]
    depths = _depths(depth, sides)
    allowed = [stride for stride in stems if _divides(sides, depths[-1], stride)]
    chosen_depth = trial.suggest_int("depth", depths[0], depths[-1])
    stride = trial.suggest_categorical("stem_stride", allowed or list(stems))
    if not _divides(sides, chosen_depth, stride):
        reason = (
            f"{sides[0]} × {sides[1]} is not divisible by {2**chosen_depth * stride}, as a depth "
            f"of {chosen_depth} and a stem stride of {stride} require"
        )
        raise BadInput(reason=reason)
    channels = trial.suggest_categorical("base_channels", list(base_channels))
    stem, hourglasses = _stem(channels, stride), []
    for number in range(trial.suggest_int("hourglasses", 1, most_hourglasses)):
        blocks = _Blocks(trial, f"h{number}", factors, kernels, most_layers)
        hourglasses.append(_hourglass(blocks, channels, chosen_depth))
        channels = hourglasses[-1].channels
    return NetworkPlan(stem, stride, tuple(hourglasses), classes)


def _depths(depth: int | Sequence[int] | None, sides: Sequence[int]) -> Sequence[int]:
    """The depths to choose from, ascending."""
    if depth is None or isinstance(depth, int):
        return (depth or usual_depth(sides),)
    depths = sorted(depth)
    if not depths or depths != list(range(depths[0], depths[-1] + 1)):
        reason = f"depth must be a number or consecutive numbers, such as [2, 3, 4], not {depth!r}"
        raise BadInput(reason=reason)
    return depths


def usual_depth(sides: Sequence[int]) -> int:
    """5, or less if the default stem would then leave fewer than two pixels."""
    for depth in range(DEEPEST, 0, -1):
        reduction = 2**depth * _USUAL_STEM
        if all(s % reduction == 0 and s // reduction >= _SMALLEST_SIDE for s in sides):
            return depth
    raise BadInput(
        reason=f"an hourglass cannot halve {sides[0]} × {sides[1]} often enough: choose sides "
        "that are divisible by 8 or more, such as 64, 96, 128 or 256"
    )


def kernel_side(kind: object) -> int:
    """The side of a kernel by its name, such as conv3x3."""
    if not isinstance(kind, str) or kind not in _KERNEL_SIDES:
        reason = f"there is no layer {kind!r}; choose one of {', '.join(_KERNEL_SIDES)}"
        raise BadInput(reason=reason)
    return _KERNEL_SIDES[kind]


class _Blocks:
    """Suggests the layers of one hourglass. Names do not depend on earlier values."""

    def __init__(
        self, trial: Trial, prefix: str, factors: Sequence[float], kernels: Sequence[str], most: int
    ) -> None:
        self._trial, self._prefix = trial, prefix
        self._factors, self._kernels, self.most = list(factors), list(kernels), most

    def widened(self, channels: int, level: int) -> int:
        """Rounded up to a multiple of 4, so that no two default factors coincide."""
        factor: float = self._trial.suggest_categorical(
            f"{self._prefix}_down{level}_factor", self._factors
        )
        return _CHANNEL_STEP * math.ceil(channels * factor / _CHANNEL_STEP - 1e-9)

    def block(
        self, name: str, counts: tuple[int, int], inputs: int, outputs: int, stride: int = 1
    ) -> Block:
        """The first layer changes channels and size, the others keep them."""
        layers = []
        for index in range(self._trial.suggest_int(f"{self._prefix}_{name}_layers", *counts)):
            kind = self._trial.suggest_categorical(
                f"{self._prefix}_{name}_op{index}", self._kernels
            )
            layers.append(ConvLayer(inputs, outputs, kernel_side(kind), stride))
            inputs, stride = outputs, 1
        return tuple(layers)


def _hourglass(blocks: _Blocks, channels: int, depth: int) -> HourglassPlan:
    """Down blocks from the top, then skip and up blocks from the bottom."""
    widths, most = [channels], blocks.most
    down, skip, up = [], [], []
    for level in range(1, depth + 1):
        widths.append(blocks.widened(widths[-1], level))
        down.append(blocks.block(f"down{level}", (1, most), widths[-2], widths[-1], stride=2))
    for level in range(depth - 1, 0, -1):
        width = widths[level]
        skip.append(blocks.block(f"skip{level}", (0, min(2, most)), width, width))
        up.append(blocks.block(f"up{level}", (1, most), widths[level + 1], width))
    last = blocks.block("last", (0, min(2, most)), widths[1], channels)
    width = channels if last else widths[1]
    return HourglassPlan(tuple(down), tuple(skip), tuple(up), last, width)


def _stem(channels: int, stride: int) -> Block:
    """A stride of 4 is two convolutions of stride 2."""
    if stride not in _STEM_STRIDES:
        raise BadInput(reason=f"there is no stem of stride {stride}; choose 1, 2 or 4")
    inputs = (3, channels)
    pairs = zip(inputs, _STEM_STRIDES[stride], strict=False)
    return tuple(ConvLayer(given, channels, 3, each) for given, each in pairs)


def _divides(sides: Sequence[int], depth: int, stride: int) -> bool:
    return all(side % (2**depth * stride) == 0 for side in sides)
