"""What a latency model may know of a graph besides the compiler's estimate.

Counts, MACs and bytes of the graph that is deployed, by what the chip does well or badly. All are
plain sums over the graph's layers; quantizers are looked through, and weights are no activations.
Bytes of activations are as deployed: one byte per element, or two where a tensor has 16 bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.graph.count import count_layers
from edgeloop.graph.info import Shape
from edgeloop.graph.read import shapes_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

FEW_CHANNELS = 32  # what the chip's matrix unit computes at once

_QUANTIZERS = frozenset(("QuantizeLinear", "DequantizeLinear"))
_LARGEST_SETTING = 4096  # elements; larger constants are weights, which no shape depends on
_LARGE_MAP = 4 * 2**20  # bytes; half of the memory that the chip's processor has of its own
_GROUPS = {
    "elementwise": ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Where"),
    "activation": (
        *("Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log"),
        *("PRelu", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh"),
    ),
    "concat": ("Concat",),
    "cut": ("Gather", "GatherElements", "GatherND", "Pad", "Slice", "Split"),
    "pool": ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
    "reduce": ("ArgMax", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "TopK"),
    "reshape": ("Expand", "Flatten", "Reshape", "Squeeze", "Tile", "Unsqueeze"),
    "space": ("DepthToSpace", "SpaceToDepth"),
    "softmax": ("LogSoftmax", "Softmax"),
    "norm": (
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "LpNormalization", "RMSNormalization"),
    ),
    "transpose": ("Transpose",),
}
_GROUP_OF = {operator: group for group, operators in _GROUPS.items() for operator in operators}
_RESIZES = ("nearest", "linear", "cubic")
_PRODUCTS = ("conv", "depthwise", "grouped", "transposed", "matmul")
_KINDS = (*_PRODUCTS, *_GROUPS, *(f"resize_{mode}" for mode in _RESIZES), "other")

FEATURES = (
    "ops",
    "depth",
    *(f"count_{kind}" for kind in _KINDS),
    *(f"bytes_{kind}" for kind in _KINDS),
    "macs",
    *(f"macs_{kind}" for kind in _PRODUCTS),
    "macs_few_channels",
    "macs_attention",
    "bytes_few_channels",
    "count_shuffle",
    "bytes_shuffle",
    "bytes_dense_concat",
    "activation_bytes",
    "largest_map_bytes",
    "weight_bytes",
    "input_bytes",
    "output_bytes",
)


def features_of(model: ModelProto) -> dict[str, float]:
    """Every name of `FEATURES` for the graph that is deployed, quantized or float."""
    found: Counter[str] = Counter()
    for layer in _layers(model):
        found["ops"] += 1
        found["depth"] = max(found["depth"], layer.depth)
        found[f"count_{layer.kind}"] += 1
        found[f"bytes_{layer.kind}"] += layer.traffic
        found["activation_bytes"] += layer.given
        found["largest_map_bytes"] = max(found["largest_map_bytes"], layer.given)
        if layer.kind in _PRODUCTS:
            found["macs"] += layer.macs
            found[f"macs_{layer.kind}"] += layer.macs
        if layer.has_few_channels:
            found["macs_few_channels"] += layer.macs
            found["bytes_few_channels"] += layer.traffic
        if layer.is_attention:
            found["macs_attention"] += layer.macs
        if layer.is_shuffle:
            found["count_shuffle"] += 1
            found["bytes_shuffle"] += layer.traffic
        if layer.concat_chain > 1:
            found["bytes_dense_concat"] += layer.traffic
    found["weight_bytes"] = sum(_size(t.data_type, t.dims) for t in _weights(model.graph))
    for end, values in (("input_bytes", model.graph.input), ("output_bytes", model.graph.output)):
        for value in values:
            kind = value.type.tensor_type
            found[end] += _size(kind.elem_type, [dim.dim_value for dim in kind.shape.dim])
    return {name: float(found[name]) for name in FEATURES}


def kind_of(features: Mapping[str, float]) -> str:
    """The kind of network by its graph, since an interval may differ by kind: `attention`
    (products of activations), `large-map` (a map that the chip's own memory does not hold),
    `depthwise`, or `convolution`."""
    macs = max(features.get("macs", 0.0), 1.0)
    if features.get("macs_attention", 0.0) > 0.005 * macs:
        return "attention"
    if features.get("largest_map_bytes", 0.0) > _LARGE_MAP:
        return "large-map"
    if features.get("macs_depthwise", 0.0) > 0.02 * macs:
        return "depthwise"
    return "convolution"


@dataclass(frozen=True)
class _Layer:
    """A node that computes something of an input. `taken` and `given` are bytes of activations."""

    kind: str
    macs: int
    taken: int
    given: int
    depth: int
    has_few_channels: bool = False
    is_attention: bool = False
    is_shuffle: bool = False
    concat_chain: int = 0

    @property
    def traffic(self) -> int:
        return self.taken + self.given


def _layers(model: ModelProto) -> Iterator[_Layer]:
    skeleton, weights = _skeleton(model)
    shapes = shapes_of(skeleton.graph)
    makers = {name: node for node in skeleton.graph.node for name in node.output}
    width = _Widths(skeleton.graph)
    depths: dict[str, int] = {}
    chains: dict[str, int] = {}
    for node, counted in zip(skeleton.graph.node, count_layers(skeleton), strict=True):
        depth = max((depths.get(name, 0) for name in node.input), default=0)
        if node.op_type in _QUANTIZERS or node.output[0] in weights:
            depths.update(dict.fromkeys(node.output, depth))
            continue
        depths.update(dict.fromkeys(node.output, depth + 1))
        kind = _kind(node, shapes)
        if kind == "concat":
            before = (chains.get(_made_as(name, makers), 0) for name in node.input)
            chains[node.output[0]] = 1 + max(before, default=0)
        activations = [name for name in node.input if name and name not in weights]
        yield _Layer(
            kind=kind,
            macs=counted.macs,
            taken=width.of(node) * _elements(activations, shapes),
            given=width.of(node) * _elements(node.output, shapes),
            depth=depth + 1,
            has_few_channels=_has_few_channels(node, kind, shapes),
            is_attention=kind == "matmul" and len(activations) > 1,
            is_shuffle=_is_shuffle(node, makers),
            concat_chain=chains.get(node.output[0], 0),
        )


class _Widths:
    """Bytes per element of what a layer computes: by its quantizer; two in a float graph."""

    def __init__(self, graph: GraphProto) -> None:
        from onnx import TensorProto

        wide = (TensorProto.INT16, TensorProto.UINT16)
        kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
        quantizers = [node for node in graph.node if node.op_type in _QUANTIZERS]
        self._default = 1 if quantizers else 2
        self._widths = {
            name: 2 if kinds.get(node.input[2]) in wide else 1
            for node in quantizers
            if len(node.input) > 2
            for name in (node.input[0], node.output[0])
        }

    def of(self, node: NodeProto) -> int:
        """By its outputs; by its first input where nothing quantizes these."""
        for names in (node.output, node.input[:1]):
            known = [self._widths[name] for name in names if name in self._widths]
            if known:
                return max(known)
        return self._default


def _skeleton(model: ModelProto) -> tuple[ModelProto, set[str]]:
    """The graph with the shape of every tensor and without its weights, which may be large; and
    the names of the weights and of what is made of them alone. Quantizers of 16 bits can be an
    extension whose shapes ONNX does not know: here they are the standard ones."""
    import onnx
    from onnx import helper

    source = model.graph
    graph = helper.make_graph(source.node, source.name or "graph", source.input, source.output)
    graph.value_info.extend(source.value_info)
    for tensor in source.initializer:
        if math.prod(tensor.dims) <= _LARGEST_SETTING:
            graph.initializer.append(tensor)
        else:
            given = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(given)
    weights = {"", *(tensor.name for tensor in source.initializer)}
    for node in graph.node:
        if node.op_type in _QUANTIZERS:
            node.domain = ""
        if weights.issuperset(node.input):
            weights.update(node.output)
    made = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return onnx.shape_inference.infer_shapes(made, data_prop=True), weights


def _kind(node: NodeProto, shapes: Mapping[str, Shape]) -> str:
    if node.op_type == "Conv":
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        if groups == 1:
            return "conv"
        return "depthwise" if shapes[node.input[1]][1] == 1 else "grouped"
    if node.op_type == "ConvTranspose":
        return "transposed"
    if node.op_type in ("Einsum", "Gemm", "GRU", "LSTM", "MatMul"):
        return "matmul"
    if node.op_type in ("Resize", "Upsample"):
        mode = next((a.s.decode() for a in node.attribute if a.name == "mode"), "nearest")
        return f"resize_{mode}" if mode in _RESIZES else "other"
    return _GROUP_OF.get(node.op_type, "other")


def _has_few_channels(node: NodeProto, kind: str, shapes: Mapping[str, Shape]) -> bool:
    if kind not in ("conv", "transposed"):
        return False
    return min(shapes[node.input[1]][:2]) < FEW_CHANNELS


def _is_shuffle(node: NodeProto, makers: Mapping[str, NodeProto]) -> bool:
    """Channels in groups, and the groups swapped, between two reshapes."""
    if node.op_type != "Transpose":
        return False
    order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
    before = makers.get(_made_as(node.input[0], makers))
    return order == [0, 2, 1, 3, 4] and before is not None and before.op_type == "Reshape"


def _made_as(name: str, makers: Mapping[str, NodeProto]) -> str:
    """The tensor as its layer made it, before it was quantized."""
    while (node := makers.get(name)) is not None and node.op_type in _QUANTIZERS:
        name = node.input[0]
    return name


def _weights(graph: GraphProto) -> Iterator[TensorProto]:
    """Constants except settings of a few whole numbers: shapes, scales, zero points."""
    return (tensor for tensor in graph.initializer if math.prod(tensor.dims) > 8)


def _elements(names: Iterable[str], shapes: Mapping[str, Shape]) -> int:
    return sum(math.prod(shapes[name]) for name in names if name in shapes)


def _size(kind: int, sides: Iterable[int]) -> int:
    """Bytes as deployed: floats have two on the chip."""
    from onnx import TensorProto, helper

    width = 2 if kind == TensorProto.FLOAT else helper.tensor_dtype_to_np_dtype(kind).itemsize
    return int(math.prod(sides)) * int(width)
