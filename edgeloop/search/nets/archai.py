"""The stacked hourglass of Microsoft Archai's face segmentation: a space, and its JSON files.

    stem        a 3 × 3 convolution to `base_ch` channels with the stem's stride
    hourglass   down blocks, of which all but the first halve the side; on the way up, each level is
                doubled, passed through its up block, and added to the output of its skip block; a
                1 × 1 convolution leads back to `base_ch`
    head        upsampled to the size of the image, `post_upsample_layers`, 1 × 1 to the classes

An `ArchConfig` file of Archai holds these choices as nested lists. It says neither the size of the
image nor the number of classes, which Archai's scripts pass in: both are asked for here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop.errors import BadArchitecture, BadInput
from edgeloop.search.nets.architecture import Architecture, Shape, Value, read_text
from edgeloop.search.nets.hourglass import KERNELS, Block, ConvLayer, kernel_side
from edgeloop.search.nets.trial import Trial

if TYPE_CHECKING:
    from torch import nn

NAME = "archai-hourglass"
USUAL_SIZE = (256, 256)  # of Archai's own trainings and exports
STEMS = (1, 2, 4)
BASE = (16, 24, 32, 48)
FACTORS = (0.8, 1, 1.2, 1.5, 1.6, 2)
_MARK = "hourglasses"
_MOST_BLOCKS = 16
_MOST_LAYERS = 64


@dataclass(frozen=True)
class ArchaiHourglassPlan:
    """The blocks of one hourglass, from the top to the bottom, and the channels of its top."""

    down: tuple[Block, ...]
    skip: tuple[Block, ...]
    up: tuple[Block, ...]
    channels: int


@dataclass(frozen=True)
class ArchaiNetworkPlan:
    """Everything needed to build the network."""

    stem: Block
    stride: int
    hourglasses: tuple[ArchaiHourglassPlan, ...]
    post: Block
    classes: int


def build(trial: Trial, shape: Shape, classes: int, **options: Any) -> nn.Module:
    """Takes the options of `ask`."""
    from edgeloop.search.nets.layers import ArchaiStack

    return ArchaiStack(ask(trial, shape, classes, **options))


def ask(
    trial: Trial,
    shape: Shape,
    classes: int,
    *,
    blocks: int = 5,
    stems: Sequence[int] = STEMS,
    base_channels: Sequence[int] = BASE,
    factors: Sequence[float] = FACTORS,
    kernels: Sequence[str] = KERNELS,
    most_layers: int = 4,
    most_hourglasses: int = 2,
) -> ArchaiNetworkPlan:
    """Options narrow the space, for example to few channels and small kernels on a laptop."""
    stride = trial.suggest_categorical("stem_stride", list(stems))
    channels = trial.suggest_categorical("base_ch", list(base_channels))
    chosen = _ArchaiChoices(trial, list(factors), list(kernels))
    hourglasses = []
    for number in range(trial.suggest_int("hourglasses", 1, most_hourglasses)):
        count = trial.suggest_int(f"h{number}_blocks", blocks, blocks)
        _check_sides(shape, count, stride)
        hourglasses.append(_hourglass(chosen, f"h{number}", channels, count, most_layers))
    post = chosen.block("post", (0, min(3, most_layers)), channels, channels)
    stem = (ConvLayer(3, channels, 3, stride),)
    return ArchaiNetworkPlan(stem, stride, tuple(hourglasses), post, classes)


def load_architecture(
    path: Path, classes: Callable[[], int], size: tuple[int, int] | None = None
) -> Architecture:
    """The architecture in a file of ours, or in one that Archai wrote.

    `classes` and `size` complete Archai's files only; ours say both.
    """
    text = read_text(path)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or _MARK not in fields or "space" in fields:
        return Architecture.from_json(text, str(path))
    return from_arch_config(fields, (1, 3, *(size or USUAL_SIZE)), classes(), str(path))


def from_arch_config(
    fields: Mapping[str, Any], shape: Shape, classes: int, where: str = "An ArchConfig"
) -> Architecture:
    """Keys that the network does not use are ignored, as Archai does."""
    reader = _ConfigReader(where)
    params: dict[str, Value] = {
        "stem_stride": reader.number(fields, "stem_stride"),
        "base_ch": reader.number(fields, "base_ch"),
    }
    hourglasses = reader.items(fields, _MARK)
    params["hourglasses"] = len(hourglasses)
    for number, hourglass in enumerate(hourglasses):
        params |= reader.hourglass(f"h{number}", hourglass)
    params |= reader.layers("post", fields, "post_upsample_layers")
    return Architecture(NAME, params, shape, classes)


class _ConfigReader:
    """Reads the nested lists of an `ArchConfig`, with or without Archai's bookkeeping keys."""

    def __init__(self, where: str) -> None:
        self._where = where

    def hourglass(self, prefix: str, fields: Mapping[str, Any]) -> dict[str, Value]:
        down = self.items(fields, "downsample_blocks")
        if not 2 <= len(down) <= _MOST_BLOCKS:
            raise self._wrong(f"it has {len(down)} downsample blocks; from 2 to 16 are allowed")
        params: dict[str, Value] = {f"{prefix}_blocks": len(down)}
        for index, block in enumerate(down):
            params[f"{prefix}_down{index}_factor"] = self.number(block, "ch_expansion_factor")
            params |= self.layers(f"{prefix}_down{index}", block, "layers")
        for kind, key in (("skip", "skip_blocks"), ("up", "upsample_blocks")):
            found = self.items(fields, key)
            if len(found) != len(down) - 1:
                reason = f"it has {len(found)} {key} beside {len(down)} downsample_blocks"
                raise self._wrong(f"{reason}; one less than those is needed")
            for index, block in enumerate(found):
                params |= self.layers(f"{prefix}_{kind}{index}", block, "layers")
        return params

    def layers(self, name: str, fields: Mapping[str, Any], key: str) -> dict[str, Value]:
        """A missing list is an empty one: older files lack `post_upsample_layers`."""
        found = self.items(fields, key) if key in fields else []
        ops = {f"{name}_op{index}": layer.get("op") for index, layer in enumerate(found)}
        return {f"{name}_layers": len(found), **ops}

    def items(self, fields: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        """A list, or Archai's form of one: numbered entries, of which the first so many count."""
        value = fields.get(key)
        if isinstance(value, Mapping):
            numbered, count = value.get("_configs"), value.get("_repeat_times")
            if not isinstance(numbered, Mapping) or not isinstance(count, int) or count < 0:
                raise self._wrong(f"its {key!r} has no '_configs' and '_repeat_times'")
            value = [numbered.get(str(index)) for index in range(min(count, _MOST_LAYERS + 1))]
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
            raise self._wrong(f"its {key!r} is missing, or is not a list of configurations")
        if len(value) > _MOST_LAYERS:
            raise self._wrong(f"its {key!r} has more than {_MOST_LAYERS} entries")
        return value

    def number(self, fields: Mapping[str, Any], key: str) -> int | float:
        value = fields.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(f"its {key!r} is {value!r}, but should be a number")
        return value

    def _wrong(self, reason: str) -> BadArchitecture:
        return BadArchitecture(what=self._where, reason=reason)


class _ArchaiChoices:
    """Suggests blocks of layers. Names do not depend on earlier values."""

    def __init__(self, trial: Trial, factors: list[float], kernels: list[str]) -> None:
        self._trial, self._factors, self._kernels = trial, factors, kernels

    def widened(self, name: str, channels: int) -> int:
        factor: float = self._trial.suggest_categorical(f"{name}_factor", self._factors)
        return max(1, int(channels * factor))

    def block(
        self, name: str, counts: tuple[int, int], inputs: int, outputs: int, stride: int = 1
    ) -> Block:
        """The first layer changes channels and size, the others keep them."""
        layers = []
        for index in range(self._trial.suggest_int(f"{name}_layers", *counts)):
            kernel = self._trial.suggest_categorical(f"{name}_op{index}", self._kernels)
            layers.append(ConvLayer(inputs, outputs, kernel_side(kernel), stride))
            inputs, stride = outputs, 1
        return tuple(layers)


def _hourglass(
    chosen: _ArchaiChoices, prefix: str, channels: int, blocks: int, most: int
) -> ArchaiHourglassPlan:
    widths = [channels]
    down, skip, up = [], [], []
    for level in range(blocks):
        name, stride = f"{prefix}_down{level}", 2 if level else 1
        widths.append(chosen.widened(name, widths[-1]))
        down.append(chosen.block(name, (1, most), widths[-2], widths[-1], stride))
    for level in range(blocks - 1):
        here, below = widths[level + 1], widths[level + 2]
        skip.append(chosen.block(f"{prefix}_skip{level}", (0, min(2, most)), here, here))
        up.append(chosen.block(f"{prefix}_up{level}", (1, most), below, here))
    return ArchaiHourglassPlan(tuple(down), tuple(skip), tuple(up), channels)


def _check_sides(shape: Shape, blocks: int, stride: object) -> None:
    if not isinstance(stride, int) or stride < 1:
        raise BadInput(reason=f"there is no stem of stride {stride!r}; choose 1, 2 or 4")
    reduction = 2 ** (blocks - 1) * stride
    if any(side % reduction for side in shape[2:]):
        reason = (
            f"{shape[2]} × {shape[3]} is not divisible by {reduction}, as {blocks} blocks and a "
            f"stem stride of {stride} require"
        )
        raise BadInput(reason=reason)
