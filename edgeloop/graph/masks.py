"""Masks of attention: constants so negative that a Softmax turns what they are added to into 0.

Exporters write the lowest float, or minus infinity. Quantized, one such value leaves no steps for
all others, and every word gets the same attention; so a quantized model has smaller ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_LARGEST = -1000.0  # what is above is a number like others
_ON_THE_WAY = frozenset(
    (
        *("Add", "Mul", "Max", "Min", "Where", "Cast", "Concat", "Gather", "Slice"),
        *("Expand", "Tile", "Reshape", "Squeeze", "Unsqueeze", "Transpose"),
    )
)


def mask_constants(graph: GraphProto) -> list[TensorProto]:
    """Constants with very low values that reach nothing but Softmax."""
    from onnx import numpy_helper

    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {output.name for output in graph.output}
    found = []
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        is_low = values.dtype.kind == "f" and values.size and values.min() < _LARGEST
        if is_low and _ends_in_softmax(tensor.name, readers, outputs):
            found.append(tensor)
    return found


def soften_masks(graph: GraphProto, lowest: float) -> None:
    """In place: masks no lower than `lowest`, for a graph that will be quantized."""
    import numpy as np
    from onnx import numpy_helper

    for tensor in mask_constants(graph):
        values = numpy_helper.to_array(tensor)
        softer = np.maximum(values, np.array(lowest, values.dtype))
        tensor.CopyFrom(numpy_helper.from_array(softer, tensor.name))


def _ends_in_softmax(
    name: str, readers: Mapping[str, Sequence[NodeProto]], outputs: set[str]
) -> bool:
    waiting, seen = [name], {name}
    while waiting:
        current = waiting.pop()
        if current in outputs or current not in readers:
            return False
        for node in readers[current]:
            if node.op_type in ("Softmax", "LogSoftmax"):
                continue
            if node.op_type not in _ON_THE_WAY:
                return False
            new = set(node.output) - seen
            seen |= new
            waiting.extend(new)
    return True
