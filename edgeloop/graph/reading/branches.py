"""Branches whose condition is known: one of them is part of the graph, the other is gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


def take_known_branches(graph: GraphProto) -> bool:
    """In place; whether there were any. A branch may hold further ones, so call it again."""
    from onnx import numpy_helper

    known = {t.name: t for t in graph.initializer}
    known |= {n.output[0]: n.attribute[0].t for n in graph.node if _is_plain_constant(n)}
    nodes: list[NodeProto] = []
    found = False
    for node in graph.node:
        if node.op_type == "If" and node.input[0] in known:
            is_true = bool(numpy_helper.to_array(known[node.input[0]]).any())
            wanted = "then_branch" if is_true else "else_branch"
            branch = next(a.g for a in node.attribute if a.name == wanted)
            nodes.extend(_taken(graph, node, branch))
            found = True
        else:
            nodes.append(node)
    if found:
        del graph.node[:]
        graph.node.extend(nodes)
    return found


def _is_plain_constant(node: NodeProto) -> bool:
    return node.op_type == "Constant" and [a.name for a in node.attribute] == ["value"]


def _taken(graph: GraphProto, node: NodeProto, branch: GraphProto) -> list[NodeProto]:
    """The branch's nodes, under names that nothing outside of it has."""
    import onnx
    from onnx import helper

    own = [name for inner in branch.node for name in inner.output if name]
    own += [tensor.name for tensor in branch.initializer]
    renamed = {name: f"{node.output[0]}/{name}" for name in own}
    for tensor in branch.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = renamed[tensor.name]
        graph.initializer.append(copy)
    taken = []
    for inner in branch.node:
        copied = onnx.NodeProto()
        copied.CopyFrom(inner)
        _rename([copied], renamed)
        taken.append(copied)
    for result, output in zip(branch.output, node.output, strict=False):
        source = renamed.get(result.name, result.name)
        taken.append(helper.make_node("Identity", [source], [output]))
    return taken


def _rename(nodes: Iterable[NodeProto], renamed: Mapping[str, str]) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = renamed.get(name, name)
        for attribute in node.attribute:
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                for value in (*graph.output, *graph.initializer):
                    value.name = renamed.get(value.name, value.name)
                _rename(graph.node, renamed)
