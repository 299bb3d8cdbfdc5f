"""Activations that exporters write in pieces, as the one operator that they are."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from edgeloop.graph.count import graph_info
from edgeloop.graph.rewrites.editor import FLOAT, GraphEditor, attribute, close_to, each
from edgeloop.graph.variants import class_axis

if TYPE_CHECKING:
    from onnx import NodeProto


_HARD_SWISH_OPSET = 14


@each("Clip", "HardSigmoid")
def fuse_hard_swish(editor: GraphEditor, node: NodeProto) -> bool:
    """x · clip(x + 3, 0, 6) / 6, the division anywhere: HardSwish."""
    if editor.opset < _HARD_SWISH_OPSET:
        return False
    gate = _gate(editor, node)
    if gate is None:
        return False
    nodes, source, factor = gate
    last, name = nodes[-1], str(nodes[-1].output[0])
    while True:
        reader = editor.only_reader(name, "Mul", "Div")
        if reader is None:
            return False
        other = str(reader.input[1] if reader.input[0] == name else reader.input[0])
        value = editor.scalar(other)
        nodes.append(reader)
        last, name = reader, str(reader.output[0])
        if value is not None:
            factor = _scaled(reader, other, factor, value)
        elif other == source and reader.op_type == "Mul" and source not in ("", name):
            source, taken = "", source
        else:
            return False
        if not source and close_to(factor, 1 / 6):
            break
        if len(nodes) > 5:
            return False
    shape = editor.shape(taken)
    if shape is None or editor.kind(taken) != FLOAT or not editor.is_private(nodes, name):
        return False
    new = editor.replacement(nodes)
    new.add("HardSwish", [taken], shape, str(last.output[0]))
    new.done()
    return True


def _scaled(node: NodeProto, operand: str, factor: float, value: float) -> float:
    if node.op_type == "Mul":
        return factor * value
    return factor / value if node.input[1] == operand and value else 0.0


def _gate(editor: GraphEditor, node: NodeProto) -> tuple[list[NodeProto], str, float] | None:
    """clip(x + 3, 0, 6), with x and the factor that makes it 6 times a HardSigmoid."""
    if node.op_type == "HardSigmoid":
        alpha, beta = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
        is_gate = close_to(alpha, 1 / 6) and close_to(beta, 0.5)
        return ([node], str(node.input[0]), 1 / 6) if is_gate else None
    if len(node.input) != 3:
        return None
    low, high = (editor.scalar(name) for name in node.input[1:])
    added = editor.maker(node.input[0], "Add")
    if low != 0 or not close_to(high, 6) or added is None:
        return None
    if editor.only_reader(added.output[0]) is not node:
        return None
    for one, other in ((0, 1), (1, 0)):
        if close_to(editor.scalar(added.input[other]), 3):
            return [added, node], str(added.input[one]), 1.0
    return None


# Models that return classes and not their scores: another result, so never done unasked.


_INT64, _INT32 = 7, 6
_MONOTONOUS = ("Softmax", "LogSoftmax", "Sigmoid")


def end_in_classes(editor: GraphEditor, only: Collection[str] | None = None) -> list[str]:
    """The class with the largest score, of every image or pixel, in place of all scores."""
    from onnx import helper

    if len(editor.graph.output) != 1:
        return []
    output = editor.graph.output[0]
    shape, last = editor.shape(output.name), editor.maker(output.name)
    axis = _class_axis(editor, shape) if shape is not None else None
    if shape is None or last is None or axis is None or editor.kind(output.name) != FLOAT:
        return []
    if editor.readers(output.name):
        return []
    label = last.name or output.name
    if only is not None and label not in only:
        return []
    scores, gone = output.name, _monotonous(editor, last, axis, len(shape))
    if gone:
        scores = str(last.input[0])
    result = (*shape[:axis], *shape[axis + 1 :])
    nodes = [n for n in editor.nodes if not (gone and n is last)]
    wide, name = f"{output.name}_index", f"{output.name}_classes"
    nodes.append(helper.make_node("ArgMax", [scores], [wide], wide, axis=axis, keepdims=0))
    nodes.append(helper.make_node("Cast", [wide], [name], name, to=_INT32))
    editor.nodes = nodes
    if not gone:
        editor.graph.value_info.append(output)
    editor.graph.value_info.append(helper.make_tensor_value_info(wide, _INT64, result))
    editor.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, _INT32, result))
    editor.ends = {name}
    return [label]


def _class_axis(editor: GraphEditor, shape: tuple[int, ...]) -> int | None:
    """Of scores of images or of pixels."""
    if len(shape) == 2:
        return 1 if shape[1] > 1 else None
    return class_axis(graph_info("model", editor.model)) if len(shape) == 4 else None


def _monotonous(editor: GraphEditor, node: NodeProto, axis: int, rank: int) -> bool:
    """Whether the largest value is at the same place in front of it."""
    if node.op_type not in _MONOTONOUS or len(editor.readers(node.input[0])) != 1:
        return False
    if node.op_type == "Sigmoid":
        return True
    return int(attribute(node, "axis", -1)) % rank == axis
