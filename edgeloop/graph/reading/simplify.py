"""Simplifies a graph for compilers: removes what exporters leave behind.

Constants as nodes, weights shared through Identity or listed as inputs, batch norms beside their
convolution, zeros around an image as a layer of their own, nodes without a name, class maps of 64
bits: compilers refuse each of them or quantize it badly, and none of them is necessary.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto


def simplify(graph: GraphProto) -> None:
    """In place. The model computes the same as before, except for int32 instead of int64."""
    _constants_to_initializers(graph)
    _drop_identities(graph)
    _fold_batch_norms(graph)
    _fold_pads(graph)
    _separate_shared_biases(graph)
    weights = {tensor.name for tensor in graph.initializer}
    real = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(real)
    _drop_unused_weights(graph)
    _name_nodes(graph)
    _narrow_output(graph)


def _constants_to_initializers(graph: GraphProto) -> None:
    kept: list[NodeProto] = []
    for node in graph.node:
        tensor = _constant(node) if node.op_type == "Constant" else None
        if tensor is None:
            kept.append(node)
            continue
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    _replace_nodes(graph, kept)


def _constant(node: NodeProto) -> TensorProto | None:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.name == "value":
            copy = onnx.TensorProto()
            copy.CopyFrom(value)
            return copy
        if attribute.name in ("value_float", "value_floats"):
            return numpy_helper.from_array(np.asarray(value, dtype=np.float32))
        if attribute.name in ("value_int", "value_ints"):
            return numpy_helper.from_array(np.asarray(value, dtype=np.int64))
    return None


def _drop_identities(graph: GraphProto) -> None:
    outputs = {value.name for value in graph.output}
    renamed: dict[str, str] = {}
    kept: list[NodeProto] = []
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        passes = node.op_type == "Identity" or (node.op_type == "Dropout" and len(node.output) == 1)
        if passes and node.output[0] not in outputs:
            renamed[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    _replace_nodes(graph, kept)


def _fold_batch_norms(graph: GraphProto) -> None:
    """A batch norm behind a convolution becomes part of its weights: one rounding less."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    makers = {node.output[0]: node for node in graph.node if node.op_type == "Conv"}
    readers = Counter(name for node in graph.node for name in node.input)
    ends = {value.name for value in graph.output}
    kept: list[NodeProto] = []
    for node in graph.node:
        conv = makers.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        foldable = (
            conv is not None
            and len(node.output) == 1
            and readers[conv.output[0]] == 1
            and conv.output[0] not in ends
            and all(name in weights for name in (*conv.input[1:], *node.input[1:]))
        )
        if conv is not None and foldable:
            _fold(graph, conv, node, weights)
        else:
            kept.append(node)
    _replace_nodes(graph, kept)


def _fold(
    graph: GraphProto, conv: NodeProto, norm: NodeProto, weights: dict[str, TensorProto]
) -> None:
    import numpy as np
    from onnx import numpy_helper

    kernel, *rest = (numpy_helper.to_array(weights[name]) for name in conv.input[1:])
    gain, shift, mean, variance = (numpy_helper.to_array(weights[n]) for n in norm.input[1:])
    epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
    factor = gain / np.sqrt(variance + epsilon)
    bias = (rest[0] if rest else 0) - mean
    names = f"{norm.output[0]}_kernel", f"{norm.output[0]}_bias"
    folded = kernel * factor.reshape(-1, *[1] * (kernel.ndim - 1)), bias * factor + shift
    for name, values in zip(names, folded, strict=True):
        graph.initializer.append(numpy_helper.from_array(values.astype(kernel.dtype), name))
    del conv.input[1:]
    conv.input.extend(names)
    conv.output[0] = norm.output[0]


def _fold_pads(graph: GraphProto) -> None:
    """Zeros put around an image for convolutions alone are padding of those convolutions."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    ends = {value.name for value in graph.output}
    gone: set[str] = set()
    for pad in [node for node in graph.node if node.op_type == "Pad"]:
        name, added = pad.output[0], _zeros_around(pad, weights)
        readers = [node for node in graph.node if name in node.input]
        if added is None or name in ends or not all(_is_padded(node, name) for node in readers):
            continue
        for conv in readers:
            _pad(conv, added)
            conv.input[0] = pad.input[0]
        gone.add(name)
    if gone:
        _replace_nodes(graph, [node for node in graph.node if node.output[0] not in gone])


def _is_padded(node: NodeProto, name: str) -> bool:
    """Whether it is a convolution of this image that says its padding itself."""
    auto = next((a.s for a in node.attribute if a.name == "auto_pad"), b"NOTSET")
    return node.op_type == "Conv" and node.input[0] == name and auto == b"NOTSET"


def _pad(conv: NodeProto, added: list[int]) -> None:
    from onnx import helper

    own = next((list(a.ints) for a in conv.attribute if a.name == "pads"), [0] * len(added))
    rest = [attribute for attribute in conv.attribute if attribute.name != "pads"]
    both = [a + b for a, b in zip(added, own, strict=True)]
    del conv.attribute[:]
    conv.attribute.extend([*rest, helper.make_attribute("pads", both)])


def _zeros_around(pad: NodeProto, weights: dict[str, TensorProto]) -> list[int] | None:
    """How many before each side of the image and then how many behind, if it adds zeros there and
    nothing else."""
    from onnx import numpy_helper

    mode = next((a.s for a in pad.attribute if a.name == "mode"), b"constant")
    names = [name for name in pad.input[1:] if name]
    if mode != b"constant" or not names or not all(name in weights for name in names):
        return None
    amounts, *others = (numpy_helper.to_array(weights[name]) for name in names)
    values = [int(amount) for amount in amounts]
    before, behind = values[: len(values) // 2], values[len(values) // 2 :]
    is_plain = min(values, default=-1) >= 0 and not any((*before[:2], *behind[:2]))
    if not is_plain or len(pad.input) > 3 or any(other.any() for other in others):
        return None
    return before[2:] + behind[2:]


def _separate_shared_biases(graph: GraphProto) -> None:
    """A bias gets the scale of its own convolution, so two convolutions cannot share one."""
    import onnx

    weights = {tensor.name: tensor for tensor in graph.initializer}
    seen: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.input) < 3:
            continue
        name = node.input[2]
        if name in weights and seen[name]:
            copy = onnx.TensorProto()
            copy.CopyFrom(weights[name])
            copy.name = f"{name}_{seen[name]}"
            graph.initializer.append(copy)
            node.input[2] = copy.name
        seen[name] += 1


def _name_nodes(graph: GraphProto) -> None:
    used: set[str] = set()
    for number, node in enumerate(graph.node):
        if not node.name or node.name in used:
            node.name = f"{node.op_type}_{number}"
        used.add(node.name)


def _narrow_output(graph: GraphProto) -> None:
    """A graph that ends in int64 compiles and then fails on the chip: it ends in int32 instead."""
    from onnx import TensorProto, helper

    for output in graph.output:
        if output.type.tensor_type.elem_type != TensorProto.INT64:
            continue
        wide = f"{output.name}_int64"
        for node in graph.node:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name == output.name:
                        names[index] = wide
        cast = helper.make_node("Cast", [wide], [output.name], name=wide, to=TensorProto.INT32)
        graph.node.append(cast)
        output.type.tensor_type.elem_type = TensorProto.INT32


def _drop_unused_weights(graph: GraphProto) -> None:
    used = {name for node in graph.node for name in node.input}
    used |= {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)


def _replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    del graph.node[:]
    graph.node.extend(nodes)
