"""Graphs that compute the same with other names, other ends or another batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeloop.graph.info import GraphInfo, Shape, TensorInfo
from edgeloop.graph.rewrites.checking import compared, random_values, run_model

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto


# A graph of several samples at a time, for one at a time: some quantizers take nothing else.


_SHAPED = ("Reshape", "Expand")  # operators whose second input is a shape


def single_sample_info(info: GraphInfo) -> GraphInfo:
    """Of the graph that `single_sample` gives; how much memory that takes is not known here."""
    batch = info.batch

    def single(tensor: TensorInfo) -> TensorInfo:
        is_batch = tensor.shape[:1] == (batch,)
        return replace(tensor, shape=(1, *tensor.shape[1:])) if is_batch else tensor

    return replace(
        info,
        inputs=tuple(single(tensor) for tensor in info.inputs),
        outputs=tuple(single(tensor) for tensor in info.outputs),
        macs=info.macs // batch,
        memory=None,
    )


def single_sample(model: ModelProto, info: GraphInfo) -> ModelProto | None:
    """A new model that computes the same for every sample of a batch; None where there is none,
    since samples mix or sizes are written into the graph. Both are run to be sure."""
    import onnx

    target = single_sample_info(info)
    smaller = onnx.ModelProto()
    smaller.CopyFrom(model)
    graph = smaller.graph
    for value, tensor in zip(graph.input, target.inputs, strict=True):
        value.type.tensor_type.shape.dim[0].dim_value = tensor.shape[0]
    _shrink_shapes(graph, info.batch)
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        smaller = onnx.shape_inference.infer_shapes(smaller, strict_mode=True, data_prop=True)
        is_same = _shapes(smaller) == [t.shape for t in target.outputs] and _agree(
            model, smaller, info
        )
    except Exception:  # noqa: BLE001 - whatever a runtime makes of a graph that cannot be cut
        return None
    return smaller if is_same else None


def _shrink_shapes(graph: GraphProto, batch: int) -> None:
    """Shapes that begin with the batch leave it open, or are for one sample where they cannot."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for number, node in enumerate(graph.node):
        if node.op_type not in _SHAPED or node.input[1] not in constants:
            continue
        sides = numpy_helper.to_array(constants[node.input[1]])
        if sides.size and sides.flat[0] == batch:
            is_open = node.op_type == "Reshape" and sides.min() > 0
            fewer = sides.copy()
            fewer.flat[0] = -1 if is_open else 1
            name = f"{node.input[1]}_single_{number}"
            graph.initializer.append(numpy_helper.from_array(fewer, name))
            node.input[1] = name


def _shapes(model: ModelProto) -> list[tuple[int, ...]]:
    return [
        tuple(side.dim_value for side in value.type.tensor_type.shape.dim)
        for value in model.graph.output
    ]


def _agree(model: ModelProto, smaller: ModelProto, info: GraphInfo) -> bool:
    """Whether every sample of a random batch has the outputs that it has alone."""
    import numpy as np

    dice = np.random.default_rng(0)
    batch = {value.name: random_values(dice, value) for value in model.graph.input}
    samples = [
        {name: array[number : number + 1] for name, array in batch.items()}
        for number in range(info.batch)
    ]
    (whole,) = run_model(model, [batch])
    apart = [[output[number : number + 1] for output in whole] for number in range(info.batch)]
    return compared(apart, run_model(smaller, samples)).is_equal


# A float graph for boards: with names of ours for inputs and outputs, or with classes as output.
#
# Boards name files after a model's outputs, and lists of inputs are cut at spaces, so tensors are
# called `input` and `output`, or `input_0`, `output_1`, whatever the exporter called them. F1 needs
# only the class of every pixel; a graph that ends in ArgMax returns one byte per pixel instead of a
# float for every class.


DLC_INPUT = "input"
DLC_OUTPUT = "output"
DLC_CLASSES = "classes"
_MOST_IN_A_BYTE = 256


def dlc_names(kind: str, count: int) -> tuple[str, ...]:
    """What all inputs or outputs of a graph are called on a board, in its order; `kind` is
    `DLC_INPUT` or `DLC_OUTPUT`."""
    return (kind,) if count == 1 else tuple(f"{kind}_{number}" for number in range(count))


def class_axis(info: GraphInfo, shape: Shape | None = None) -> int | None:
    """Which axis of the output (or of an array of `shape`, with the batch first) has the classes of
    pixels; None where it has none, or has them chosen already."""
    shape = info.output_shape if shape is None else shape
    if len(shape) != 4 or shape[0] != 1 or info.image is None or len(info.outputs) != 1:
        return None
    sides = (info.height, info.width)
    first = shape[2:] == sides or (shape[1:3] != sides and info.layout == "NCHW")
    axis = 1 if first else 3
    pixels = shape[2] * (shape[3] if first else shape[1])
    return axis if shape[axis] > 1 and pixels > 1 else None


def with_fixed_names(model: ModelProto) -> ModelProto:
    """A new model; a tensor that has one of these names already is renamed. Boards know floats of
    four bytes and whole numbers of four: other types are cast at the ends of the graph."""
    import onnx

    named = onnx.ModelProto()
    named.CopyFrom(model)
    graph = named.graph
    _narrow(graph)
    sources = dlc_names(DLC_INPUT, len(graph.input))
    targets = dlc_names(DLC_OUTPUT, len(graph.output))
    end_names = [value.name for value in (*graph.input, *graph.output)]
    for name in {*sources, *targets, DLC_CLASSES} - set(end_names):
        _rename(graph, name, f"{name}_inside")
    # By way of names that no tensor has: an input may be called `output`.
    passing = [f"__end_{number}__" for number in range(len(end_names))]
    for old, new in [
        *zip(end_names, passing, strict=True),
        *zip(passing, sources + targets, strict=True),
    ]:
        _rename(graph, old, new)
    return named


def with_class_output(model: ModelProto, axis: int, in_bytes: bool = True) -> ModelProto:
    """A new model from one with fixed names. `in_bytes` asks for uint8 where the classes fit."""
    import onnx
    from onnx import TensorProto, helper

    classifying = onnx.ModelProto()
    classifying.CopyFrom(model)
    graph = classifying.graph
    output = graph.output[0]
    shape = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
    kind, chosen = TensorProto.INT64, DLC_CLASSES
    narrow = in_bytes and shape[axis] <= _MOST_IN_A_BYTE
    if narrow:
        kind, chosen = TensorProto.UINT8, "classes_wide"
        _rename(graph, chosen, f"{chosen}_inside")
    graph.node.append(
        helper.make_node("ArgMax", [DLC_OUTPUT], [chosen], name="classes", axis=axis, keepdims=0)
    )
    if narrow:
        graph.node.append(
            helper.make_node("Cast", [chosen], [DLC_CLASSES], name="classes_in_bytes", to=kind)
        )
    del shape[axis]
    output.CopyFrom(helper.make_tensor_value_info(DLC_CLASSES, kind, shape))
    return classifying


def _narrow(graph: GraphProto) -> None:
    """In place: ends of other types than float and int32 get a Cast."""
    from onnx import TensorProto, helper

    floats = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
    for values, is_input in ((graph.input, True), (graph.output, False)):
        for value in values:
            original = value.type.tensor_type.elem_type
            kind = TensorProto.FLOAT if original in floats else TensorProto.INT32
            if original in (TensorProto.FLOAT, TensorProto.INT32):
                continue
            inside = f"{value.name}_as_it_was"
            _rename_uses(graph, value.name, inside)
            source, target = (value.name, inside) if is_input else (inside, value.name)
            to = original if is_input else kind
            cast = helper.make_node("Cast", [source], [target], name=inside, to=to)
            graph.node.insert(0 if is_input else len(graph.node), cast)
            value.type.tensor_type.elem_type = kind


def _rename(graph: GraphProto, old: str, new: str) -> None:
    _rename_uses(graph, old, new)
    ends: tuple[Sequence[ValueInfoProto], ...] = (graph.input, graph.output, graph.value_info)
    for values in ends:
        for value in values:
            if value.name == old:
                value.name = new
    for tensor in graph.initializer:
        if tensor.name == old:
            tensor.name = new


def _rename_uses(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new
