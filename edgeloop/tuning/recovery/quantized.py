"""A quantized model (a QDQ graph) as data: how each tensor is quantized, to read and to change.

The vendor's toolchain made the graph and decided which tensors have which types; recovery changes
numbers only: the scales and zero points of activations, and the integers, scales and biases of
weights. What compiled before therefore still compiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.tuning.recovery.floats import LAYERS, attributes

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

Floats = NDArray[np.float64]

_QUANTIZED = ("QuantizeLinear", "DequantizeLinear")
_INPUT_SUFFIX = "_QuantizeLinear_Input"  # what the quantizer calls an output before its conversion
_SMALLEST_SCALE = 1e-12
_LARGEST_BIAS = 2**31 - 1
_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32}


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
        found = (self._layer(node) for node in nodes)
        return {layer.name: layer for layer in found if layer is not None}

    @cached_property
    def activations(self) -> Mapping[str, TensorEncoding]:
        """How each tensor of the float graph is quantized, by its name there."""
        found: dict[str, TensorEncoding] = {}
        for node in self.model.graph.node:
            if node.op_type != "QuantizeLinear" or node.input[0] in self._tensors:
                continue
            maker = self._makers.get(node.input[0])
            if maker is not None and maker.op_type in _QUANTIZED:
                continue  # the same tensor in a second type
            name = node.input[0].removesuffix(_INPUT_SUFFIX)
            if encoding := self._encoding(node):
                found.setdefault(name, encoding)
        return found

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
            str(node.name), node, str(weight.input[0]), encoding, scale, bias, bias_scale
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
    def found() -> Iterator[tuple[str, Floats]]:
        for name, layer in graph.layers.items():
            bias = graph.biases(layer)
            if bias is not None and (not names or name in names):
                yield name, bias

    return dict(found())
