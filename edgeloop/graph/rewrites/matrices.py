"""Products of matrices: Einsum, and the forms of Gemm and MatMul that compilers refuse."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgeloop.graph.rewrites.editor import (
    AXES_AS_INPUT,
    FLOAT,
    GraphEditor,
    Replacement,
    attribute,
    axes_of,
    each,
    is_float,
)

if TYPE_CHECKING:
    from onnx import NodeProto


_PLAIN_RANK = 4


@each("Einsum")
def expand_einsum(editor: GraphEditor, node: NodeProto) -> bool:
    """One or more operands without repeated or omitted letters: ReduceSum, Transpose, MatMul."""
    terms = _terms(node)
    shapes = [editor.shape(name) for name in node.input]
    if terms is None or any(editor.kind(name) != FLOAT for name in node.input):
        return False
    operands, result = terms
    sizes: dict[str, int] = {}
    for letters, shape in zip(operands, shapes, strict=True):
        if shape is None or len(shape) != len(letters):
            return False
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                return False  # a side of 1 that is stretched
    new = editor.replacement([node])
    contraction = _Contraction(editor, new, sizes)
    tensor, letters = node.input[0], operands[0]
    for index in range(1, len(operands)):
        later = set(result).union(*operands[index + 1 :])
        tensor, letters = contraction.pair(
            (tensor, letters), (node.input[index], operands[index]), later
        )
    tensor, letters = contraction.summed((tensor, letters), set(result))
    order = [letters.index(letter) for letter in result]
    new.transpose(tensor, order, node.output[0])
    new.done()
    return True


def _terms(node: NodeProto) -> tuple[list[str], str] | None:
    equation = str(attribute(node, "equation", "")).replace(" ", "")
    left, arrow, result = equation.partition("->")
    operands = left.split(",")
    if "." in equation or len(operands) != len(node.input):
        return None
    if not arrow:
        letters = left.replace(",", "")
        result = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    terms = [*operands, result]
    if any(len(set(term)) != len(term) or not term for term in terms):
        return None
    return (operands, result) if set(result) <= set(left) else None


class _Contraction:
    """Operands are a tensor and the letter of each of its sides."""

    def __init__(self, editor: GraphEditor, new: Replacement, sizes: dict[str, int]) -> None:
        self._editor = editor
        self._new = new
        self._sizes = sizes

    def summed(self, operand: tuple[str, str], remaining: set[str]) -> tuple[str, str]:
        """Sums over the sides that the result does not have."""
        tensor, letters = operand
        axes = [axis for axis, letter in enumerate(letters) if letter not in remaining]
        if not axes:
            return operand
        rest = "".join(letter for letter in letters if letter in remaining)
        where = self._editor.ints(f"{tensor}_axes", axes)
        shape = [self._sizes[letter] for letter in rest]
        return self._new.add("ReduceSum", [tensor, where], shape, keepdims=0), rest

    def pair(
        self, first: tuple[str, str], second: tuple[str, str], later: set[str]
    ) -> tuple[str, str]:
        """The product of two operands, with the sides that are wanted later."""
        first = self.summed(first, later | set(second[1]))
        second = self.summed(second, later | set(first[1]))
        both = [letter for letter in first[1] if letter in second[1]]
        batch = "".join(letter for letter in both if letter in later)
        inner = "".join(letter for letter in both if letter not in later)
        rows = "".join(letter for letter in first[1] if letter not in both)
        columns = "".join(letter for letter in second[1] if letter not in both)
        left = self._arranged(first, (batch, rows, inner))
        right = self._arranged(second, (batch, inner, columns))
        letters = batch + rows + columns
        groups = self._groups((batch, rows, columns))
        product = self._new.add("MatMul", [left, right], groups)
        return self._new.reshape(product, [self._sizes[letter] for letter in letters]), letters

    def _arranged(self, operand: tuple[str, str], parts: tuple[str, str, str]) -> str:
        tensor, letters = operand
        order = [letters.index(letter) for letter in "".join(parts)]
        return self._new.reshape(self._new.transpose(tensor, order), self._groups(parts))

    def _groups(self, parts: tuple[str, str, str]) -> list[int]:
        """Sides of the batch as they are where there are few; rows and columns in one side."""
        batch = [self._sizes[letter] for letter in parts[0]]
        if len(batch) + 2 > _PLAIN_RANK:
            batch = [math.prod(batch)]
        ends = [math.prod(self._sizes[letter] for letter in part) for part in parts[1:]]
        return [*batch, *ends]


@each("Gemm")
def plain_gemm(editor: GraphEditor, node: NodeProto) -> bool:
    """Factors go into the weights, a bias that is a matrix is added behind, and a product of two
    computed matrices is a MatMul."""
    shape = editor.shape(node.output[0])
    weights = editor.constant(node.input[1])
    bias_name = node.input[2] if len(node.input) > 2 else ""
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    bias_shape = editor.shape(bias_name) if bias_name else ()
    is_row = not bias_name or (
        editor.is_constant(bias_name)
        and bias_shape is not None
        and shape is not None
        and math.prod(bias_shape) == shape[1]
    )
    is_flat = not bias_name or len(bias_shape or (0, 0)) == 1
    plain = (
        weights is not None and is_row and is_flat and alpha == 1 and (beta == 1 or not bias_name)
    )
    if plain or shape is None or not is_float(editor, node):
        return False
    new, name = editor.replacement([node]), node.name or node.output[0]
    bias = editor.constant(bias_name) if bias_name else None
    first = node.input[0]
    if attribute(node, "transA", 0):
        first = new.transpose(first, (1, 0))
    if weights is not None:
        matrix = weights.T if attribute(node, "transB", 0) else weights
        inputs = [first, editor.floats(f"{name}_matrix", matrix * alpha)]
        if is_row and bias is not None:
            inputs.append(editor.floats(f"{name}_bias", bias.reshape(-1) * beta))
        has_more = bool(bias_name) and not is_row
        product = new.add("Gemm", inputs, shape, "" if has_more else node.output[0])
        if not has_more:
            new.done()
            return True
    else:
        second = node.input[1]
        if attribute(node, "transB", 0):
            second = new.transpose(second, (1, 0))
        is_end = not bias_name and alpha == 1
        product = new.add("MatMul", [first, second], shape, node.output[0] if is_end else "")
        if alpha != 1:
            scale = editor.floats(f"{name}_alpha", alpha)
            product = new.add("Mul", [product, scale], shape, "" if bias_name else node.output[0])
    if bias_name:
        added = bias_name if bias is None else editor.floats(f"{name}_bias", bias * beta)
        if bias is None and beta != 1:
            scale = editor.floats(f"{name}_beta", beta)
            added = new.add("Mul", [bias_name, scale], bias_shape or ())
        new.add("Add", [product, added], shape, node.output[0])
    new.done()
    return True


@each("MatMul")
def fuse_linear(editor: GraphEditor, node: NodeProto) -> bool:
    """A constant matrix, and the bias that follows, as a Gemm: chips have one step for both."""
    first, matrix = editor.shape(node.input[0]), editor.constant(node.input[1])
    if first is None or matrix is None or matrix.ndim != 2 or not is_float(editor, node):
        return False
    if len(first) < 2 or editor.is_constant(node.input[0]):
        return False
    nodes, bias = [node], None
    adding = editor.only_reader(node.output[0], "Add")
    if adding is not None:
        other = adding.input[1] if adding.input[0] == node.output[0] else adding.input[0]
        values, shape = editor.constant(other), editor.shape(other) or ()
        if values is not None and values.size == matrix.shape[1] == shape[-1]:
            nodes, bias = [node, adding], values.reshape(-1)
    output = nodes[-1].output[0]
    shape = editor.shape(output) or ()
    if len(shape) != len(first):
        return False
    new, name = editor.replacement(nodes), nodes[-1].name or output
    flat = (math.prod(first[:-1]), matrix.shape[1])
    inputs = [new.reshape(node.input[0], (flat[0], first[-1])), node.input[1]]
    if bias is not None:
        inputs.append(editor.floats(f"{name}_bias", bias))
    product = new.add("Gemm", inputs, flat, output if len(first) == 2 else "")
    if len(first) > 2:
        new.reshape(product, shape, output)
    new.done()
    return True


@each("MatMul")
def flatten_matmul(editor: GraphEditor, node: NodeProto) -> bool:
    """Five sides or more times a matrix: rows in one side."""
    first, second = (editor.shape(name) for name in node.input)
    shape = editor.shape(node.output[0])
    if first is None or second is None or shape is None or not is_float(editor, node):
        return False
    rank = max(len(first), len(second))
    if rank <= _PLAIN_RANK or len(first) < 2 or len(second) < 2:
        return False
    batched = rank > _PLAIN_RANK + 1 and first[:-2] == second[:-2]
    if len(second) != 2 and not batched:
        return False
    new = editor.replacement([node])
    if len(second) == 2:
        left = new.reshape(node.input[0], (math.prod(first[:-1]), first[-1]))
        flat = (math.prod(first[:-1]), second[-1])
        product = new.add("MatMul", [left, node.input[1]], flat)
    else:
        count = math.prod(first[:-2])
        left = new.reshape(node.input[0], (count, *first[-2:]))
        right = new.reshape(node.input[1], (count, *second[-2:]))
        product = new.add("MatMul", [left, right], (count, first[-2], second[-1]))
    new.reshape(product, shape, node.output[0])
    new.done()
    return True


# Reductions that chips lack, by those that they have; and sums along an axis.


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
        reduced = axes_of(editor, node, len(shape))
        if reduced is None:
            return False
        axes, keeps = reduced, int(attribute(node, "keepdims", 1))
    with_ones = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    new, source, output = editor.replacement([node]), node.input[0], node.output[0]
    where = editor.ints(f"{name}_axes", axes)
    if kind == "ReduceLogSumExp":
        largest = _largest(editor, new, source, axes, with_ones)
        apart = new.add("Exp", [new.add("Sub", [source, largest], shape)], shape)
        total = new.add("ReduceSum", [apart, where], with_ones, keepdims=1)
        logged = new.add("Log", [total], with_ones)
        last = new.add("Add", [logged, largest], with_ones, output if keeps else "")
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
    editor: GraphEditor, new: Replacement, source: str, axes: list[int], shape: tuple[int, ...]
) -> str:
    """ReduceMax: its axes are an attribute in older opsets and an input in newer ones."""
    if editor.opset < AXES_AS_INPUT:
        return new.add("ReduceMax", [source], shape, keepdims=1, axes=axes)
    where = editor.ints(f"{source}_axes", axes)
    return new.add("ReduceMax", [source, where], shape, keepdims=1)


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
