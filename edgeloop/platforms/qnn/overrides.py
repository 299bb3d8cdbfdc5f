"""How the weights of each operator are quantized: what the compiler takes, found by asking it.

`a8w8-per-channel` and `a16w8` mean signed weights with a scale per output channel. The compiler
takes them for convolutions, Gemm, and MatMul by a matrix. It refuses a LayerNormalization whose
weights are signed, at every precision; with unsigned weights it takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto

_UNSIGNED = frozenset(("LayerNormalization", "InstanceNormalization", "GroupNormalization"))

Overrides = dict[str, list[dict[str, Any]]]


def weight_overrides(model: ModelProto, is_per_channel: bool) -> Overrides:
    """For ONNX Runtime's quantizer, by the name of the weights. A matrix that something else than
    MatMul reads, too, such as an embedding, keeps one scale, which every operator takes."""
    from onnxruntime.quantization import QuantType

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    unsigned = {"quant_type": QuantType.QUInt8, "symmetric": False}
    per_column = {"quant_type": QuantType.QInt8, "symmetric": True, "axis": 1}
    overrides: Overrides = {}
    elsewhere = {
        name
        for node in model.graph.node
        for place, name in enumerate(node.input)
        if (node.op_type, place) != ("MatMul", 1)
    }
    for node in model.graph.node:
        name = node.input[1] if len(node.input) > 1 else ""
        if name not in weights:
            continue
        if node.op_type in _UNSIGNED:
            overrides[name] = [unsigned]
        elif is_per_channel and name not in elsewhere and len(weights[name].dims) == 2:
            overrides[name] = [per_column]
    return overrides
