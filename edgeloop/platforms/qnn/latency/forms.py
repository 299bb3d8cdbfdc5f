"""The number format of a quantized model, by which its profile is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

MIXED = "mixed"
_MOVING = ("QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape", "Squeeze", "Unsqueeze")


def form_of(model: ModelProto) -> str:
    """`w8a8`, `w8a16`, `float` where nothing is quantized, or `mixed` where activations of 8 and of
    16 bits or weights of 4 bits occur: no published figures are of such models."""
    share = wide_share(model)
    if share is None:
        return "float"
    if 0 < share < 1 or _has_narrow_weights(model):
        return MIXED
    return "w8a16" if share else "w8a8"


def wide_share(model: ModelProto) -> float | None:
    """The share of quantized activations with 16 bits; None: there are no quantized ones. Inputs
    count only where there is nothing else: pixels have 8 bits in every format."""
    from onnx import TensorProto

    zero_points = {one.name: one.data_type for one in model.graph.initializer}
    given = {source.name for source in model.graph.input}
    inputs: list[bool] = []
    inner: list[bool] = []
    for node in model.graph.node:
        is_given = bool(node.input) and node.input[0] in given
        if is_given and node.op_type in _MOVING:
            given.update(node.output)
        if node.op_type == "QuantizeLinear":
            kind = zero_points.get(node.input[2]) if len(node.input) > 2 else TensorProto.UINT8
            is_wide = kind in (TensorProto.UINT16, TensorProto.INT16)
            (inputs if is_given else inner).append(is_wide)
    counted = inner or inputs
    return sum(counted) / len(counted) if counted else None


def _has_narrow_weights(model: ModelProto) -> bool:
    from onnx import TensorProto

    narrow = (TensorProto.INT4, TensorProto.UINT4)
    return any(one.data_type in narrow for one in model.graph.initializer)
