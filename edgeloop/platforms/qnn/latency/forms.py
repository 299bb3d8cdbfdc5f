"""The number format of a quantized model, by which its profile is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto


def form_of(model: ModelProto) -> str:
    """`w8a8`, `w8a16` where most activations have 16 bits, or `float` where none is quantized."""
    from onnx import TensorProto

    zero_points = {one.name: one.data_type for one in model.graph.initializer}
    types = [
        zero_points.get(node.input[2]) if len(node.input) > 2 else TensorProto.UINT8
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    ]
    if not types:
        return "float"
    wide = sum(one in (TensorProto.UINT16, TensorProto.INT16) for one in types)
    return "w8a16" if 2 * wide > len(types) else "w8a8"
