"""What a model's file is, for people: a summary of its graph, and the task that fits it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop.errors import UnusableModel
from edgeloop.graph.check import estimate_caveats, read_graph
from edgeloop.graph.count import graph_info
from edgeloop.graph.info import GraphInfo, GraphMemory, Shape, TensorInfo, info_from, shape_text
from edgeloop.graph.read import check_limits
from edgeloop.graph.rewrites.apply import planned_rewrites
from edgeloop.graph.simplify import STANDARD_DOMAINS

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto


# What a file says of itself before anything is done with it: for `inspect`, and for `upload`.
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
    """From `to_fields`, after a way that turned tuples into lists."""
    ends = {
        side: tuple(DeclaredTensor(**{**one, "shape": tuple(one["shape"])}) for one in fields[side])
        for side in ("inputs", "outputs")
    }
    texts = {name: tuple(fields[name]) for name in ("caveats", "rewrites")}
    info = info_from(fields["info"]) if fields["info"] else None
    memory = GraphMemory(**fields["memory"]) if fields["memory"] else None
    return GraphSummary(**{**fields, **ends, **texts, "info": info, "memory": memory})


def summarize(
    path: Path, shapes: Mapping[str, Shape] | None = None, rewrites: bool = False
) -> GraphSummary:
    """Raises UnusableModel only where the file cannot be read as ONNX at all. Which `rewrites` the
    compiler would need takes a copy of the model to find out."""
    declared = _declared(path)
    try:
        graph = read_graph(path, shapes)
    except UnusableModel as error:
        return GraphSummary(**declared, problem=str(error.fields["reason"]))
    info = graph_info(path.name, graph)
    return GraphSummary(
        **declared,
        info=info,
        memory=info.memory,
        caveats=tuple(estimate_caveats(graph)),
        rewrites=tuple(map(str, planned_rewrites(graph))) if rewrites else (),
    )


def _declared(path: Path) -> dict[str, Any]:
    """From the file alone, without its external data."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except (DecodeError, ValueError):
        reason = "it is not an ONNX model, or it was cut off. Export or copy it again"
        raise UnusableModel(file=path.name, reason=reason) from None
    if not model.graph.node:
        reason = "it holds no ONNX graph, or it was cut off. Export or copy it again"
        raise UnusableModel(file=path.name, reason=reason)
    check_limits(path.name, model)
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    operators = Counter(node.op_type for node in graph.node)
    return {
        "file": path.name,
        "size": _size(path, model),
        "opset": next((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), 0),
        "exporter": f"{model.producer_name} {model.producer_version}".strip(),
        "operators": dict(operators.most_common()),
        "inputs": tuple(_tensor(value) for value in graph.input if value.name not in weights),
        "outputs": tuple(_tensor(value) for value in graph.output),
    }


def _size(path: Path, model: ModelProto) -> int:
    """Of the file with its external data."""
    places = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    files = [path, *(path.parent / place for place in places)]
    return sum(file.stat().st_size for file in files if file.is_file())


def _tensor(value: ValueInfoProto) -> DeclaredTensor:
    sides = value.type.tensor_type.shape.dim
    shape = tuple(side.dim_value if side.dim_value > 0 else side.dim_param or "?" for side in sides)
    return DeclaredTensor(value.name, shape, _dtype(value.type.tensor_type.elem_type))


def _dtype(kind: int) -> str:
    from onnx import helper

    try:
        return str(helper.tensor_dtype_to_np_dtype(kind).name)
    except (KeyError, ValueError, TypeError):
        return "unknown"


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
    if found := _boxes_and_scores(list(shapes.values())):
        return TaskFit("detection", f"one image in, {found}")
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
    if found := _channels(shape, size):
        return _of_map(output.name.lower(), *found, size)
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
