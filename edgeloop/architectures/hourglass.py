"""The stacked-hourglass space: down to a few pixels and up again, once or twice, for segmentation.

    stem        a convolution (two for stride 4) to `base_channels` at 1/`stem_stride` of the side
    hourglass   `depth` down blocks, each halving the side and widening by its factor;
                `depth` − 1 up blocks, each doubling the side and adding what the skip block of
                that level kept; one last doubling with 0–2 layers behind it
    head        1 × 1 to the classes, enlarged to the size of the image

Skips are added and not concatenated: a sum needs no copy on the chip, and its estimate does not
depend on scales.

All questions are asked before the first layer is made: a search asks far more often than it builds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeloop.architectures.architecture import Shape
from edgeloop.architectures.trial import Trial
from edgeloop.errors import BadInput

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
_STEM_STRIDES = {1: (1,), 2: (2,), 4: (2, 2)}  # one of 4 would skip three of four pixels
_KERNEL_SIDES = {"conv1x1": 1, "conv3x3": 3, "conv5x5": 5, "conv7x7": 7}


@dataclass(frozen=True)
class Layer:
    """A convolution with its norm and ReLU; the fields are those of `layers.ConvNormRelu`."""

    inputs: int
    outputs: int
    kernel: int
    stride: int


Block = tuple[Layer, ...]


@dataclass(frozen=True)
class HourglassPlan:
    """The blocks of one hourglass: down from the top, skip and up from the bottom."""

    down: tuple[Block, ...]
    skip: tuple[Block, ...]
    up: tuple[Block, ...]
    last: Block
    channels: int


@dataclass(frozen=True)
class Plan:
    """All that was answered: a net follows from it without another question."""

    stem: Block
    stride: int
    hourglasses: tuple[HourglassPlan, ...]
    classes: int


def build(trial: Trial, shape: Shape, classes: int, **options: Any) -> nn.Module:
    """The options are those of `ask`."""
    from edgeloop.architectures.layers import stacked_hourglasses

    return stacked_hourglasses(ask(trial, shape, classes, **options))


def ask(
    trial: Trial,
    shape: Shape,
    classes: int,
    *,
    depth: int | None = None,
    stems: Sequence[int] = STEMS,
    base_channels: Sequence[int] = BASE,
    factors: Sequence[float] = FACTORS,
    kernels: Sequence[str] = KERNELS,
    most_layers: int = 4,
    most_hourglasses: int = 2,
) -> Plan:
    """Options narrow what is suggested: a laptop wants few channels and small kernels."""
    sides = shape[2:]
    deepest = depth or usual_depth(sides)
    allowed = [stride for stride in stems if _divides(sides, deepest, stride)]
    chosen_depth = trial.suggest_int("depth", deepest, deepest)
    stride = trial.suggest_categorical("stem_stride", allowed or list(stems))
    if not _divides(sides, chosen_depth, stride):
        raise BadInput(reason=_does_not_divide(sides, chosen_depth, stride))
    channels = trial.suggest_categorical("base_channels", list(base_channels))
    stem, hourglasses = _stem(channels, stride), []
    for number in range(trial.suggest_int("hourglasses", 1, most_hourglasses)):
        blocks = _Blocks(trial, f"h{number}", factors, kernels, most_layers)
        hourglasses.append(_hourglass(blocks, channels, chosen_depth))
        channels = hourglasses[-1].channels
    return Plan(stem, stride, tuple(hourglasses), classes)


def usual_depth(sides: Sequence[int]) -> int:
    """As deep as the reference (5), unless the usual stem leaves less than two pixels then."""
    for depth in range(DEEPEST, 0, -1):
        reduction = 2**depth * _USUAL_STEM
        if all(s % reduction == 0 and s // reduction >= _SMALLEST_SIDE for s in sides):
            return depth
    raise BadInput(
        reason=f"an hourglass halves {sides[0]} × {sides[1]} again and again: choose sides that "
        "divide by 8 or more, such as 64, 96, 128 or 256"
    )


class _Blocks:
    """Asks for the layers of one hourglass. Names are the same whatever was answered before."""

    def __init__(
        self, trial: Trial, prefix: str, factors: Sequence[float], kernels: Sequence[str], most: int
    ) -> None:
        self._trial, self._prefix = trial, prefix
        self._factors, self._kernels, self.most = list(factors), list(kernels), most

    def widened(self, channels: int, level: int) -> int:
        """Rounded up to a multiple of 4: no two factors of the default space then coincide."""
        factor: float = self._trial.suggest_categorical(
            f"{self._prefix}_down{level}_factor", self._factors
        )
        return _CHANNEL_STEP * math.ceil(channels * factor / _CHANNEL_STEP - 1e-9)

    def block(
        self, name: str, counts: tuple[int, int], inputs: int, outputs: int, stride: int = 1
    ) -> Block:
        """The first layer changes channels and size, those behind it keep them."""
        layers = []
        for index in range(self._trial.suggest_int(f"{self._prefix}_{name}_layers", *counts)):
            kind = self._trial.suggest_categorical(
                f"{self._prefix}_{name}_op{index}", self._kernels
            )
            layers.append(Layer(inputs, outputs, _kernel(kind), stride))
            inputs, stride = outputs, 1
        return tuple(layers)


def _hourglass(blocks: _Blocks, channels: int, depth: int) -> HourglassPlan:
    """Widths first, from the top down; then what goes up again, from the bottom."""
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
    """A stride of 4 is two halvings."""
    if stride not in _STEM_STRIDES:
        raise BadInput(reason=f"there is no stem of stride {stride}; there are 1, 2 and 4")
    inputs = (3, channels)
    pairs = zip(inputs, _STEM_STRIDES[stride], strict=False)
    return tuple(Layer(given, channels, 3, each) for given, each in pairs)


def _kernel(kind: str) -> int:
    if kind not in _KERNEL_SIDES:
        reason = f"there is no layer {kind!r}; there are {', '.join(_KERNEL_SIDES)}"
        raise BadInput(reason=reason)
    return _KERNEL_SIDES[kind]


def _divides(sides: Sequence[int], depth: int, stride: int) -> bool:
    return all(side % (2**depth * stride) == 0 for side in sides)


def _does_not_divide(sides: Sequence[int], depth: int, stride: int) -> str:
    return (
        f"{sides[0]} × {sides[1]} does not divide by {2**depth * stride}, which a depth of {depth} "
        f"and a stem stride of {stride} need"
    )
