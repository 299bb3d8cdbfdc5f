"""The graph that would be deployed, from a quantized model with float input and output.

A camera gives bytes, channel last, and whoever reads the result wants bytes too. So the deployed
graph takes and gives uint8 (uint16 outputs where activations are 16 bits), channel last; its
first and last conversions, which cost more than many a layer, are gone. The compiler's estimate is
only right for this graph: with float, channel-first ends the error nearly triples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from edgeloop.errors import ModelRefused

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

OutputForm = Literal["logits", "classes"]

_TO_CHANNEL_FIRST = (0, 3, 1, 2)
_TO_CHANNEL_LAST = (0, 2, 3, 1)
_INPUT_SCALE = 1 / 255
_MOVING = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")  # values stay as they are


def deployed(
    quantized: ModelProto, layout: str = "NCHW", output: OutputForm = "logits"
) -> ModelProto:
    """A new model; `classes` ends it in ArgMax over the classes (int32: the chip has no int64)."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(quantized)
    _take_bytes(model.graph, layout)
    if output == "classes":
        _give_classes(model.graph, layout)
    else:
        _give_bytes(model.graph, layout)
    return model


def _take_bytes(graph: GraphProto, layout: str) -> None:
    """uint8 pixels with scale 1/255 in front of the input's own QuantizeLinear."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    source = graph.input[0]
    shape = [dim.dim_value for dim in source.type.tensor_type.shape.dim]
    readers = [node for node in graph.node if source.name in node.input]
    if not all(node.op_type in ("QuantizeLinear", *_MOVING) for node in readers):
        raise ModelRefused(reason="its input is not quantized, so no deployed graph can be made")
    pixels = f"{source.name}_pixels"
    scale, zero = f"{pixels}_scale", f"{pixels}_zero"
    graph.initializer.append(numpy_helper.from_array(np.array(_INPUT_SCALE, np.float32), scale))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.uint8), zero))
    moved = f"{source.name}_moved"
    front = [helper.make_node("DequantizeLinear", [pixels, scale, zero], [moved], name=moved)]
    if layout == "NCHW":
        shape = [shape[0], shape[2], shape[3], shape[1]]
        first = f"{source.name}_channel_first"
        front.append(
            helper.make_node("Transpose", [moved], [first], name=first, perm=_TO_CHANNEL_FIRST)
        )
        moved = first
    quantizers = [node for node in readers if node.op_type == "QuantizeLinear"]
    _rename_inputs(graph, source.name, moved)
    can_skip = layout == "NHWC" and len(quantizers) == len(readers)
    if can_skip and all(_is_pixel_scale(graph, node) for node in quantizers):
        for node in quantizers:
            _rename_inputs(graph, node.output[0], pixels)
            graph.node.remove(node)
        front = []
    for node in reversed(front):
        graph.node.insert(0, node)
    graph.input[0].CopyFrom(helper.make_tensor_value_info(pixels, TensorProto.UINT8, shape))


def _give_bytes(graph: GraphProto, layout: str) -> None:
    from onnx import TensorProto, helper

    if graph.output[0].type.tensor_type.elem_type == TensorProto.INT32:
        return  # a class map: there is nothing to convert
    last, is_at_end = _last_dequantize(graph)
    if last is None:
        raise ModelRefused(reason="its output is not quantized, so no deployed graph can be made")
    output = graph.output[0]
    shape = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
    name = last.input[0]
    moves = layout == "NCHW" and len(shape) == 4
    if moves or not is_at_end:
        moved, name = output.name, f"{output.name}_bytes"
        if moves:
            shape = [shape[0], shape[2], shape[3], shape[1]]
            moved = f"{output.name}_channel_last"
            move = helper.make_node(
                "Transpose", [output.name], [moved], name=moved, perm=_TO_CHANNEL_LAST
            )
            graph.node.append(move)
        scales = list(last.input[1:])
        graph.node.append(
            helper.make_node(
                "QuantizeLinear", [moved, *scales], [name], name=name, domain=last.domain
            )
        )
    else:
        graph.node.remove(last)
    kind = next(int(t.data_type) for t in graph.initializer if t.name == last.input[2])
    output.CopyFrom(helper.make_tensor_value_info(name, kind, shape))


def _give_classes(graph: GraphProto, layout: str) -> None:
    """ArgMax of the quantized logits equals that of the float ones; its int64 becomes int32."""
    from onnx import TensorProto, helper

    output = graph.output[0]
    shape = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
    axis = 3 if layout == "NHWC" and len(shape) == 4 else 1
    wide, name = f"{output.name}_int64", f"{output.name}_classes"
    graph.node.append(
        helper.make_node("ArgMax", [output.name], [wide], name=wide, axis=axis, keepdims=0)
    )
    graph.node.append(helper.make_node("Cast", [wide], [name], name=name, to=TensorProto.INT32))
    del shape[axis]
    output.CopyFrom(helper.make_tensor_value_info(name, TensorProto.INT32, shape))


def _is_pixel_scale(graph: GraphProto, quantizer: NodeProto) -> bool:
    """Is the input quantized exactly as pixels are? Then they may go in as they are."""
    from onnx import numpy_helper

    values = {t.name: t for t in graph.initializer if t.name in quantizer.input}
    scale, zero = (numpy_helper.to_array(values[name]) for name in quantizer.input[1:3])
    return zero.dtype.name == "uint8" and not zero.any() and abs(float(scale) * 255 - 1) < 1e-6


def _rename_inputs(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new


def _last_dequantize(graph: GraphProto) -> tuple[NodeProto | None, bool]:
    """The DequantizeLinear that makes the output, and whether nothing moves values behind it."""
    makers = {name: node for node in graph.node for name in node.output}
    node = makers.get(graph.output[0].name)
    is_at_end = True
    while node is not None and node.op_type in _MOVING:
        node, is_at_end = makers.get(node.input[0]), False
    if node is None or node.op_type != "DequantizeLinear":
        return None, False
    return node, is_at_end
