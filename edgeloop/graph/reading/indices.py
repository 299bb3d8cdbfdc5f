"""How large the whole numbers may be that a model takes: a token must be in the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

# What an index passes on its way into a table without becoming another number.
_PASSED = {
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
_KEEP_SHAPE = ("Cast", "Identity", "DequantizeLinear")


def index_limits(path: Path) -> dict[str, int]:
    """For each input that picks rows of a constant table (`Gather`): how many rows the smallest
    such table has. Every value must be below that. Inputs that pick none are left out."""
    import onnx

    graph = onnx.load_model(str(path), load_external_data=False).graph
    tables = _tables(graph)
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in set(node.input):
            readers.setdefault(name, []).append(node)
    found = {value.name: _limit(value.name, readers, tables) for value in graph.input}
    return {name: limit for name, limit in found.items() if limit is not None}


def _tables(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes of all constants; weights of half precision may pass a Cast on their way."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    shapes[node.output[0]] = tuple(attribute.t.dims)
        elif node.op_type in _KEEP_SHAPE and node.input[0] in shapes:
            shapes[node.output[0]] = shapes[node.input[0]]
    return shapes


def _limit(
    name: str, readers: dict[str, list[NodeProto]], tables: dict[str, tuple[int, ...]]
) -> int | None:
    limits: list[int] = []
    waiting, seen = [name], {name}
    while waiting:
        value = waiting.pop()
        for node in readers.get(value, ()):
            if _is_lookup(node, value, tables):
                limits.append(_rows(node, tables[node.input[0]]))
            elif node.op_type in _PASSED and value in node.input[: _carried(node)]:
                fresh = [output for output in node.output if output not in seen]
                seen.update(fresh)
                waiting += fresh
    return min((limit for limit in limits if limit > 0), default=None)


def _is_lookup(node: NodeProto, value: str, tables: dict[str, tuple[int, ...]]) -> bool:
    is_gather = node.op_type == "Gather" and len(node.input) == 2
    return is_gather and node.input[1] == value and bool(tables.get(node.input[0]))


def _carried(node: NodeProto) -> int:
    """How many of its inputs a node hands on; the others only say how."""
    return len(node.input) if node.op_type == "Concat" else 1


def _rows(node: NodeProto, shape: tuple[int, ...]) -> int:
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return shape[axis] if -len(shape) <= axis < len(shape) else 0
