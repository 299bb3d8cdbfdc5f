"""Float graphs, and the same graphs quantized by hand: no compiler, no calibration."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper


def constant(name: str, shape: tuple[int, ...]) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def quantized(model: ModelProto, bits: int) -> ModelProto:
    """A quantizer and its opposite behind every tensor; 16 bits by the extension's operators."""
    made = ModelProto()
    made.CopyFrom(model)
    graph, domain = made.graph, "com.microsoft" if bits == 16 else ""
    kind, zero = (np.uint16, "zero16") if bits == 16 else (np.uint8, "zero8")
    nodes, names = [], {}

    def convert(name: str, zero_point: str, domain: str) -> None:
        ends = [["scale", zero_point], [f"{name}_q"], [f"{name}_dq"]]
        if zero_point == zero:
            nodes.append(
                helper.make_node("QuantizeLinear", [name, *ends[0]], ends[1], domain=domain)
            )
        taken = ends[1] if zero_point == zero else [name]
        nodes.append(
            helper.make_node("DequantizeLinear", [*taken, *ends[0]], ends[2], domain=domain)
        )
        names[name] = f"{name}_dq"

    for source in graph.input:
        convert(source.name, zero, domain)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.int8)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
            convert(tensor.name, "zero_weights", "")
    for node in model.graph.node:
        moved = type(node)()
        moved.CopyFrom(node)
        moved.input[:] = [names.get(name, name) for name in node.input]
        nodes.append(moved)
        if node.output[0] not in [end.name for end in graph.output]:
            convert(node.output[0], zero, domain)
    del graph.node[:]
    graph.node.extend(nodes)
    for name, value in (
        ("scale", np.float32(1)),
        (zero, kind(0)),
        ("zero_weights", np.int8(0)),
    ):
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made
