"""Prefixes of a deployed graph: its first layers, ended so that the compiler takes them.

A cut behind a layer has one output for every tensor that later layers read, so branches need no
pairing. Only quantized tensors are written: a cut that would write anything else does not exist,
and neither does one between layers that the quantizer made one. Tensors of images leave channel
last, as they do from a deployed graph: channel-first outputs cost more than most layers. `copies`
writes every one of them as often; what a second copy adds is what the first one costs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from edgeloop.graph.count import count_layers
from edgeloop.graph.read import shapes_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_CONVERTING = ("QuantizeLinear", "DequantizeLinear")
_TO_CHANNEL_LAST = (0, 2, 3, 1)
_SPATIAL = (
    *("Conv", "ConvTranspose", "Resize", "DepthToSpace", "SpaceToDepth", "BatchNormalization"),
    *("AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"),
)
_RESHAPING = ("MatMul", "Gemm", "Reshape", "Transpose", "Einsum", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class GraphLayer:
    """`cut_bytes` is what a cut behind this layer writes; None where there can be no cut."""

    name: str
    operator: str
    output: tuple[int, ...]
    macs: int
    cut_bytes: int | None = None


class Prefixes:
    """`names` are the layers of the graph before it was deployed: what deployment put before them
    belongs to the first layer, and what it put behind them to the outputs."""

    def __init__(self, model: ModelProto, names: Collection[str]) -> None:
        self._model = model
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._constants = {tensor.name for tensor in model.graph.initializer}
        self._inputs = {source.name for source in model.graph.input}
        self._outputs = [output.name for output in model.graph.output]
        self._shapes = shapes_with_quantized(model)
        layers = [node for node in model.graph.node if node.op_type not in _CONVERTING]
        self._nodes = [node for node in layers if node.name in names]
        self._ranks = self._ranked()
        self._images = self._found_images()

    def layers(self) -> list[GraphLayer]:
        macs = self._macs()
        found = []
        for count, node in enumerate(self._nodes, start=1):
            shape = self._shapes.get(node.output[0], ())
            crossing = self._crossing(count)
            size = None if crossing is None else sum(self._bytes(name) for name in crossing)
            found.append(
                GraphLayer(node.name, node.op_type, shape, macs.get(node.name, 0), size or None)
            )
        return found

    def cut(self, count: int, copies: int = 1) -> ModelProto:
        """The first `count` layers; there must be a cut behind them."""
        import onnx
        from onnx import helper

        nodes = [node for node in self._model.graph.node if self._ranks[node.output[0]] <= count]
        outputs = []
        for number, tensor in enumerate(self._crossing(count) or ()):
            for copy in range(copies):
                end, shape = self._end(tensor, f"cut_{number}_{copy}")
                nodes.extend(end)
                kind = self._kind(tensor)
                outputs.append(helper.make_tensor_value_info(end[-1].output[0], kind, shape))
        needed = {output.name for output in outputs}
        body = []
        for node in reversed(nodes):
            if needed.intersection(node.output):
                body.append(node)
                needed.update(node.input)
        graph = self._model.graph
        model = onnx.ModelProto()
        model.ir_version = self._model.ir_version
        model.opset_import.extend(self._model.opset_import)
        model.graph.name = "prefix"
        model.graph.node.extend(reversed(body))
        model.graph.input.extend(source for source in graph.input if source.name in needed)
        model.graph.output.extend(outputs)
        model.graph.initializer.extend(t for t in graph.initializer if t.name in needed)
        return model

    def _macs(self) -> dict[str, int]:
        """Counted on a graph without weights: theirs are the shapes of what they are converted to.
        Without all shapes nothing is known."""
        from onnx import TensorProto, helper

        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in self._shapes.items()
        ]
        graph = helper.make_graph(self._nodes, "layers", [], [], value_info=values)
        try:
            return {layer.name: layer.macs for layer in count_layers(helper.make_model(graph))}
        except (KeyError, ValueError, IndexError):
            return {}

    def _ranked(self) -> dict[str, int]:
        """How many layers a tensor needs; conversions need what they convert."""
        own = {node.name: count for count, node in enumerate(self._nodes, start=1)}
        ranks = dict.fromkeys((*self._inputs, *self._constants, ""), 0)
        for node in self._model.graph.node:
            before = max((ranks.get(name, 0) for name in node.input), default=0)
            rank = own.get(node.name, before) if node.op_type not in _CONVERTING else before
            is_behind = node.op_type not in _CONVERTING and node.name not in own and before > 0
            for name in node.output:
                ranks[name] = len(self._nodes) + 1 if is_behind else max(rank, before)
        return ranks

    def _crossing(self, count: int) -> list[str] | None:
        """The quantized tensors that leave the first `count` layers; None if others leave too."""
        found: dict[str, None] = {}
        for name in self._outputs:
            if self._ranks[name] <= count and name not in self._inputs:
                found[name] = None
        for node in self._model.graph.node:
            if self._ranks[node.output[0]] <= count:
                continue
            for name in node.input:
                if self._ranks.get(name, 0) > count or self._is_given(name):
                    continue
                maker = self._makers[name]
                source = maker.input[0] if maker.op_type == "DequantizeLinear" else name
                if not self._is_given(source):
                    found[source] = None
        is_possible = all(self._is_quantized(name) for name in found)
        return list(found) if found and is_possible else None

    def _is_given(self, name: str) -> bool:
        """Without any layer: an input, a weight, or what is made of these alone."""
        return name not in self._makers or self._ranks[name] == 0

    def _is_quantized(self, name: str) -> bool:
        maker = self._makers[name]
        return maker.op_type == "QuantizeLinear" and len(maker.input) > 2 and name in self._shapes

    def _end(self, tensor: str, name: str) -> tuple[list[NodeProto], tuple[int, ...]]:
        from onnx import helper

        maker, shape = self._makers[tensor], self._shapes[tensor]
        scales, domain = list(maker.input[1:]), maker.domain
        moved = f"{name}_float"
        nodes = [
            helper.make_node("DequantizeLinear", [tensor, *scales], [moved], moved, domain=domain)
        ]
        if tensor in self._images:
            first, moved = moved, f"{name}_moved"
            nodes.append(
                helper.make_node("Transpose", [first], [moved], moved, perm=_TO_CHANNEL_LAST)
            )
            shape = tuple(shape[axis] for axis in _TO_CHANNEL_LAST)
        nodes.append(
            helper.make_node("QuantizeLinear", [moved, *scales], [name], name, domain=domain)
        )
        return nodes, shape

    def _found_images(self) -> set[str]:
        """Tensors that are images, channel first: what convolutions, poolings and resizes make,
        and what is computed of these value by value."""
        found: set[str] = set()
        for node in self._model.graph.node:
            if len(self._shapes.get(node.output[0], ())) != 4 or node.op_type in _RESHAPING:
                continue
            if node.op_type in _SPATIAL or found.intersection(node.input):
                found.update(node.output)
        return found

    def _bytes(self, tensor: str) -> int:
        from onnx import TensorProto

        wide = self._kind(tensor) in (TensorProto.UINT16, TensorProto.INT16)
        return math.prod(self._shapes[tensor]) * (2 if wide else 1)

    def _kind(self, tensor: str) -> int:
        zero = self._makers[tensor].input[2]
        return next(int(t.data_type) for t in self._model.graph.initializer if t.name == zero)


class PrefixFiles:
    """Prefixes as files, of the model that was asked for last."""

    def __init__(self) -> None:
        self._open: tuple[str, Prefixes] | None = None

    def file(self, model: str, names: list[str], count: int, copies: int) -> str:
        """In the current folder; of no layers: the model itself."""
        import onnx

        if count == 0:
            return model
        if self._open is None or self._open[0] != model:
            self._open = (model, Prefixes(onnx.load_model(model), names))
        onnx.save_model(self._open[1].cut(count, copies), "prefix.onnx")
        return "prefix.onnx"


def cuttable(quantized: ModelProto, deployed: ModelProto, target: str) -> dict[str, Any]:
    """Write a deployed model so that it can be cut: with all shapes. Returns its layers, and a
    digest of its content."""
    import onnx

    graph = deployed.graph
    taken = {value.name for value in (*graph.input, *graph.output, *graph.value_info)}
    ends = (*quantized.graph.input, *quantized.graph.output)
    graph.value_info.extend(value for value in ends if value.name not in taken)
    onnx.save_model(deployed, target)
    layers = Prefixes(deployed, [node.name for node in quantized.graph.node]).layers()
    digest = hashlib.sha256(deployed.SerializeToString(deterministic=True)).hexdigest()
    return {"layers": [astuple(layer) for layer in layers], "digest": digest}


def name_layers(model: ModelProto) -> None:
    """A name for every layer that has none, or one that another has too."""
    taken: set[str] = set()
    for number, node in enumerate(model.graph.node):
        while not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}_{number}"
        taken.add(node.name)


def shapes_with_quantized(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Conversions keep shapes, but only those of floats are in the file."""
    shapes = dict(shapes_of(model.graph))
    for _ in range(2):  # once from each side
        for node in model.graph.node:
            if node.op_type in _CONVERTING:
                pair = (node.input[0], node.output[0])
                known = [shapes[name] for name in pair if name in shapes]
                shapes.update(dict.fromkeys(pair, known[0]) if known else {})
    return shapes
