"""What a graph is, in plain values: inputs and outputs, costs, shapes, and the task that fits it.

Everything that other rooms know about a graph is here. Nothing in this module reads a file: values
come from the worker process, through `isolated.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from edgeloop.errors import BadInput

Layout = Literal["NCHW", "NHWC", ""]
Shape = tuple[int, ...]


def shape_text(shape: Shape) -> str:
    return "x".join(str(side) for side in shape) or "scalar"


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. The shape is the file's, with the batch; `layout` says that it is an RGB
    image, and where its channels are."""

    name: str
    shape: Shape
    dtype: str = "float32"
    layout: Layout = ""

    @property
    def height(self) -> int:
        """Of an image; 0 for any other tensor."""
        return self.shape[self.layout.index("H")] if self.layout else 0

    @property
    def width(self) -> int:
        return self.shape[self.layout.index("W")] if self.layout else 0


def layout_of(shape: Shape, dtype: str = "float32") -> Layout:
    """Where an RGB image has its channels; empty for any other tensor."""
    if len(shape) != 4 or not dtype.startswith("float") or 3 not in (shape[1], shape[3]):
        return ""
    return "NCHW" if shape[1] == 3 else "NHWC"


@dataclass(frozen=True)
class GraphMemory:
    """Bytes, as floats and quantized. Activations: the most that lives at one moment, layer by
    layer in the order of the graph; a compiler may do better, or split it."""

    weights: int
    weights_8bit: int
    activations: int
    activations_8bit: int
    activations_16bit: int


@dataclass(frozen=True)
class GraphInfo:
    """All inputs and outputs in the order of the graph; the properties are for the common case of
    one image in, one tensor out."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    macs: int
    params: int
    memory: GraphMemory | None = None

    @property
    def image(self) -> TensorInfo | None:
        """The input, where it is the only one and an image."""
        return self.inputs[0] if len(self.inputs) == 1 and self.inputs[0].layout else None

    @property
    def batch(self) -> int:
        """How many samples one run takes: the first side, where all tensors share it."""
        firsts = {tensor.shape[:1] for tensor in (*self.inputs, *self.outputs)}
        if len(firsts) != 1 or any(len(tensor.shape) < 2 for tensor in self.inputs):
            return 1
        return firsts.pop()[0]

    def sample_shape(self, tensor: TensorInfo) -> Shape:
        """The shape of one sample of an input or output: without the batch, where it has one."""
        return tensor.shape[1:] if tensor.shape[:1] == (self.batch,) else tensor.shape

    @property
    def input_name(self) -> str:
        return self.inputs[0].name

    @property
    def input_shape(self) -> Shape:
        return self.inputs[0].shape

    @property
    def output_name(self) -> str:
        return self.outputs[0].name

    @property
    def output_shape(self) -> Shape:
        return self.outputs[0].shape

    @property
    def layout(self) -> Layout:
        return self.inputs[0].layout

    @property
    def height(self) -> int:
        return self.inputs[0].height

    @property
    def width(self) -> int:
        return self.inputs[0].width

    def to_fields(self) -> dict[str, Any]:
        """Plain values, for another process."""
        return asdict(self)


def info_from(fields: Mapping[str, Any]) -> GraphInfo:
    """From `to_fields`, whose tuples are lists once they were JSON."""
    return GraphInfo(
        inputs=tuple(_tensor_from(one) for one in fields["inputs"]),
        outputs=tuple(_tensor_from(one) for one in fields["outputs"]),
        macs=fields["macs"],
        params=fields["params"],
        memory=GraphMemory(**fields["memory"]) if fields.get("memory") else None,
    )


def _tensor_from(fields: Mapping[str, Any]) -> TensorInfo:
    shape = tuple(fields["shape"])
    return TensorInfo(fields["name"], shape, fields["dtype"], fields["layout"])


def image_info(
    input_name: str,
    output_name: str,
    input_shape: Shape,
    output_shape: Shape,
    layout: Layout = "NCHW",
    macs: int = 0,
    params: int = 0,
) -> GraphInfo:
    """One image in, one tensor of floats out."""
    source = TensorInfo(input_name, input_shape, layout=layout)
    return GraphInfo((source,), (TensorInfo(output_name, output_shape),), macs, params)


# What a file declares before anything is done with it, for `inspect` and `upload`.
#
# A file that cannot be used is described as far as it can be read, with the reason.


_IMAGE_SIDE, _OTHER_SIDE = 224, 128


@dataclass(frozen=True)
class DeclaredTensor:
    """An input or output as the file has it: a free size is its name, or `?`."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    @property
    def needs_shape(self) -> bool:
        """Whether more than the batch is free."""
        sides = self.shape if len(self.shape) == 1 else self.shape[1:]
        return not all(isinstance(side, int) for side in sides)

    @property
    def example(self) -> str:
        """Its shape with sizes that are usual, as people type it."""
        usual = _IMAGE_SIDE if len(self.shape) == 4 else _OTHER_SIDE
        sides = [side if isinstance(side, int) else usual for side in self.shape]
        first = [1 if isinstance(side, str) else side for side in self.shape[:1]]
        return "x".join(map(str, [*first, *sides[1:]]))


@dataclass(frozen=True)
class GraphSummary:
    """`info` and `memory` are None where `problem` says why the model cannot be used."""

    file: str
    size: int
    opset: int
    exporter: str
    operators: Mapping[str, int]
    inputs: tuple[DeclaredTensor, ...]
    outputs: tuple[DeclaredTensor, ...]
    info: GraphInfo | None = None
    memory: GraphMemory | None = None
    caveats: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    problem: str = ""

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)


def summary_from(fields: Mapping[str, Any]) -> GraphSummary:
    """From `to_fields`, whose tuples are lists once they were JSON."""
    return GraphSummary(
        file=fields["file"],
        size=fields["size"],
        opset=fields["opset"],
        exporter=fields["exporter"],
        operators=fields["operators"],
        inputs=tuple(_declared_from(one) for one in fields["inputs"]),
        outputs=tuple(_declared_from(one) for one in fields["outputs"]),
        info=info_from(fields["info"]) if fields["info"] else None,
        memory=GraphMemory(**fields["memory"]) if fields["memory"] else None,
        caveats=tuple(fields["caveats"]),
        rewrites=tuple(fields["rewrites"]),
        problem=fields["problem"],
    )


def _declared_from(fields: Mapping[str, Any]) -> DeclaredTensor:
    return DeclaredTensor(fields["name"], tuple(fields["shape"]), fields["dtype"])


# Shapes as people give them, and as a model's row keeps them.


ONLY_INPUT = ""  # the name under which a shape without a name stands
_SHAPE = re.compile(r"\d+(?:(?:\s*[x×,]\s*)\d+)*", re.IGNORECASE)
_LARGEST_SIDE = 2**31 - 1


def parse_shapes(texts: Sequence[str]) -> dict[str, Shape]:
    """From `x=1x3x224x224` or `x=1,3,224,224`; a model with one input needs no name."""
    shapes: dict[str, Shape] = {}
    for text in texts:
        name, equals, sides = text.rpartition("=")
        name, sides = name.strip(), sides.strip().removeprefix("[").removesuffix("]").strip()
        if not _SHAPE.fullmatch(sides) or bool(equals) != bool(name):
            reason = f"--shape takes NAME=SIZES such as x=1x3x224x224, not {text!r}"
            raise BadInput(reason=reason)
        shape = tuple(int(side) for side in re.findall(r"\d+", sides))
        if not all(1 <= side <= _LARGEST_SIDE for side in shape):
            raise BadInput(
                reason=f"--shape takes sizes from 1 on, as in x=1x3x224x224, not {text!r}"
            )
        if shapes.setdefault(name, shape) != shape:
            which = f"the input {name!r}" if name else "the input"
            raise BadInput(reason=f"{which} is given two shapes")
    return shapes


def shapes_text(shapes: Mapping[str, Shape]) -> str:
    """For the column `shapes`; empty without any."""
    return json.dumps({name: list(shape) for name, shape in shapes.items()}) if shapes else ""


def shapes_from(value: object) -> dict[str, Shape]:
    """From the column `shapes`, which people may have edited; empty or missing: no shapes."""
    if value is None or not str(value).strip():
        return {}
    try:
        fields = value if isinstance(value, Mapping) else json.loads(str(value))
        shapes = {str(name): tuple(int(side) for side in sides) for name, sides in fields.items()}
        if all(side >= 1 for shape in shapes.values() for side in shape):
            return shapes
    except (ValueError, TypeError, AttributeError):
        pass
    reason = f'the column shapes is {value!r}; it should be like {{"x": [1, 3, 224, 224]}}'
    raise BadInput(reason=reason)


# Which task a model fits, by the shapes of its inputs and outputs alone.
#
# A guess for people, with its reason: whether a task really scores a model is for the task to say,
# once there is a dataset.


_BOX = 4
_MOST_KEYPOINTS = 200
_KEYPOINT_COUNTS = frozenset((14, 16, 17, 26, 51, 68, 98, 106, 133))  # no usual number of classes
_HEATMAP_NAMES = ("heat", "keypoint", "pose", "landmark")
_DEPTH_NAMES = ("depth", "disp")


@dataclass(frozen=True)
class TaskFit:
    """`task` is one of the built-in tasks; `tensors` where no other fits. `why` says so."""

    task: str
    why: str


def fitting_task(info: GraphInfo) -> TaskFit:
    image = info.image
    if image is None:
        return TaskFit("tensors", _not_an_image(info))
    shapes = {tensor.name: info.sample_shape(tensor) for tensor in info.outputs}
    if len(info.outputs) == 1:
        return _of_one(info.outputs[0], shapes[info.output_name], (image.height, image.width))
    if boxes := _boxes_and_scores(list(shapes.values())):
        return TaskFit("detection", f"one image in, {boxes}")
    size = (image.height, image.width)
    fits = {one.name: _of_one(one, shapes[one.name], size) for one in info.outputs}
    if len(set(fits.values())) == 1 and (fit := fits[info.output_name]).task == "keypoints":
        return replace(fit, why=f"{fit.why}, {len(shapes)} times")  # of every stage of a net
    return _of_main_output(fits, shapes, size)


def _of_main_output(
    fits: Mapping[str, TaskFit], shapes: Mapping[str, Shape], size: tuple[int, int]
) -> TaskFit:
    """Others may be there for training only: class maps as large as the image count, or scores if
    there is nothing else."""
    whole = {
        fit
        for name, fit in fits.items()
        if fit.task == "segmentation" and size in (shapes[name][1:], shapes[name][:2])
    }
    if not whole and all(fit.task == "classification" for fit in fits.values()):
        whole = set(fits.values())
    if len(whole) == 1:
        fit = whole.pop()
        return replace(fit, why=f"{fit.why}, of {len(fits)} outputs")
    return TaskFit("tensors", f"one image in, {len(fits)} outputs that no other task scores")


def _not_an_image(info: GraphInfo) -> str:
    if len(info.inputs) > 1:
        return f"it takes {len(info.inputs)} inputs; the other tasks feed one image"
    words = shape_text(info.input_shape)
    return f"its input {words} {info.inputs[0].dtype} is not an RGB image"


def _of_one(output: TensorInfo, shape: Shape, size: tuple[int, int]) -> TaskFit:
    sides = tuple(side for side in shape if side != 1)
    if len(sides) <= 1:
        words = f"{sides[0]:,} classes" if sides else "one score"
        return TaskFit("classification", f"one image in, {words} out")
    if len(shape) == 2 and output.dtype.startswith(("int", "uint")):
        return TaskFit("segmentation", f"one image in, a class map {shape_text(shape)} out")
    if len(shape) == 2 and _is_map(shape, size):
        return TaskFit("depth", f"one image in, one number per pixel out ({shape_text(shape)})")
    if len(shape) == 2:
        return _of_table(shape)
    if channels := _channels(shape, size):
        return _of_map(output.name.lower(), *channels, size)
    return TaskFit("tensors", f"no other task scores an output {shape_text(shape)}")


def _of_table(shape: Shape) -> TaskFit:
    """Rows of numbers: points, or boxes with their scores in one tensor."""
    if shape[1] in (2, 3) and shape[0] <= _MOST_KEYPOINTS:
        return TaskFit("keypoints", f"one image in, {shape[0]} points out")
    rows, columns = max(shape), min(shape)
    if columns > _BOX and rows >= 2 * columns:
        return TaskFit("detection", f"one image in, {rows:,} boxes of {columns} numbers out")
    return TaskFit("tensors", f"no other task scores an output {shape_text(shape)}")


def _of_map(name: str, channels: int, sides: Shape, size: tuple[int, int]) -> TaskFit:
    words = f"{sides[0]}x{sides[1]}"
    if channels == 3 and sides[0] > size[0]:
        factor = sides[0] / size[0]
        return TaskFit("super-resolution", f"one image in, one {factor:g} times as large out")
    if channels == 1 or any(part in name for part in _DEPTH_NAMES):
        return TaskFit("depth", f"one image in, one number per pixel out ({words})")
    is_named = any(part in name for part in _HEATMAP_NAMES)
    if is_named or (sides[0] < size[0] and channels in _KEYPOINT_COUNTS):
        return TaskFit("keypoints", f"one image in, {channels} heatmaps of {words} out")
    return TaskFit("segmentation", f"one image in, {channels} classes per pixel out ({words})")


def _channels(shape: Shape, size: tuple[int, int]) -> tuple[int, Shape] | None:
    """The channels of a map with the proportions of the image, and its sides."""
    if len(shape) != 3:
        return None
    for channels, sides in ((shape[0], shape[1:]), (shape[2], shape[:2])):
        if _is_map(sides, size):
            return channels, sides
    return None


def _is_map(sides: Shape, size: tuple[int, int]) -> bool:
    """Larger or smaller than the image by the same factor both ways, up to rounding."""
    if min(sides) < 2:
        return False
    across, down = sides[0] / size[0], sides[1] / size[1]
    slack = 1 / min(sides)
    return math.isclose(across, down, rel_tol=slack)


def _boxes_and_scores(shapes: list[Shape]) -> str:
    """Boxes (n, 4) beside scores (n,) or (n, classes); empty where there are none."""
    boxes = [shape for shape in shapes if len(shape) == 2 and shape[1] == _BOX]
    for box in boxes:
        others = [shape for shape in shapes if shape is not box and shape[:1] == box[:1]]
        if any(len(shape) <= 2 for shape in others):
            return f"{box[0]:,} boxes with scores out"
    return ""
