"""Models that return classes and not their scores: another result, so never done unasked."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from edgeloop.graph.count import graph_info
from edgeloop.graph.rewrites.editor import FLOAT, GraphEditor, attribute
from edgeloop.graph.variants import class_axis

if TYPE_CHECKING:
    from onnx import NodeProto

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
