"""Reductions that chips lack, by those that they have; and sums along an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeloop.graph.rewrites.editor import (
    AXES_AS_INPUT,
    GraphEditor,
    Replacement,
    attribute,
    axes_of,
    each,
    is_float,
)

if TYPE_CHECKING:
    from onnx import NodeProto


@each("ReduceL1", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "GlobalLpPool")
def expand_reductions(editor: GraphEditor, node: NodeProto) -> bool:
    """A ReduceSum of absolute values, of squares or of exponentials."""
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None or not is_float(editor, node):
        return False
    kind, name = node.op_type, node.name or node.output[0]
    if kind == "GlobalLpPool":
        if attribute(node, "p", 2) != 2:
            return False
        axes, keeps = list(range(2, len(shape))), 1
    else:
        found = axes_of(editor, node, len(shape))
        if found is None:
            return False
        axes, keeps = found, int(attribute(node, "keepdims", 1))
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    new, source, output = editor.replacement([node]), node.input[0], node.output[0]
    where = editor.ints(f"{name}_axes", axes)
    if kind == "ReduceLogSumExp":
        largest = _largest(editor, new, source, axes, kept)
        apart = new.add("Exp", [new.add("Sub", [source, largest], shape)], shape)
        total = new.add("ReduceSum", [apart, where], kept, keepdims=1)
        logged = new.add("Log", [total], kept)
        last = new.add("Add", [logged, largest], kept, output if keeps else "")
        if not keeps:
            new.reshape(last, result, output)
    else:
        each_value = source
        if kind == "ReduceL1":
            each_value = new.add("Abs", [source], shape)
        elif kind in ("ReduceSumSquare", "GlobalLpPool"):
            each_value = new.add("Mul", [source, source], shape)
        after = {"ReduceLogSum": "Log", "GlobalLpPool": "Sqrt"}.get(kind, "")
        total = new.add(
            "ReduceSum", [each_value, where], result, "" if after else output, keepdims=keeps
        )
        if after:
            new.add(after, [total], result, output)
    new.done()
    return True


def _largest(
    editor: GraphEditor, new: Replacement, source: str, axes: list[int], kept: tuple[int, ...]
) -> str:
    """ReduceMax: its axes are an attribute in older opsets and an input in newer ones."""
    if editor.opset < AXES_AS_INPUT:
        return new.add("ReduceMax", [source], kept, keepdims=1, axes=axes)
    where = editor.ints(f"{source}_axes", axes)
    return new.add("ReduceMax", [source, where], kept, keepdims=1)


@each("CumSum")
def multiply_by_triangle(editor: GraphEditor, node: NodeProto) -> bool:
    """Sums of all values before each one: a MatMul with a triangle of ones."""
    import numpy as np

    shape, axis = editor.shape(node.input[0]), editor.scalar(node.input[1])
    if shape is None or axis is None or not is_float(editor, node):
        return False
    side = int(axis) % len(shape)
    ones = np.ones((shape[side], shape[side]))
    triangle = np.triu(ones, 1 if attribute(node, "exclusive", 0) else 0)
    if attribute(node, "reverse", 0):
        triangle = triangle.T
    order = [other for other in range(len(shape)) if other != side] + [side]
    new, name = editor.replacement([node]), node.name or node.output[0]
    moved = new.transpose(node.input[0], order)
    is_last = side == len(shape) - 1
    product = new.add(
        "MatMul",
        [moved, editor.floats(f"{name}_triangle", triangle)],
        [shape[other] for other in order],
        node.output[0] if is_last else "",
    )
    if not is_last:
        back = [order.index(other) for other in range(len(shape))]
        new.transpose(product, back, node.output[0])
    new.done()
    return True


@each("Trilu")
def multiply_by_mask(editor: GraphEditor, node: NodeProto) -> bool:
    """Zeros on one side of the diagonal: a Mul with a constant mask."""
    import numpy as np

    shape = editor.shape(node.input[0])
    offset = editor.scalar(node.input[1]) if len(node.input) > 1 and node.input[1] else 0
    if shape is None or offset is None or not is_float(editor, node):
        return False
    cut = np.triu if attribute(node, "upper", 1) else np.tril
    new, name = editor.replacement([node]), node.name or node.output[0]
    mask = editor.floats(f"{name}_mask", cut(np.ones(shape[-2:]), int(offset)))
    new.add("Mul", [node.input[0], mask], shape, node.output[0])
    new.done()
    return True


@each("Max", "Min", "Sum", "Mean")
def drop_single_operands(editor: GraphEditor, node: NodeProto) -> bool:
    """The largest, smallest, sum or mean of one tensor is that tensor."""
    shape = editor.shape(node.input[0])
    if len(node.input) != 1 or shape is None:
        return False
    new = editor.replacement([node])
    new.reshape(node.input[0], shape, node.output[0])
    new.done()
    return True
