"""How the weights of single operators are quantized: what the compiler takes, found by asking it.

`a8w8-per-channel` and `a16w8` mean signed weights, with a scale per output channel where an
operator has channels. Convolutions and Gemm take them (a MatMul with constant weights is a Gemm by
now). A LayerNormalization with signed weights is refused at every precision, and with unsigned ones
it is taken; unsigned weights of the other normalizations are more accurate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto

_UNSIGNED = frozenset(("LayerNormalization", "InstanceNormalization"))

_LARGEST = 127
_SMALLEST_SCALE = 1e-8

Overrides = dict[str, list[dict[str, Any]]]


def weight_overrides(model: ModelProto) -> Overrides:
    """For ONNX Runtime's quantizer, by the name of the weights."""
    from onnxruntime.quantization import QuantType

    weights = {tensor.name for tensor in model.graph.initializer}
    gains = (node.input[1] for node in model.graph.node if node.op_type in _UNSIGNED)
    unsigned = {"quant_type": QuantType.QUInt8, "symmetric": False}
    return {name: [dict(unsigned)] for name in gains if name in weights}


def kernel_scales(model: ModelProto) -> Overrides:
    """A scale per channel for the kernels of convolutions, all channels at once: ONNX Runtime takes
    them one by one, which is most of the time where nothing is calibrated."""
    import numpy as np
    from onnx import numpy_helper
    from onnxruntime.quantization import QuantType

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    kernels = {n.input[1] for n in model.graph.node if n.op_type == "Conv"} & set(weights)
    common = {"quant_type": QuantType.QInt8, "axis": 0, "zero_point": np.array(0, np.int8)}
    overrides: Overrides = {}
    for name in kernels:
        values = numpy_helper.to_array(weights[name])
        largest = np.abs(values).reshape(len(values), -1).max(axis=1)
        scales = np.maximum(largest / _LARGEST, _SMALLEST_SCALE).astype(np.float32)
        overrides[name] = [{**common, "scale": scale} for scale in scales]
    return overrides
