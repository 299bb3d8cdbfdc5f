"""Graphs for which a compiler's latency estimate is known to be off, recognised by their shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

SHUFFLE = (
    "channel shuffle: the estimate of such graphs was up to 46 % too high against published figures"
)
DENSE = (
    "densely concatenated layers: the estimate of such graphs was up to 66 % too low against "
    "published figures"
)
_DENSE_CHAIN = 4
_THROUGH = frozenset(("QuantizeLinear", "DequantizeLinear"))


def estimate_caveats(model: ModelProto) -> list[str]:
    """Reasons to trust a latency estimate of this graph less."""
    graph = model.graph
    caveats = []
    if _shuffles_channels(graph):
        caveats.append(SHUFFLE)
    if _longest_concat_chain(graph) >= _DENSE_CHAIN:
        caveats.append(DENSE)
    return caveats


def _shuffles_channels(graph: GraphProto) -> bool:
    """Reshape to five dimensions, swap two, reshape back."""
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type != "Transpose":
            continue
        order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
        before = _maker(makers, node.input[0])
        if order == [0, 2, 1, 3, 4] and before is not None and before.op_type == "Reshape":
            return True
    return False


def _longest_concat_chain(graph: GraphProto) -> int:
    """How many Concats feed one another directly: dense blocks have many, a U-Net has none."""
    makers = {name: node for node in graph.node for name in node.output}
    depth: dict[str, int] = {}
    for node in graph.node:
        if node.op_type != "Concat":
            continue
        before = [_maker(makers, name) for name in node.input]
        chained = [depth.get(m.output[0], 0) for m in before if m and m.op_type == "Concat"]
        depth[node.output[0]] = 1 + max(chained, default=0)
    return max(depth.values(), default=0)


def _maker(makers: dict[str, NodeProto], name: str) -> NodeProto | None:
    """Who makes this tensor; quantization in between is looked through."""
    node = makers.get(name)
    while node is not None and node.op_type in _THROUGH:
        node = makers.get(node.input[0])
    return node
