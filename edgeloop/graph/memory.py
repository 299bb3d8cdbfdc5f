"""Memory that a model needs: its weights, and the most activations that are alive at one moment.

Layer by layer in the order of the graph: each tensor is there from the layer that makes it to the
last one that reads it, and no layer works in place. A compiler may do better by another order or in
tiles; the figure is for comparing models, and is the same on every machine.

Of a quantized graph (QuantizeLinear and DequantizeLinear around its layers) each tensor counts
once, in the type it is quantized to, since a chip has it in that type only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.graph.info import GraphMemory, Shape

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_LARGEST_SHAPE = 64  # numbers of a constant that may be sides of a tensor
_FUSED = frozenset(("Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu"))


@dataclass(frozen=True)
class DeployedMemory:
    """Bytes of a model as it was quantized."""

    weight_bytes: int
    peak_bytes: int


def graph_memory(graph: GraphProto) -> GraphMemory:
    """Of a float graph whose shapes are inferred."""
    weights = weights_8bit = 0
    for tensor in graph.initializer:
        count, item, is_float = math.prod(tensor.dims), *_item(tensor.data_type)
        weights += count * item
        is_matrix = is_float and len(tensor.dims) > 1
        weights_8bit += count * (1 if is_matrix else item)  # biases keep 32 bits
    peaks = (_float_peak(graph, size) for size in (None, 1, 2))
    return GraphMemory(weights, weights_8bit, *peaks)


def deployed_memory(
    model: ModelProto, known: Mapping[str, Shape] | None = None
) -> DeployedMemory | None:
    """Of a quantized model; `known` are shapes of its tensors, where its own are not inferred.
    None where some stay unknown."""
    found = _QuantizedGraph(model, known or {})
    if found.has_unknown:
        return None
    return DeployedMemory(found.weight_bytes(), found.peak_bytes())


def _float_peak(graph: GraphProto, size: int | None) -> int:
    """With `size` bytes per float; None: as they are."""
    sizes = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        item, is_float = _item(tensor.elem_type)
        count = math.prod(side.dim_value for side in tensor.shape.dim)
        sizes[value.name] = count * (size if size and is_float else item)
    inputs = [value.name for value in graph.input]
    outputs = [value.name for value in graph.output]
    steps = [(list(node.input), list(node.output)) for node in graph.node]
    return _peak(steps, inputs, outputs, sizes)


def _peak(
    steps: list[tuple[list[str], list[str]]],
    inputs: list[str],
    outputs: list[str],
    sizes: Mapping[str, int],
) -> int:
    """The most bytes that are alive at once, if each tensor goes after its last use."""
    last_use = {name: place for place, (read, _) in enumerate(steps) for name in read}
    last_use |= dict.fromkeys(outputs, len(steps))
    ending: dict[int, list[str]] = {}
    for name, place in last_use.items():
        ending.setdefault(place, []).append(name)
    there = dict.fromkeys(inputs)
    alive = peak = sum(sizes.get(name, 0) for name in there)
    for place, (_, made) in enumerate(steps):
        new = [name for name in dict.fromkeys(made) if name not in there]
        there |= dict.fromkeys(new)
        alive += sum(sizes.get(name, 0) for name in new)
        peak = max(peak, alive)
        unused = [name for name in new if name not in last_use]
        alive -= sum(
            sizes.get(name, 0) for name in (*ending.get(place, ()), *unused) if name in there
        )
    return peak


class _QuantizedGraph:
    """Storage is named by the tensor that a layer makes: what it is quantized to is its type, and
    what is dequantized from it is the same storage."""

    def __init__(self, model: ModelProto, known: Mapping[str, Shape]) -> None:
        graph = model.graph
        self._graph = graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._shapes = _shapes(model, known)
        self._readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._outputs = {value.name for value in graph.output}
        self._types = {
            value.name: value.type.tensor_type.elem_type
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self._storage: dict[str, str] = {}
        self._bits: dict[str, int] = {}
        for value in graph.input:
            self._place(value.name)
        for node in graph.node:
            self._add(node)

    def _add(self, node: NodeProto) -> None:
        source = node.input[0] if node.input else ""
        if node.op_type in (_QUANTIZE, _DEQUANTIZE) and source in self._storage:
            if node.op_type == _QUANTIZE and not self._is_absorbed(source):
                self._storage[node.output[0]] = node.output[0]
                self._bits[node.output[0]] = self._quantized_bits(node)
            else:
                self._storage[node.output[0]] = self._storage[source]
            return
        if node.op_type in (_QUANTIZE, _DEQUANTIZE) and source in self._constants:
            return
        for name in node.output:
            self._place(name)

    def _place(self, name: str) -> None:
        """A tensor that a layer makes, or an input."""
        self._storage[name] = name
        readers = self._readers.get(name, [])
        if self._is_absorbed(name):
            self._bits[name] = max(self._quantized_bits(reader) for reader in readers)
            return
        alone = name not in self._outputs and len(readers) == 1
        if alone and readers[0].op_type in _FUSED and self._is_quantized(readers[0].output[0]):
            self._bits[name] = 0  # it never leaves the layer that made it
            return
        self._bits[name] = _bits(self._types.get(name, 1))

    def _is_absorbed(self, name: str) -> bool:
        """Whether it only exists in its quantized form."""
        return name not in self._outputs and self._is_quantized(name)

    def _is_quantized(self, name: str) -> bool:
        readers = self._readers.get(name, [])
        return bool(readers) and all(reader.op_type == _QUANTIZE for reader in readers)

    def _quantized_bits(self, node: NodeProto) -> int:
        zero = self._constants.get(node.input[2]) if len(node.input) > 2 else None
        if zero is not None:
            return _bits(zero.data_type)
        given = [attribute.i for attribute in node.attribute if attribute.name == "output_dtype"]
        return _bits(given[0]) if given and given[0] else 8

    @property
    def has_unknown(self) -> bool:
        return any(self._bits[name] and name not in self._shapes for name in self._made())

    def _made(self) -> set[str]:
        return {name for name in self._storage.values() if name}

    def peak_bytes(self) -> int:
        sizes = {
            name: -(-math.prod(self._shapes.get(name, (0,))) * self._bits[name] // 8)
            for name in self._made()
        }
        steps = []
        for node in self._graph.node:
            names = ([*node.input], [*node.output])
            read, made = ([self._storage.get(n, "") for n in side] for side in names)
            steps.append((read, [name for name in made if name]))
        inputs = [value.name for value in self._graph.input]
        outputs = [self._storage.get(name, name) for name in self._outputs]
        return _peak(steps, inputs, outputs, sizes)

    def weight_bytes(self) -> int:
        """Without scales and zero points."""
        total = 0
        for name, tensor in self._constants.items():
            readers = self._readers.get(name, [])
            about = (_QUANTIZE, _DEQUANTIZE)
            if all(r.op_type in about and r.input[0] != name for r in readers):
                continue
            bits = _bits(tensor.data_type)
            if all(reader.op_type == _QUANTIZE for reader in readers):
                bits = max(self._quantized_bits(reader) for reader in readers)
            total += -(-math.prod(tensor.dims) * bits // 8)
        return total


def _shapes(model: ModelProto, known: Mapping[str, Shape]) -> dict[str, Shape]:
    import onnx

    inferred = onnx.shape_inference.infer_shapes(_without_values(model)).graph
    found = dict(known)
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        sides = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(s.HasField("dim_value") for s in sides):
            found.setdefault(value.name, tuple(side.dim_value for side in sides))
    nodes = [node for node in model.graph.node if node.op_type in (_QUANTIZE, _DEQUANTIZE)]
    ends = [(node.input[0], node.output[0]) for node in nodes]
    for source, result in (*ends, *((result, source) for source, result in reversed(ends))):
        if source in found:
            found.setdefault(result, found[source])
    return found


def _without_values(model: ModelProto) -> ModelProto:
    """Weights say nothing of shapes but by their own; only small constants may be sides. Shapes are
    inferred of operators of the standard domain only, which ONNX Runtime's quantizers are like."""
    import onnx

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for tensor in bare.graph.initializer:
        if math.prod(tensor.dims) > _LARGEST_SHAPE:
            for field in ("raw_data", "float_data", "int32_data", "int64_data"):
                tensor.ClearField(field)
    for node in bare.graph.node:
        if node.op_type in (_QUANTIZE, _DEQUANTIZE):
            node.domain = ""
    return bare


def _bits(kind: int) -> int:
    from onnx import TensorProto

    if kind in (TensorProto.INT4, TensorProto.UINT4):
        return 4
    return 8 * _item(kind)[0]


def _item(kind: int) -> tuple[int, bool]:
    """Bytes per number, and whether it is a float."""
    from onnx import helper

    try:
        found = helper.tensor_dtype_to_np_dtype(kind)
    except (KeyError, ValueError, TypeError):
        return 1, False
    return max(1, int(found.itemsize)), found.kind == "f"
