"""How large a graph may be: counted in the file, before anything is made of it.

A few lines of functions that call each other twice are a billion nodes once they are inlined, and a
name of megabytes is copied by every pass. No exporter writes such files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from edgeloop.errors import UnusableModel

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

MOST_NODES = 50_000  # with functions written out: the largest language models have half of that
MOST_ENDS = 2_000  # inputs, and outputs
MOST_SIDES = 64  # of a tensor
MOST_CALLS = 100  # functions that call each other
LONGEST_NAME = 4_096

FunctionKey = tuple[str, str, str]


def check_limits(file: str, model: ModelProto) -> None:
    """Raises UnusableModel for a graph that no reader could get through."""
    graph = model.graph
    _check_count(file, "nodes", len(graph.node), MOST_NODES)
    _check_count(file, "functions", len(model.functions), MOST_NODES)
    _check_count(file, "inputs", len(graph.input) - len(graph.initializer), MOST_ENDS)
    _check_count(file, "outputs", len(graph.output), MOST_ENDS)
    _check_count(file, "nodes", _Calls(file, model).nodes_of(graph.node), MOST_NODES)
    for value in (*graph.input, *graph.output):
        if len(value.type.tensor_type.shape.dim) > MOST_SIDES:
            sides = len(value.type.tensor_type.shape.dim)
            reason = f"its tensor {_short(value.name)!r} has {sides:,} sides"
            raise UnusableModel(file=file, reason=f"{reason}, more than {MOST_SIDES}")
    for name in _names(model):
        if len(name) > LONGEST_NAME:
            reason = f"the name {_short(name)!r} has {len(name):,} characters"
            raise UnusableModel(file=file, reason=f"{reason}, more than {LONGEST_NAME:,}")


class _Calls:
    """Nodes as they will be when every function is written out where it is called."""

    def __init__(self, file: str, model: ModelProto) -> None:
        self._file = file
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._counted: dict[FunctionKey, int] = {}
        self._open: list[FunctionKey] = []

    def nodes_of(self, nodes: Iterable[NodeProto]) -> int:
        return sum(self._size(node) for node in nodes)

    def _size(self, node: NodeProto) -> int:
        inner = sum(self.nodes_of(graph.node) for graph in _graphs_in(node))
        key = (node.domain, node.op_type, node.overload)
        return inner + (self._size_of_function(key) if key in self._functions else 1)

    def _size_of_function(self, key: FunctionKey) -> int:
        if key not in self._counted:
            if key in self._open or len(self._open) > MOST_CALLS:
                reason = f"its functions call each other without end ({_short(key[1])})"
                raise UnusableModel(file=self._file, reason=reason)
            self._open.append(key)
            self._counted[key] = self.nodes_of(self._functions[key].node)
            self._open.pop()
        return self._counted[key]


def _check_count(file: str, what: str, count: int, most: int) -> None:
    if count > most:
        shown = f"{count:,}" if count < 10**9 else "billions of"
        raise UnusableModel(file=file, reason=f"it has {shown} {what}, more than {most:,}")


def _graphs_in(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def _names(model: ModelProto) -> Iterator[str]:
    yield from (model.producer_name, model.producer_version, model.domain, model.graph.name)
    yield from (opset.domain for opset in model.opset_import)
    yield from _names_in_graph(model.graph)
    for function in model.functions:
        yield from (function.domain, function.name, *function.input, *function.output)
        yield from _names_in_nodes(function.node)


def _names_in_graph(graph: GraphProto) -> Iterator[str]:
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            yield from _names_of(value)
    yield from (tensor.name for tensor in graph.initializer)
    yield from _names_in_nodes(graph.node)


def _names_of(value: ValueInfoProto) -> Iterator[str]:
    yield value.name
    yield from (side.dim_param for side in value.type.tensor_type.shape.dim)


def _names_in_nodes(nodes: Iterable[NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        for graph in _graphs_in(node):
            yield from _names_in_graph(graph)


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:60]}…"
