"""MACs and parameters counted from the graph, and the table of its layers.

A MAC is one multiplication with its addition; only convolutions and matrix products have them,
Einsum among these.
Parameters are the trained numbers: weights, biases, and the constants that other layers apply to a
whole tensor, each counted once however many layers share it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.graph.info import GraphInfo, GraphMemory, Shape, TensorInfo, layout_of
from edgeloop.graph.read import shapes_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


COLUMNS = (
    "name",
    "operator",
    "inputs",
    "outputs",
    "parameters",
    "macs",
    "time_us",
    "share",
    "timed_with",
    "timed_on",
)

# Inputs of these operators that are settings (a shape, a limit, a scale), not trained numbers.
_SETTINGS = frozenset(
    ("Clip", "Expand", "Pad", "Reshape", "Resize", "Slice", "Tile", "TopK", "Upsample")
)
_QUANTIZERS = frozenset(("QuantizeLinear", "DequantizeLinear"))


@dataclass(frozen=True)
class CountedLayer:
    name: str
    operator: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    parameters: int
    macs: int
    time_us: float | None = None


@dataclass(frozen=True)
class LayerTiming:
    """What the layers `members` take together; their time stands beside the one that is `name`."""

    name: str
    members: tuple[str, ...]
    time_us: float
    share: float


def count_layers(model: ModelProto) -> tuple[CountedLayer, ...]:
    """One entry a node, in the order of the graph; the model needs its shapes inferred."""
    from onnx import TensorProto

    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    shapes = shapes_of(model.graph)
    weights = {t.name: math.prod(t.dims) for t in model.graph.initializer if t.data_type in floats}
    counted: set[str] = set()
    layers = []
    for node in model.graph.node:
        layer_weights = (
            set() if node.op_type in _SETTINGS | _QUANTIZERS else set(node.input) & set(weights)
        )
        layers.append(
            CountedLayer(
                name=node.name,
                operator=node.op_type,
                inputs=tuple(shapes[n] for n in node.input if n in shapes and n not in weights),
                outputs=tuple(shapes[name] for name in node.output if name in shapes),
                parameters=sum(weights[name] for name in layer_weights - counted),
                macs=_macs(node, shapes),
            )
        )
        counted |= layer_weights
    return tuple(layers)


def graph_info(file: str, model: ModelProto) -> GraphInfo:
    layers = count_layers(model)
    shapes = shapes_of(model.graph)
    outputs = tuple(_tensor(value, shapes) for value in model.graph.output)
    inputs = tuple(_tensor(value, shapes) for value in model.graph.input)
    return GraphInfo(
        inputs=tuple(replace(one, layout=layout_of(one.shape, one.dtype)) for one in inputs),
        outputs=outputs,
        macs=sum(layer.macs for layer in layers),
        params=sum(layer.parameters for layer in layers),
        memory=graph_memory(model.graph),
    )


def _tensor(value: ValueInfoProto, shapes: Mapping[str, Shape]) -> TensorInfo:
    from onnx import helper

    kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return TensorInfo(value.name, shapes[value.name], kind.name)


def with_times(
    layers: Iterable[CountedLayer], times_us: Mapping[str, float]
) -> tuple[CountedLayer, ...]:
    return tuple(replace(layer, time_us=times_us.get(layer.name)) for layer in layers)


def write_layers(path: Path, layers: Iterable[CountedLayer]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for layer in layers:
            time_us = "" if layer.time_us is None else f"{layer.time_us:.3f}"
            shapes = (_words(layer.inputs), _words(layer.outputs))
            numbers = (layer.parameters, layer.macs, time_us)
            writer.writerow((layer.name, layer.operator, *shapes, *numbers, "", "", ""))


def add_times(path: Path, timings: Iterable[LayerTiming], device: str) -> None:
    """Complete a table that `write_layers` wrote. A layer that is timed with others says with which
    one; one that is in none of the groups is part of another layer, and takes no time."""
    by_member = {name: timing for timing in timings for name in timing.members}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            timing = by_member.get(row["name"])
            columns = {"time_us": "0.000", "share": "0.0000", "timed_with": "", "timed_on": device}
            if timing is not None and timing.name == row["name"]:
                columns |= {"time_us": f"{timing.time_us:.3f}", "share": f"{timing.share:.4f}"}
            elif timing is not None:
                columns |= {"time_us": "", "share": "", "timed_with": timing.name}
            writer.writerow(row | columns)


def costliest(path: Path, count: int) -> list[LayerTiming]:
    """From a table with times; none if it has none, or cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("time_us")]
        timings = [
            LayerTiming(row["name"], (), float(row["time_us"]), float(row.get("share") or 0))
            for row in rows
        ]
    except (OSError, ValueError, KeyError, csv.Error):
        return []
    return sorted(timings, key=lambda layer: -layer.time_us)[:count]


def _macs(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    if node.op_type == "Conv":
        _, per_group, *kernel = shapes[node.input[1]]
        return math.prod(shapes[node.output[0]]) * per_group * math.prod(kernel)
    if node.op_type == "ConvTranspose":
        _, per_group, *kernel = shapes[node.input[1]]
        return math.prod(shapes[node.input[0]]) * per_group * math.prod(kernel)
    if node.op_type == "MatMul":
        return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    if node.op_type == "Gemm":
        first = shapes[node.input[0]]
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        return math.prod(shapes[node.output[0]]) * first[0 if transposed else 1]
    if node.op_type == "Einsum":
        return _einsum_macs(node, shapes)
    if node.op_type in ("GRU", "LSTM"):
        steps, samples, _ = shapes[node.input[0]]
        return steps * samples * sum(math.prod(shapes[name]) for name in node.input[1:3])
    return 0


def _einsum_macs(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Every combination of its indices once, if it multiplies at all."""
    equation = next(a.s.decode() for a in node.attribute if a.name == "equation")
    terms = equation.partition("->")[0].replace(" ", "").split(",")
    sizes: dict[str, int] = {}
    for term, name in zip(terms, node.input, strict=True):
        before, dots, behind = term.partition("...")
        shape = shapes[name]
        hidden = [f".{i}" for i in range(len(shape) - len(before) - len(behind), 0, -1)]
        for index, size in zip([*before, *(hidden if dots else ()), *behind], shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    return math.prod(sizes.values()) if len(terms) > 1 else 0


def _words(shapes: Iterable[Shape]) -> str:
    return " ".join("x".join(str(side) for side in shape) or "scalar" for shape in shapes)


# Memory that a model needs: its weights, and the most activations that are alive at one moment.
#
# Layer by layer in the order of the graph: each tensor is there from the layer that makes it to the
# last one that reads it, and no layer works in place. A compiler may do better by another order or
# in tiles; the figure is for comparing models, and is the same on every machine.
#
# Of a quantized graph (QuantizeLinear and DequantizeLinear around its layers) each tensor counts
# once, in the type it is quantized to, since a chip has it in that type only.


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
    quantized = _QuantizedGraph(model, known or {})
    if quantized.has_unknown:
        return None
    return DeployedMemory(quantized.weight_bytes(), quantized.peak_bytes())


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
        dtypes = [attribute.i for attribute in node.attribute if attribute.name == "output_dtype"]
        return _bits(dtypes[0]) if dtypes and dtypes[0] else 8

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
    shapes = dict(known)
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        sides = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(s.HasField("dim_value") for s in sides):
            shapes.setdefault(value.name, tuple(side.dim_value for side in sides))
    nodes = [node for node in model.graph.node if node.op_type in (_QUANTIZE, _DEQUANTIZE)]
    ends = [(node.input[0], node.output[0]) for node in nodes]
    for source, result in (*ends, *((result, source) for source, result in reversed(ends))):
        if source in shapes:
            shapes.setdefault(result, shapes[source])
    return shapes


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
        dtype = helper.tensor_dtype_to_np_dtype(kind)
    except (KeyError, ValueError, TypeError):
        return 1, False
    return max(1, int(dtype.itemsize)), dtype.kind == "f"
