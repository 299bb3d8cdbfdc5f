"""Spaces by name: built-in ones, and functions in users' files such as `my_space.py:build`.

A space is `def build(trial, shape, classes, **options)`, which asks the trial for values and
returns a torch module. Everything that shapes the model must come from the trial, so that the
values alone rebuild it; options narrow the suggestions and need defaults.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from edgeloop._util.values import suggestion
from edgeloop.errors import BadArchitecture, BadInput, BadSpace, EdgeloopError, MissingExtra
from edgeloop.search.nets.architecture import (
    Architecture,
    FixedTrial,
    RecordingTrial,
    Shape,
    Trial,
    Value,
    read_text,
)

if TYPE_CHECKING:
    from torch import nn


# The stacked-hourglass space for segmentation: one or two encoder-decoder stacks.
#
#     stem        a convolution (two for stride 4) to `base_channels` at 1/`stem_stride` of the side
#     hourglass   `depth` down blocks, each halving the side and widening by its factor;
#                 `depth` − 1 up blocks, each doubling the side and adding the output of the skip
#                 block of that level; one last doubling followed by 0–2 layers
#     head        1 × 1 to the classes, upsampled to the size of the image
#
# Skips are added, not concatenated: a sum needs no copy on the chip, and its latency estimate
# does not depend on scales.
#
# All values are suggested before the first layer is built: a search samples far more often than
# it builds.


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


def build_hourglass(trial: Trial, shape: Shape, classes: int, **options: Any) -> nn.Module:
    """Takes the options of `ask`."""
    from edgeloop.search.nets.layers import stacked_hourglasses

    return stacked_hourglasses(ask_hourglass(trial, shape, classes, **options))


def ask_hourglass(
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
    blocks = _Blocks(trial, factors, kernels, most_layers)
    for number in range(trial.suggest_int("hourglasses", 1, most_hourglasses)):
        hourglasses.append(_hourglass(blocks, f"h{number}", channels, chosen_depth))
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
    """Suggests the layers of hourglasses, up to `most` per block. Names do not depend on earlier
    values."""

    def __init__(
        self, trial: Trial, factors: Sequence[float], kernels: Sequence[str], most: int
    ) -> None:
        self._trial, self.most = trial, most
        self._factors, self._kernels = list(factors), list(kernels)

    def widened(self, name: str, channels: int) -> float:
        factor: float = self._trial.suggest_categorical(f"{name}_factor", self._factors)
        return channels * factor

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


def _hourglass(blocks: _Blocks, prefix: str, channels: int, depth: int) -> HourglassPlan:
    """Down blocks from the top, then skip and up blocks from the bottom."""
    widths, most = [channels], blocks.most
    down, skip, up = [], [], []
    for level in range(1, depth + 1):
        name = f"{prefix}_down{level}"
        widths.append(_whole_channels(blocks.widened(name, widths[-1])))
        down.append(blocks.block(name, (1, most), widths[-2], widths[-1], stride=2))
    for level in range(depth - 1, 0, -1):
        width = widths[level]
        skip.append(blocks.block(f"{prefix}_skip{level}", (0, min(2, most)), width, width))
        up.append(blocks.block(f"{prefix}_up{level}", (1, most), widths[level + 1], width))
    last = blocks.block(f"{prefix}_last", (0, min(2, most)), widths[1], channels)
    width = channels if last else widths[1]
    return HourglassPlan(tuple(down), tuple(skip), tuple(up), last, width)


def _whole_channels(width: float) -> int:
    """Rounded up to a multiple of 4, so that no two default factors coincide."""
    return _CHANNEL_STEP * math.ceil(width / _CHANNEL_STEP - 1e-9)


def _stem(channels: int, stride: int) -> Block:
    """A stride of 4 is two convolutions of stride 2."""
    if stride not in _STEM_STRIDES:
        raise BadInput(reason=f"there is no stem of stride {stride}; choose 1, 2 or 4")
    inputs = (3, channels)
    pairs = zip(inputs, _STEM_STRIDES[stride], strict=False)
    return tuple(ConvLayer(source, channels, 3, each) for source, each in pairs)


def _divides(sides: Sequence[int], depth: int, stride: int) -> bool:
    return all(side % (2**depth * stride) == 0 for side in sides)


# A small space for classification: a stem, two to four stages, a pooled head.


WIDTHS = (8, 16, 24, 32)
CLASSIFIER_KERNELS = (3, 5)


def build_classifier(trial: Trial, shape: Shape, classes: int, **options: Any) -> nn.Module:
    """Takes the options of `ask`."""
    from torch import nn

    from edgeloop.search.nets.layers import block_of

    layers = ask_classifier(trial, shape, classes, **options)
    body = block_of(layers)  # before the head: random numbers are drawn in this order
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(layers[-1].outputs, classes)
    return nn.Sequential(*body, *head)


def ask_classifier(
    trial: Trial,
    shape: Shape,
    classes: int,
    *,
    widths: Sequence[int] = WIDTHS,
    kernels: Sequence[int] = CLASSIFIER_KERNELS,
    most_stages: int = 4,
    most_layers: int = 3,
) -> Block:
    """Each stage halves the side and multiplies the channels by a factor."""
    width = trial.suggest_categorical("width", list(widths))
    layers = [ConvLayer(3, width, 3, 2)]
    stages = trial.suggest_int("stages", min(2, most_stages), most_stages)
    if min(shape[2:]) < 2 ** (stages + 1):
        reason = f"{shape[2]} × {shape[3]} is too small to be halved {stages + 1} times"
        raise BadInput(reason=reason)
    for stage in range(stages):
        factor = trial.suggest_float(f"stage{stage}_factor", 1.0, 2.0, step=0.5)
        kernel = trial.suggest_categorical(f"stage{stage}_kernel", list(kernels))
        outputs, stride = 4 * round(width * factor / 4), 2
        for _ in range(trial.suggest_int(f"stage{stage}_layers", 1, most_layers)):
            layers.append(ConvLayer(width, outputs, kernel, stride))
            width, stride = outputs, 1
    return tuple(layers)


# The stacked hourglass of Microsoft Archai's face segmentation: a space, and its JSON files.
#
#     stem        a 3 × 3 convolution to `base_ch` channels with the stem's stride
#     hourglass   down blocks, of which all but the first halve the side; on the way up, each level
#                 is doubled, passed through its up block, and added to the output of its skip
#                 block; a 1 × 1 convolution leads back to `base_ch`
#     head        upsampled to the size of the image, `post_upsample_layers`, 1 × 1 to the classes
#
# An `ArchConfig` file of Archai holds these choices as nested lists. It says neither the size of
# the image nor the number of classes, which Archai's scripts pass in: both are asked for here.


ARCHAI = "archai-hourglass"
USUAL_SIZE = (256, 256)  # of Archai's own trainings and exports
ARCHAI_FACTORS = (0.8, 1, 1.2, 1.5, 1.6, 2)
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


def build_archai(trial: Trial, shape: Shape, classes: int, **options: Any) -> nn.Module:
    """Takes the options of `ask`."""
    from edgeloop.search.nets.layers import ArchaiStack

    return ArchaiStack(ask_archai(trial, shape, classes, **options))


def ask_archai(
    trial: Trial,
    shape: Shape,
    classes: int,
    *,
    blocks: int = 5,
    stems: Sequence[int] = STEMS,
    base_channels: Sequence[int] = BASE,
    factors: Sequence[float] = ARCHAI_FACTORS,
    kernels: Sequence[str] = KERNELS,
    most_layers: int = 4,
    most_hourglasses: int = 2,
) -> ArchaiNetworkPlan:
    """Options narrow the space, for example to few channels and small kernels on a laptop."""
    stride = trial.suggest_categorical("stem_stride", list(stems))
    channels = trial.suggest_categorical("base_ch", list(base_channels))
    suggested = _Blocks(trial, factors, kernels, most_layers)
    hourglasses = []
    for number in range(trial.suggest_int("hourglasses", 1, most_hourglasses)):
        count = trial.suggest_int(f"h{number}_blocks", blocks, blocks)
        _check_sides(shape, count, stride)
        hourglasses.append(_archai_hourglass(suggested, f"h{number}", channels, count))
    post = suggested.block("post", (0, min(3, most_layers)), channels, channels)
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
    return Architecture(ARCHAI, params, shape, classes)


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
            blocks = self.items(fields, key)
            if len(blocks) != len(down) - 1:
                reason = f"it has {len(blocks)} {key} beside {len(down)} downsample_blocks"
                raise self._wrong(f"{reason}; one less than those is needed")
            for index, block in enumerate(blocks):
                params |= self.layers(f"{prefix}_{kind}{index}", block, "layers")
        return params

    def layers(self, name: str, fields: Mapping[str, Any], key: str) -> dict[str, Value]:
        """A missing list is an empty one: older files lack `post_upsample_layers`."""
        configs = self.items(fields, key) if key in fields else []
        ops = {f"{name}_op{index}": layer.get("op") for index, layer in enumerate(configs)}
        return {f"{name}_layers": len(configs), **ops}

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


def _archai_hourglass(
    blocks: _Blocks, prefix: str, channels: int, depth: int
) -> ArchaiHourglassPlan:
    widths, most = [channels], blocks.most
    down, skip, up = [], [], []
    for level in range(depth):
        name, stride = f"{prefix}_down{level}", 2 if level else 1
        widths.append(max(1, int(blocks.widened(name, widths[-1]))))
        down.append(blocks.block(name, (1, most), widths[-2], widths[-1], stride))
    for level in range(depth - 1):
        here, below = widths[level + 1], widths[level + 2]
        skip.append(blocks.block(f"{prefix}_skip{level}", (0, min(2, most)), here, here))
        up.append(blocks.block(f"{prefix}_up{level}", (1, most), below, here))
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


Builder = Callable[..., "nn.Module"]

BUILT_IN: Mapping[str, Builder] = {
    "hourglass": build_hourglass,
    ARCHAI: build_archai,
    "small-classifier": build_classifier,
}
_QUESTIONS: Mapping[str, Callable[..., object]] = {
    "hourglass": ask_hourglass,
    ARCHAI: ask_archai,
    "small-classifier": ask_classifier,
}
_DRAWING = Lock()  # torch has one random generator per process
_GIVEN = ("trial", "shape", "classes")


@dataclass(frozen=True)
class Space:
    """A function of a trial, its name in architectures, and its options."""

    name: str
    function: Builder
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, trial: Trial, shape: Shape, classes: int) -> nn.Module:
        """Build the model of a trial. Whatever the function raises becomes one sentence."""
        check_torch()
        from torch import nn

        net = self._called(self.function, trial, shape, classes)
        if not isinstance(net, nn.Module):
            reason = f"it returned {type(net).__name__} instead of a torch module"
            raise BadSpace(space=self.name, reason=reason)
        return net

    def sample(self, seed: int, shape: Shape, classes: int) -> Architecture:
        """A random member, the same for the same seed."""
        trial = RecordingTrial(seed)
        self.ask(trial, shape, classes)
        return Architecture(self.name, trial.params, shape, classes)

    def ask(self, trial: Trial, shape: Shape, classes: int) -> None:
        """Only suggest values. Built-in spaces do so without building a model, which is what takes
        the time; a user's function has to be called."""
        if BUILT_IN.get(self.name) is self.function:
            check_torch()
            self._called(_QUESTIONS[self.name], trial, shape, classes)
        else:
            self.build(trial, shape, classes)

    def _called(
        self, function: Callable[..., object], trial: Trial, shape: Shape, classes: int
    ) -> object:
        try:
            return function(trial, shape, classes, **self.options)
        except EdgeloopError as error:
            if isinstance(error, BadArchitecture | BadSpace):
                raise
            raise BadSpace(space=self.name, reason=str(error)) from error
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except Exception as error:
            if type(error).__module__.startswith("optuna."):  # a pruned trial is not an error
                raise
            raise BadSpace(space=self.name, reason=f"it raised {_words(error)}") from error


def find_space(
    name: str, options: Mapping[str, Any] | None = None, project: Path | None = None
) -> Space:
    """A built-in space, or `FILE.py:FUNCTION` with the file inside the project's folder."""
    if name in BUILT_IN:
        function = BUILT_IN[name]
    elif ":" in name:
        function = _from_file(name, project or Path.cwd())
    else:
        hint = suggestion(name, BUILT_IN, "built-in spaces are")
        reason = f"{hint} A space of your own is named like my_space.py:build"
        raise BadSpace(space=name, reason=reason)
    space = Space(name, function, dict(options or {}))
    _check_options(space)
    return space


def build(arch: Architecture, seed: int = 0, project: Path | None = None) -> nn.Module:
    """The model of an architecture with initial weights, which depend only on the seed."""
    check_torch()
    import torch

    space = find_space(arch.space, project=project)
    trial = FixedTrial(arch.params, f"{arch.id} of the space {arch.space!r}")
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = space.build(trial, arch.shape, arch.classes)
    trial.check_all_used()
    return net


def source_of(arch: Architecture, project: Path) -> Path | None:
    """The file of a user's space, relative to the project; None for a built-in space."""
    file, colon, _ = arch.space.rpartition(":")
    if not colon:
        return None
    path = (project / file).resolve()
    root = project.resolve()
    return path.relative_to(root) if path.is_relative_to(root) and path.is_file() else None


def digest(*parts: str | bytes) -> str:
    total = sha256()
    for part in parts:
        total.update(sha256(part.encode() if isinstance(part, str) else part).digest())
    return total.hexdigest()[:16]


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(what="Building models", extra="train")


def _from_file(name: str, project: Path) -> Builder:
    file, _, attribute = name.rpartition(":")
    path = _inside(name, file, project)
    if not path.is_file():
        raise BadSpace(space=name, reason=f"there is no file {file!r} in {project}")
    function = getattr(_module(name, path, project), attribute, None)
    if function is None:
        raise BadSpace(space=name, reason=f"{file} has no function {attribute!r}")
    if not callable(function):
        raise BadSpace(space=name, reason=f"{attribute!r} in {file} is not a function")
    return function  # type: ignore[no-any-return]


def _inside(name: str, file: str, project: Path) -> Path:
    """Names may come from untrusted files; only code inside the project is run."""
    if not file.endswith(".py") or "\0" in file:
        raise BadSpace(space=name, reason="a space of your own is named like my_space.py:build")
    root = project.resolve()
    path = (root / file).resolve()
    if not path.is_relative_to(root):
        raise BadSpace(space=name, reason=f"{file} is not inside the project {root}")
    return path


def _module(name: str, path: Path, project: Path) -> ModuleType:
    """Loaded again each time, since the file may have changed. It may import its neighbours, but
    none of them takes the place of a module that is installed."""
    for folder in (str(path.parent), str(project.resolve())):
        if folder not in sys.path:
            sys.path.append(folder)
    label = f"edgeloop_space_{sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise BadSpace(space=name, reason=f"{path.name} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadSpace(space=name, reason=f"{path.name} raised {_words(error)}") from error
    return module


def _check_options(space: Space) -> None:
    try:
        parameters = inspect.signature(
            _QUESTIONS.get(space.name, space.function)
        ).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        return
    kinds = inspect.Parameter
    positional = [
        p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    takes_any = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    if len(positional) < len(_GIVEN) and not takes_any:
        reason = "its function should take (trial, shape, classes)"
        raise BadSpace(space=space.name, reason=reason)
    if any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        return
    named = (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    option_names = [
        p.name for p in parameters if p.kind in named and p not in positional[: len(_GIVEN)]
    ]
    for option in space.options:
        if option not in option_names:
            hint = (
                suggestion(option, option_names, "it takes") if option_names else "it takes none."
            )
            raise BadInput(reason=f"the space {space.name!r} has no option {option!r}: {hint}")


def _words(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
