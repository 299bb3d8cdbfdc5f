"""A float graph with fixed names for its input and output, and with logits or classes as output.

Boards name files after a model's outputs, so outputs are called `output` or `classes` whatever the
exporter called them. F1 needs only the class of every pixel; a graph that ends in ArgMax returns
one byte per pixel instead of a float for every class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeloop.graph.info import GraphInfo, Shape

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

DLC_INPUT = "input"
DLC_OUTPUT = "output"
DLC_CLASSES = "classes"
_MOST_IN_A_BYTE = 256


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
    """A new model; a tensor that has one of these names already is renamed."""
    import onnx

    named = onnx.ModelProto()
    named.CopyFrom(model)
    graph = named.graph
    source, target = graph.input[0].name, graph.output[0].name
    for name in (DLC_INPUT, DLC_OUTPUT, DLC_CLASSES):
        if name not in (source, target):
            _rename(graph, name, f"{name}_inside")
    # Both by way of names that nobody has: the input may be called `output`.
    _rename(graph, source, "__source__")
    _rename(graph, target, "__target__")
    _rename(graph, "__source__", DLC_INPUT)
    _rename(graph, "__target__", DLC_OUTPUT)
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


def _rename(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        for value in values:
            if value.name == old:
                value.name = new
