"""The graph that would be deployed, from a quantized model with float inputs and outputs.

A camera gives bytes, channel last, and whoever reads the results wants bytes too. So the deployed
graph takes and gives uint8 (uint16 where activations are 16 bits), images channel last; its first
and last conversions, which cost more than many a layer, are gone. The compiler's estimate is only
right for this graph: with float, channel-first ends the error nearly triples. Whole numbers have 32
bits, since the chip has no int64. An output that needs no computing, such as a table of anchors, is
left out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgeloop.errors import ModelFailed, ModelRefused
from edgeloop.graph.count import count_layers
from edgeloop.graph.info import Layout

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


OutputForm = Literal["logits", "classes"]

_TO_CHANNEL_FIRST = (0, 3, 1, 2)
_TO_CHANNEL_LAST = (0, 2, 3, 1)
_INPUT_SCALE = 1 / 255
_MOVING = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")  # values stay as they are


def deployed(
    quantized: ModelProto, layouts: Mapping[str, Layout], output: OutputForm = "logits"
) -> ModelProto:
    """A new model; `layouts` has those of the inputs that are images. `classes` ends it in ArgMax
    over the classes (int32: the chip has no int64)."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(quantized)
    _leave_out_unused(model.graph)
    for source in model.graph.input:
        layout = layouts.get(source.name, "")
        if layout:
            _take_pixels(model.graph, source, layout)
        else:
            _take_tensor(model.graph, source)
    is_channel_first = "NCHW" in layouts.values()
    if output == "classes":
        _give_classes(model.graph, is_channel_first)
        return model
    _leave_out_constants(model.graph)
    for target in model.graph.output:
        _give_tensor(model.graph, target, is_channel_first)
    return model


def _take_pixels(graph: GraphProto, source: ValueInfoProto, layout: Layout) -> None:
    """uint8 pixels with scale 1/255 in front of the input's own QuantizeLinear."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    shape = _shape(source)
    readers = _readers(graph, source.name)
    pixels = _fresh(graph, f"{source.name}_pixels")
    scale, zero = f"{pixels}_scale", f"{pixels}_zero"
    graph.initializer.append(numpy_helper.from_array(np.array(_INPUT_SCALE, np.float32), scale))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.uint8), zero))
    moved = _fresh(graph, f"{source.name}_moved")
    front = [helper.make_node("DequantizeLinear", [pixels, scale, zero], [moved], name=moved)]
    if layout == "NCHW":
        shape = [shape[0], shape[2], shape[3], shape[1]]
        first = _fresh(graph, f"{source.name}_channel_first")
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
    _put_in_front(graph, front)
    source.CopyFrom(helper.make_tensor_value_info(pixels, TensorProto.UINT8, shape))


def _take_tensor(graph: GraphProto, source: ValueInfoProto) -> None:
    """Floats as the bytes that the graph makes of them first; int64 as int32; others as they are,
    and floats that nothing quantizes too."""
    from onnx import TensorProto, helper

    kind = source.type.tensor_type.elem_type
    if kind == TensorProto.INT64:
        narrow, name = _fresh(graph, f"{source.name}_int32"), source.name
        _put_in_front(graph, [helper.make_node("Cast", [narrow], [name], name=narrow, to=kind)])
        shape = _shape(source)
        source.CopyFrom(helper.make_tensor_value_info(narrow, TensorProto.INT32, shape))
    quantizer = _first_quantizer(graph, source.name) if kind == TensorProto.FLOAT else None
    if quantizer is None:
        return
    given, scales = _fresh(graph, f"{source.name}_bytes"), list(quantizer.input[1:])
    for node in _readers(graph, source.name):
        if node.op_type == "QuantizeLinear" and list(node.input[1:]) == scales:
            _rename_inputs(graph, node.output[0], given)
            graph.node.remove(node)
    if _readers(graph, source.name):
        maker = helper.make_node(
            "DequantizeLinear", [given, *scales], [source.name], given, domain=quantizer.domain
        )
        _put_in_front(graph, [maker])
    kind = _kind_of(graph, scales[1])
    source.CopyFrom(helper.make_tensor_value_info(given, kind, _shape(source)))


def _leave_out_unused(graph: GraphProto) -> None:
    read = {name for node in graph.node for name in node.input}
    unused = [source for source in graph.input if source.name not in read]
    for source in unused:
        graph.input.remove(source)


def _leave_out_constants(graph: GraphProto) -> None:
    """Outputs that are weights or inputs, moved or not: nothing computes them."""
    makers = _makers(graph)
    idle = (*_MOVING, "QuantizeLinear", "DequantizeLinear", "Cast", "Identity")

    def is_computed(name: str) -> bool:
        while (node := makers.get(name)) is not None and node.op_type in idle:
            name = node.input[0]
        return node is not None

    computed = [output for output in graph.output if is_computed(output.name)]
    if not computed:
        raise ModelRefused(reason="it computes nothing: its outputs are constants, or its inputs")
    if len(computed) < len(graph.output):
        del graph.output[:]
        graph.output.extend(computed)


def _give_tensor(graph: GraphProto, output: ValueInfoProto, is_channel_first: bool) -> None:
    """The bytes of an output in place of its floats; int64 as int32."""
    from onnx import TensorProto, helper

    kind, shape = output.type.tensor_type.elem_type, _shape(output)
    if kind == TensorProto.INT64:
        narrow = _fresh(graph, f"{output.name}_int32")
        graph.node.append(
            helper.make_node("Cast", [output.name], [narrow], name=narrow, to=TensorProto.INT32)
        )
        output.CopyFrom(helper.make_tensor_value_info(narrow, TensorProto.INT32, shape))
    last, is_at_end = _last_dequantize(graph, output.name)
    if kind != TensorProto.FLOAT or last is None:
        return
    name = last.input[0]
    moves = is_channel_first and len(shape) == 4
    is_given = name in (other.name for other in graph.output)
    if moves or is_given or not is_at_end:
        moved, name = output.name, _fresh(graph, f"{output.name}_bytes")
        if moves:
            shape = [shape[0], shape[2], shape[3], shape[1]]
            moved = _fresh(graph, f"{output.name}_channel_last")
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
    elif not _readers(graph, output.name):
        graph.node.remove(last)
    output.CopyFrom(helper.make_tensor_value_info(name, _kind_of(graph, last.input[2]), shape))


def _give_classes(graph: GraphProto, is_channel_first: bool) -> None:
    """ArgMax of the quantized logits equals that of the float ones; its int64 becomes int32."""
    from onnx import TensorProto, helper

    output = graph.output[0]
    shape = _shape(output)
    axis = 3 if not is_channel_first and len(shape) == 4 else 1
    wide, name = (_fresh(graph, f"{output.name}_{end}") for end in ("int64", "classes"))
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


def _first_quantizer(graph: GraphProto, name: str) -> NodeProto | None:
    """The QuantizeLinear that reads a tensor, or what only moves its values."""
    names = {name}
    quantizer: NodeProto | None = None
    for node in graph.node:
        if not node.input or node.input[0] not in names:
            continue
        if node.op_type == "QuantizeLinear":
            quantizer = node
            break
        if node.op_type in _MOVING:
            names.add(node.output[0])
    return quantizer


def _last_dequantize(graph: GraphProto, name: str) -> tuple[NodeProto | None, bool]:
    """The DequantizeLinear that makes an output, and whether nothing moves values behind it."""
    makers = _makers(graph)
    node = makers.get(name)
    is_at_end = True
    while node is not None and node.op_type in _MOVING:
        node, is_at_end = makers.get(node.input[0]), False
    if node is None or node.op_type != "DequantizeLinear":
        return None, False
    return node, is_at_end


def _makers(graph: GraphProto) -> dict[str, NodeProto]:
    return {name: node for node in graph.node for name in node.output}


def _readers(graph: GraphProto, name: str) -> list[NodeProto]:
    return [node for node in graph.node if name in node.input]


def _rename_inputs(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new


def _put_in_front(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    for node in reversed(list(nodes)):
        graph.node.insert(0, node)


def _fresh(graph: GraphProto, name: str) -> str:
    """A name that no tensor and no node has yet: this one, or one with a line behind it."""
    named = (*graph.input, *graph.output, *graph.initializer, *graph.node)
    taken = {one.name for one in named} | {n for node in graph.node for n in node.output}
    while name in taken:
        name += "_"
    return name


def _kind_of(graph: GraphProto, zero_point: str) -> int:
    return next(int(t.data_type) for t in graph.initializer if t.name == zero_point)


def _shape(value: ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


# Graphs that are split between the chip and the CPU: which part runs where, and what that costs.
#
# Only with `--allow-cpu-fallback`. The compiler knows the time of the chip's parts; nobody here
# knows that of the CPU's, nor of the ways between, so the latency is that of the chip's parts and
# says so.


_CONVERTING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Division:
    """`layers` are (operator, layer) pairs that run on the CPU, `share` is theirs of all MACs."""

    parts: int
    layers: tuple[tuple[str, str], ...]
    share: float = 0.0

    def __str__(self) -> str:
        named = ", ".join(f"{kind} {name!r}" for kind, name in self.layers[:5])
        more = f" and {len(self.layers) - 5} more" if len(self.layers) > 5 else ""
        return (
            f"{named}{more} run on the CPU ({100 * self.share:.1f} % of the MACs), the rest in "
            f"{self.parts} parts on the chip: the latency is that of these parts alone."
        )


def division(session: Any, model: ModelProto, provider: str) -> Division:
    """How a session divides a model; it must have recorded that."""
    import onnx

    parts = session.get_provider_graph_assignment_info()
    layers = tuple(
        (node.op_type, node.name)
        for part in parts
        if part.ep_name != provider
        for node in part.get_nodes()
        if node.op_type not in _CONVERTING
    )
    counted = count_layers(onnx.shape_inference.infer_shapes(model))
    total = sum(layer.macs for layer in counted)
    names = {name for _, name in layers}
    own = sum(layer.macs for layer in counted if layer.name in names)
    count = sum(part.ep_name == provider for part in parts)
    return Division(count, layers, own / total if total else 0.0)


def events_of(profile: Path, parts: int, added: Sequence[str]) -> Mapping[str, float]:
    """What the compiler says of a graph; `added` are the events that add up over several parts.

    With every part that it compiles it writes all parts so far once more; the last ones are all.
    """
    with profile.open(newline="") as file:
        rows = [(row["Event Identifier"], row["Time"]) for row in csv.DictReader(file)]
    events = {name: float(value) for name, value in rows if name in added}
    if parts <= 1:
        return events
    for name in events:
        values = [float(value) for event, value in rows if event == name]
        if len(values) != parts * (parts + 1) // 2:
            reason = "the compiler gives no estimate of all parts of a graph that is split"
            raise ModelFailed(reason=reason)
        events[name] = sum(values[-parts:])
    return events
