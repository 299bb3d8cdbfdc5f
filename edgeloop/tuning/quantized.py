"""A quantized model (a QDQ graph) as data: how each tensor is quantized, to read and to change.

The vendor's toolchain made the graph and decided which tensors have which types; recovery changes
numbers only: the scales and zero points of activations, and the integers, scales and biases of
weights. What compiled before therefore still compiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.system import thread_limit
from edgeloop.graph.read import shapes_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto


Floats = NDArray[np.float64]

_QUANTIZED = ("QuantizeLinear", "DequantizeLinear")
_INPUT_SUFFIX = "_QuantizeLinear_Input"  # what the quantizer calls an output before its conversion
_SMALLEST_SCALE = 1e-12
_LARGEST_BIAS = 2**31 - 1
_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32}
MOST_DB = 60.0


@dataclass(frozen=True)
class TensorEncoding:
    """How one tensor is quantized: the names of its scale and zero point, and the type of its
    integers. `axis` is that of the channels where each has a scale of its own."""

    scale: str
    zero: str
    kind: str
    axis: int | None = None

    @property
    def bits(self) -> int:
        return _BITS[self.kind]

    @property
    def limits(self) -> tuple[int, int]:
        if self.kind.startswith("u"):
            return 0, 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1


@dataclass(frozen=True)
class QuantizedLayer:
    """A convolution or Gemm with constant weights. `values` and `bias` name its integers."""

    name: str
    node: NodeProto
    values: str
    weight: TensorEncoding
    source: str  # the scale of its input
    bias: str = ""
    bias_scale: str = ""

    @property
    def output(self) -> str:
        return str(self.node.output[0])

    @property
    def input(self) -> str:
        return str(self.node.input[0])


class QuantizedGraph:
    """Reads the numbers of a QDQ model and replaces them; `save` writes the whole."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self._tensors: dict[str, TensorProto] = {t.name: t for t in model.graph.initializer}
        self._makers = {name: node for node in model.graph.node for name in node.output}

    @classmethod
    def load(cls, path: Path) -> QuantizedGraph:
        import onnx

        return cls(onnx.load_model(str(path)))

    def copy(self) -> QuantizedGraph:
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        return QuantizedGraph(model)

    def save(self, path: Path) -> None:
        import onnx

        onnx.save_model(self.model, str(path))

    @cached_property
    def layers(self) -> Mapping[str, QuantizedLayer]:
        """By the name of the operator, in the order of the graph."""
        nodes = (node for node in self.model.graph.node if node.op_type in LAYERS and node.name)
        layers = (self._layer(node) for node in nodes)
        return {layer.name: layer for layer in layers if layer is not None}

    @cached_property
    def activations(self) -> Mapping[str, TensorEncoding]:
        """How each tensor of the float graph is quantized, by its name there."""
        encodings: dict[str, TensorEncoding] = {}
        for node in self.model.graph.node:
            if node.op_type != "QuantizeLinear" or node.input[0] in self._tensors:
                continue
            maker = self._makers.get(node.input[0])
            if maker is not None and maker.op_type in _QUANTIZED:
                continue  # the same tensor in a second type
            name = node.input[0].removesuffix(_INPUT_SUFFIX)
            if encoding := self._encoding(node):
                encodings.setdefault(name, encoding)
        return encodings

    def array(self, name: str) -> NDArray[Any]:
        from onnx import numpy_helper

        return numpy_helper.to_array(self._tensors[name])

    def scales(self, layer: QuantizedLayer) -> Floats:
        return np.atleast_1d(self.array(layer.weight.scale).astype(np.float64))

    def zeros(self, layer: QuantizedLayer) -> Floats:
        return np.atleast_1d(self.array(layer.weight.zero).astype(np.float64))

    def source_scale(self, layer: QuantizedLayer) -> float:
        return float(self.array(layer.source).reshape(-1)[0])

    def biases(self, layer: QuantizedLayer) -> Floats | None:
        """In floats; None where a layer has none."""
        if not layer.bias:
            return None
        values = self.array(layer.bias).astype(np.float64)
        return values * self.array(layer.bias_scale) if layer.bias_scale else values

    def weights(self, layer: QuantizedLayer) -> Floats:
        """As the chip sees them."""
        values = self.array(layer.values).astype(np.float64)
        scale = along(self.scales(layer), values.ndim, layer.weight.axis)
        return (values - along(self.zeros(layer), values.ndim, layer.weight.axis)) * scale

    def set_range(self, tensor: str, low: float, high: float) -> None:
        """Of an activation; zero is always exact."""
        encoding = self.activations[tensor]
        first, last = encoding.limits
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max((high - low) / (last - first), _SMALLEST_SCALE)
        zero = float(np.clip(np.rint(first - low / scale), first, last))
        self._replace(encoding.scale, np.float64(scale))
        self._replace(encoding.zero, np.float64(zero))

    def set_ranges(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Of several activations; those that share a scale get one range that holds all."""
        shared: dict[str, tuple[str, float, float]] = {}
        for tensor, (low, high) in ranges.items():
            scale = self.activations[tensor].scale
            name, lowest, highest = shared.get(scale, (tensor, low, high))
            shared[scale] = name, min(low, lowest), max(high, highest)
        for name, low, high in shared.values():
            self.set_range(name, low, high)

    def set_weights(self, layer: QuantizedLayer, integers: Floats, scales: Floats) -> None:
        """Zero points stay. The integers are those that the chip multiplies with."""
        first, last = layer.weight.limits
        self._replace(layer.values, np.clip(integers, first, last))
        self._replace(layer.weight.scale, scales)

    def set_zeros(self, layer: QuantizedLayer, zeros: Floats) -> None:
        self._replace(layer.weight.zero, zeros)

    def set_bias(self, layer: QuantizedLayer, bias: Floats) -> None:
        """Integers in steps of the scales of input and weights, as the chip adds them up."""
        if not layer.bias:
            self._add_bias(layer, bias)
            return
        if not layer.bias_scale:
            self._replace(layer.bias, bias)
            return
        scale = self.scales(layer) * self.source_scale(layer)
        if self.array(layer.bias_scale).size == 1 and scale.size > 1:
            return  # a form that the quantizer chose because the usual one does not fit
        self._replace(layer.bias_scale, scale)
        stored = np.atleast_1d(self.array(layer.bias_scale).astype(np.float64))
        steps = np.rint(bias / np.maximum(stored, _SMALLEST_SCALE))
        self._replace(layer.bias, np.clip(steps, -_LARGEST_BIAS, _LARGEST_BIAS))

    def _add_bias(self, layer: QuantizedLayer, bias: Floats) -> None:
        """A layer that has none gets one, quantized as others are."""
        from onnx import helper, numpy_helper

        scale = np.broadcast_to(self.scales(layer) * self.source_scale(layer), bias.shape)
        name = f"{layer.name}_recovered_bias"
        whole = np.clip(np.rint(bias / scale), -_LARGEST_BIAS, _LARGEST_BIAS).astype(np.int32)
        added = {
            f"{name}_quantized": whole,
            f"{name}_scale": scale.astype(np.float32),
            f"{name}_zero": np.zeros(bias.shape, np.int32),
        }
        for each, values in added.items():
            tensor = numpy_helper.from_array(np.ascontiguousarray(values), each)
            self.model.graph.initializer.append(tensor)
            self._tensors[each] = self.model.graph.initializer[-1]
        node = helper.make_node("DequantizeLinear", list(added), [name], name=name, axis=0)
        self.model.graph.node.insert(0, node)
        del layer.node.input[2:]
        layer.node.input.append(name)
        self.__dict__.pop("layers", None)
        self._makers = {made: one for one in self.model.graph.node for made in one.output}

    def _layer(self, node: NodeProto) -> QuantizedLayer | None:
        source, weight = (self._dequantized(name) for name in node.input[:2])
        if source is None or weight is None or weight.input[0] not in self._tensors:
            return None
        encoding = self._encoding(weight)
        if encoding is None:
            return None
        if any(float(a.f) != 1.0 for a in node.attribute if a.name in ("alpha", "beta")):
            return None
        bias, bias_scale = "", ""
        if len(node.input) > 2 and node.input[2]:
            maker = self._dequantized(node.input[2])
            if maker is not None and maker.input[0] in self._tensors:
                bias, bias_scale = str(maker.input[0]), str(maker.input[1])
            elif node.input[2] in self._tensors:
                bias = str(node.input[2])
            else:
                return None
        scale = str(source.input[1])
        return QuantizedLayer(
            name=str(node.name),
            node=node,
            values=str(weight.input[0]),
            weight=encoding,
            source=scale,
            bias=bias,
            bias_scale=bias_scale,
        )

    def _dequantized(self, name: str) -> NodeProto | None:
        maker = self._makers.get(name)
        return maker if maker is not None and maker.op_type == "DequantizeLinear" else None

    def _encoding(self, node: NodeProto) -> TensorEncoding | None:
        if len(node.input) < 3 or node.input[2] not in self._tensors:
            return None
        kind = self.array(node.input[2]).dtype.name
        if kind not in _BITS:
            return None
        size = self.array(node.input[1]).size
        axis = int(attributes(node).get("axis", 1)) if size > 1 else None
        return TensorEncoding(str(node.input[1]), str(node.input[2]), kind, axis)

    def _replace(self, name: str, values: Any) -> None:
        """In the type and shape that the tensor has."""
        from onnx import numpy_helper

        old = self.array(name)
        new = np.asarray(values).reshape(old.shape)
        if old.dtype.kind != "f":
            new = np.rint(new)
        self._tensors[name].CopyFrom(numpy_helper.from_array(new.astype(old.dtype), name))


def along(values: Floats, dimensions: int, axis: int | None) -> Floats:
    """One value per channel, shaped to be multiplied with a whole tensor."""
    if axis is None or values.size == 1:
        return values.reshape(())
    shape = [1] * dimensions
    shape[axis] = values.size
    return values.reshape(shape)


def refreshed_biases(graph: QuantizedGraph, biases: Mapping[str, Floats]) -> None:
    """Bias integers depend on the scales of inputs and weights: to be done after those changed."""
    for name, bias in biases.items():
        graph.set_bias(graph.layers[name], bias)


def float_biases(graph: QuantizedGraph, names: Iterable[str] = ()) -> dict[str, Floats]:
    def biased_layers() -> Iterator[tuple[str, Floats]]:
        for name, layer in graph.layers.items():
            bias = graph.biases(layer)
            if bias is not None and (not names or name in names):
                yield name, bias

    return dict(biased_layers())


# The float graph that was quantized: its layers, who reads what, and its weights.


LAYERS = ("Conv", "ConvTranspose", "Gemm")


class FloatGraph:
    """Weights by name; `set_array` replaces one."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self._tensors: dict[str, TensorProto] = {t.name: t for t in model.graph.initializer}
        self.nodes = {node.name: node for node in model.graph.node if node.name}
        self.makers = {name: node for node in model.graph.node for name in node.output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.outputs = frozenset(output.name for output in model.graph.output)

    @classmethod
    def load(cls, path: Path) -> FloatGraph:
        import onnx

        return cls(onnx.load_model(str(path)))

    def copy(self) -> FloatGraph:
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        return FloatGraph(model)

    def save(self, path: Path) -> None:
        import onnx

        onnx.save_model(self.model, str(path))

    def has(self, name: str) -> bool:
        return name in self._tensors

    def array(self, name: str) -> NDArray[Any]:
        from onnx import numpy_helper

        return numpy_helper.to_array(self._tensors[name])

    def set_array(self, name: str, values: NDArray[Any]) -> None:
        from onnx import numpy_helper

        kind = self.array(name).dtype
        new = numpy_helper.from_array(np.ascontiguousarray(values.astype(kind)), name)
        self._tensors[name].CopyFrom(new)

    def weight_of(self, node: NodeProto) -> NDArray[Any] | None:
        """Of a layer whose weights are constant and its own."""
        name = node.input[1] if len(node.input) > 1 else ""
        if node.op_type not in LAYERS or not self.has(name) or len(self.readers[name]) != 1:
            return None
        return self.array(name)

    def bias_of(self, node: NodeProto) -> NDArray[Any] | None:
        name = node.input[2] if len(node.input) > 2 else ""
        return self.array(name) if name and self.has(name) else None

    def only_reader(self, tensor: str) -> NodeProto | None:
        """Who reads a tensor, where that is one operator and the tensor is no output."""
        readers = self.readers.get(tensor, [])
        return readers[0] if len(readers) == 1 and tensor not in self.outputs else None


@dataclass(frozen=True)
class Window:
    """How a convolution walks over its input."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    groups: int


def attributes(node: NodeProto) -> Mapping[str, Any]:
    from onnx import helper

    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def groups_of(node: NodeProto) -> int:
    return int(attributes(node).get("group", 1))


def window_of(node: NodeProto, weight: NDArray[Any]) -> Window | None:
    """None where padding is left to the runtime, or the layer is not one over height and width."""
    settings = attributes(node)
    if weight.ndim != 4 or settings.get("auto_pad", b"NOTSET") not in (b"NOTSET", b""):
        return None
    height, width = (int(side) for side in weight.shape[2:])
    top, left, bottom, right = (int(one) for one in settings.get("pads", (0, 0, 0, 0)))
    down, along = (int(one) for one in settings.get("strides", (1, 1)))
    tall, wide = (int(one) for one in settings.get("dilations", (1, 1)))
    groups = int(settings.get("group", 1))
    return Window((height, width), (down, along), (top, left, bottom, right), (tall, wide), groups)


def output_axis(node: NodeProto) -> int:
    """The axis of a layer's weights that belongs to its output channels."""
    if node.op_type == "ConvTranspose":
        return 1
    return 1 if node.op_type == "Gemm" and not int(attributes(node).get("transB", 0)) else 0


# What flows through a graph: its tensors on calibration samples, a few at a time.
#
# Sessions run as many tensors at once as fit into a bounded memory. A quantized graph runs without
# the optimizations of ONNX Runtime, so that it computes what its nodes say and not what a CPU has
# fast instructions for.


Run = Mapping[str, NDArray[Any]]
Runs = Callable[[], Iterator[Run]]
"""The inputs of a model, run by run; every call starts from the beginning."""

_AT_ONCE_BYTES = 256 << 20


def observed(
    model: ModelProto, runs: Runs, tensors: Sequence[str], is_exact: bool = False
) -> Iterator[tuple[str, NDArray[Any]]]:
    """The tensors of every run, by name. `is_exact` leaves optimizations out."""
    for names in _chunks(model, tensors):
        session = session_of(with_outputs(model, names), is_exact)
        for inputs in runs():
            arrays = session.run(list(names), dict(inputs))
            yield from zip(names, arrays, strict=True)


def session_of(model: ModelProto, is_exact: bool = False) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_limit() or 1
    options.log_severity_level = 3
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_DISABLE_ALL if is_exact else levels.ORT_ENABLE_BASIC
    )
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """The part of a model that these tensors need, with them as its outputs."""
    import onnx

    makers = {name: node for node in model.graph.node for name in node.output}
    pending, needed = list(names), set()
    while pending:
        node = makers.get(pending.pop())
        if node is not None and id(node) not in needed:
            needed.add(id(node))
            pending += node.input
    part = onnx.ModelProto()
    part.ir_version = model.ir_version
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.name = model.graph.name
    part.graph.node.extend(node for node in model.graph.node if id(node) in needed)
    read = {name for node in part.graph.node for name in node.input}
    part.graph.input.extend(model.graph.input)
    part.graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return part


def output_error(model: ModelProto, quantized: ModelProto, runs: Runs) -> float:
    """The mean over all outputs of noise power by signal power, on the CPU: a guide to choose
    between variants by, never a score."""
    names = [output.name for output in model.graph.output]
    first, second = session_of(model), session_of(quantized, is_exact=True)
    signal, noise = np.zeros(len(names)), np.zeros(len(names))
    for inputs in runs():
        pairs = zip(first.run(names, dict(inputs)), second.run(names, dict(inputs)), strict=True)
        for place, (expected, rounded) in enumerate(pairs):
            if expected.dtype.kind != "f":
                continue
            one = expected.astype(np.float64)
            signal[place] += float(np.vdot(one, one))
            noise[place] += float(np.sum(np.square(rounded.astype(np.float64) - one)))
    return float(np.mean(noise / np.maximum(signal, 1e-30)))


def _chunks(model: ModelProto, tensors: Sequence[str]) -> Iterator[list[str]]:
    shapes = shapes_of(model.graph)
    chunk: list[str] = []
    size = 0
    for name in tensors:
        tensor_bytes = 4 * math.prod(max(1, side) for side in shapes.get(name, ()))
        if chunk and size + tensor_bytes > _AT_ONCE_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(name)
        size += tensor_bytes
    if chunk:
        yield chunk


def channel_sqnr(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """The median over channels, in dB, of those that are ever anything but zero."""
    import numpy as np

    axis = 1 if expected.ndim >= 3 and expected.shape[1] > 1 else expected.ndim - 1
    others = tuple(place for place in range(expected.ndim) if place != max(axis, 0))
    exact = expected.astype(np.float64)
    power = np.square(exact).sum(axis=others)
    error = np.square(actual.reshape(expected.shape) - exact).sum(axis=others)
    alive = power > 1e-9 * max(float(power.max(initial=0.0)), 1e-30)
    if not alive.any():
        return MOST_DB
    ratios = 10 * np.log10(power[alive] / np.maximum(error[alive], 1e-30))
    return float(min(np.median(ratios), MOST_DB))
