"""One type of floats: compilers and quantizers want float32, whatever a model was saved in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgeloop.graph.reading.external_data import all_tensors

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

# Attributes that name the type of a result or of the numbers in between.
_TYPE_ATTRIBUTES = frozenset(("to", "dtype", "stash_type", "softmax_precision"))


def has_other_floats(model: ModelProto) -> bool:
    """Whether anything in it is a float of 16 or 64 bits."""
    others = _others()
    if any(tensor.data_type in others for tensor in all_tensors(model)):
        return True
    graphs = list(_graphs(model.graph))
    ends = [value for graph in graphs for value in (*graph.input, *graph.output)]
    nodes = [node for owner in (*graphs, *model.functions) for node in owner.node]
    return any(value.type.tensor_type.elem_type in others for value in ends) or any(
        _is_other(attribute) for node in nodes for attribute in node.attribute
    )


def to_float32(model: ModelProto) -> None:
    """In place; the model has no functions. The same function up to rounding."""
    from onnx import TensorProto

    others = _others()
    for tensor in all_tensors(model):
        if tensor.data_type in others:
            _convert(tensor)
    for graph in _graphs(model.graph):
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in others:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for attribute in (a for node in graph.node for a in node.attribute):
            if _is_other(attribute):
                attribute.i = TensorProto.FLOAT


def pass_empty_casts(graph: GraphProto) -> None:
    """Casts to the type that a tensor has already become Identity; needs inferred types."""
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Cast" and types.get(node.input[0]) == _target(node):
            node.op_type = "Identity"
            del node.attribute[:]


def _target(node: NodeProto) -> int:
    return next((int(a.i) for a in node.attribute if a.name == "to"), -1)


def _convert(tensor: TensorProto) -> None:
    """What is finite stays finite: masks often hold the lowest number of their type."""
    import numpy as np
    from onnx import numpy_helper

    values = numpy_helper.to_array(tensor)
    limits = np.finfo(np.float32)
    if values.dtype == np.float64:
        values = np.where(np.isfinite(values), values.clip(limits.min, limits.max), values)
    tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))


def _others() -> tuple[int, ...]:
    from onnx import TensorProto

    return (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def _is_other(attribute: AttributeProto) -> bool:
    return attribute.name in _TYPE_ATTRIBUTES and attribute.i in _others()


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and those inside of it."""
    yield graph
    for attribute in (a for node in graph.node for a in node.attribute):
        for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            yield from _graphs(inner)
