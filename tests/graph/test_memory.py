"""Memory of quantized graphs, against sums by hand."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeloop.graph.count import DeployedMemory, deployed_memory

SIDE = 16
PIXELS = SIDE * SIDE


def _constant(name: str, value: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(value, name)


def _quantized(name: str, kind: type, domain: str) -> list[onnx.NodeProto]:
    """QuantizeLinear and DequantizeLinear behind the tensor `name`."""
    scale, zero = "scale", f"zero_{kind.__name__}"
    return [
        helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name}_q"], domain=domain),
        helper.make_node(
            "DequantizeLinear", [f"{name}_q", scale, zero], [f"{name}_d"], domain=domain
        ),
    ]


def residual(wide: bool, domain: str = "") -> onnx.ModelProto:
    """image → Conv, Relu (no quantizers between) → Conv → Add with the first → output. The
    second convolution's result has 16 bits where `wide`."""
    kind = np.uint16 if wide else np.uint8
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        *_quantized("image", np.uint8, domain),
        helper.make_node("DequantizeLinear", ["w1", "scale", "zero_int8"], ["w1_d"], domain=domain),
        helper.make_node("Conv", ["image_d", "w1_d"], ["made"], **conv),
        helper.make_node("Relu", ["made"], ["first"]),
        *_quantized("first", np.uint8, domain),
        helper.make_node("DequantizeLinear", ["w2", "scale", "zero_int8"], ["w2_d"], domain=domain),
        helper.make_node("Conv", ["first_d", "w2_d"], ["second"], **conv),
        *_quantized("second", kind, domain),
        helper.make_node("Add", ["first_d", "second_d"], ["sum"]),
        *_quantized("sum", np.uint8, domain)[:1],
        helper.make_node(
            "DequantizeLinear", ["sum_q", "scale", "zero_uint8"], ["out"], domain=domain
        ),
    ]
    constants = [
        _constant("scale", np.array(0.1, np.float32)),
        *(_constant(f"zero_{k.__name__}", np.array(0, k)) for k in (np.uint8, np.int8, np.uint16)),
        _constant("w1", np.zeros((8, 3, 3, 3), np.int8)),
        _constant("w2", np.zeros((8, 8, 3, 3), np.int8)),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 8, SIDE, SIDE])
    graph = helper.make_graph(nodes, "residual", [image], [out], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def test_each_tensor_counts_once_and_in_the_type_it_is_quantized_to():
    """The most is alive while both operands of the sum and its result are there; weights are
    counted without scales. Nothing between a convolution and its Relu is stored."""
    weights = 8 * 3 * 9 + 8 * 8 * 9
    for domain in ("", "com.microsoft"):
        narrow = deployed_memory(residual(wide=False, domain=domain))
        wide = deployed_memory(residual(wide=True, domain=domain))
        assert narrow == DeployedMemory(weights, 3 * 8 * PIXELS)
        assert wide == DeployedMemory(weights, (8 + 2 * 8 + 8) * PIXELS)


def test_a_tensor_that_the_cpu_gets_as_a_float_counts_as_one():
    model = residual(wide=False)
    model.graph.output.append(
        helper.make_tensor_value_info("second", TensorProto.FLOAT, [1, 8, SIDE, SIDE])
    )
    found = deployed_memory(model)
    assert found is not None
    assert found.peak_bytes == (8 + 4 * 8 + 8 + 8) * PIXELS


def test_without_shapes_nothing_is_claimed():
    model = residual(wide=False)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    assert deployed_memory(model) is None
