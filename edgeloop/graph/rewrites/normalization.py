"""Normalization: taken apart by exporters and put together again, or in a form that chips know.

Chips normalize over the last axis in one step and with more bits inside; the same in six steps of
8 bits each loses most of the signal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from edgeloop.graph.rewrites.editor import (
    CONTRIBUTED,
    FLOAT,
    GraphEditor,
    attribute,
    axes_of,
    close_to,
    each,
    is_float,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import NodeProto


_LAYER_NORM_OPSET = 17
_IMAGE_RANK = 4


@each("Sqrt", "Pow")
def fuse_layer_norm(editor: GraphEditor, root: NodeProto) -> bool:
    """(x - mean) / √(variance + ε), and the gain and bias behind it."""
    found = _deviation_over_root(editor, root)
    if found is None:
        return False
    source, nodes, axes, epsilon = found
    shape = editor.shape(source)
    if shape is None or editor.kind(source) != FLOAT or any(n.op_type == "RoiAlign" for n in nodes):
        return False
    side, order = _normalized_side(axes, len(shape))
    if side is None:
        return False
    gain, nodes = _constant_behind(editor, nodes, "Mul", shape, side)
    bias, nodes = _constant_behind(editor, nodes, "Add", shape, side)
    output = nodes[-1].output[0]
    if not editor.is_private(nodes, output):
        return False
    import numpy as np

    new = editor.replacement(nodes)
    width = shape[side]
    name = nodes[-1].name or output
    inputs = [new.transpose(source, order)]
    inputs.append(editor.floats(f"{name}_gain", np.ones(width) if gain is None else gain))
    if bias is not None:
        inputs.append(editor.floats(f"{name}_bias", bias))
    moved = tuple(shape[axis] for axis in order)
    is_last = order == sorted(order)
    normalized = new.add(
        "LayerNormalization",
        inputs,
        moved,
        output if is_last else "",
        axis=-1,
        epsilon=epsilon,
    )
    if not is_last:
        back = [order.index(axis) for axis in range(len(order))]
        new.transpose(normalized, back, output)
    new.done()
    editor.raise_opset(_LAYER_NORM_OPSET)
    return True


def _normalized_side(axes: list[int], rank: int) -> tuple[int | None, list[int]]:
    """The one axis that is normalized, and the order of axes in which it is the last."""
    if len(axes) != 1:
        return None, []
    order = [axis for axis in range(rank) if axis != axes[0]] + axes
    return axes[0], order


def _deviation_over_root(
    editor: GraphEditor, root: NodeProto
) -> tuple[str, list[NodeProto], list[int], float] | None:
    """x, the nodes of (x - mean) / √(variance + ε) in order, the axes and ε."""
    if root.op_type == "Pow" and editor.scalar(root.input[1]) not in (0.5, -0.5):
        return None
    is_inverse = root.op_type == "Pow" and editor.scalar(root.input[1]) == -0.5
    shifted = editor.maker(root.input[0], "Add")
    if shifted is None:
        return None
    epsilons = [editor.scalar(name) for name in shifted.input]
    place = next((n for n, value in enumerate(epsilons) if value is not None), None)
    if place is None:
        return None
    variance = editor.maker(shifted.input[1 - place], "ReduceMean")
    square = editor.maker(variance.input[0], "Pow", "Mul") if variance is not None else None
    if variance is None or square is None:
        return None
    if square.op_type == "Pow" and editor.scalar(square.input[1]) != 2:
        return None
    if square.op_type == "Mul" and square.input[0] != square.input[1]:
        return None
    deviation = editor.maker(square.input[0], "Sub")
    mean = editor.maker(deviation.input[1], "ReduceMean") if deviation is not None else None
    if deviation is None or mean is None or mean.input[0] != deviation.input[0]:
        return None
    source = str(deviation.input[0])
    last = _division(editor, root, is_inverse)
    if last is None:
        return None
    other = last[-1].input[1] if last[-1].input[0] == _root_of(last, root) else last[-1].input[0]
    deviations = [deviation]
    if other != deviation.output[0]:
        second = editor.maker(other, "Sub")
        if second is None or list(second.input) != list(deviation.input):
            return None
        deviations.append(second)
    rank = len(editor.shape(source) or ())
    axes = axes_of(editor, mean, rank)
    if axes is None or axes != axes_of(editor, variance, rank):
        return None
    if not all(attribute(node, "keepdims", 1) for node in (mean, variance)):
        return None
    nodes = [mean, *deviations, square, variance, shifted, root, *last]
    epsilon = epsilons[place]
    assert epsilon is not None
    return source, nodes, axes, epsilon


def _division(editor: GraphEditor, root: NodeProto, is_inverse: bool) -> list[NodeProto] | None:
    """Div by the root, or Mul by its inverse: [Div], [Reciprocal, Mul] or [Mul]."""
    if is_inverse:
        product = editor.only_reader(root.output[0], "Mul")
        return None if product is None else [product]
    reader = editor.only_reader(root.output[0], "Div", "Reciprocal")
    if reader is None:
        return None
    if reader.op_type == "Div":
        return [reader] if reader.input[1] == root.output[0] else None
    product = editor.only_reader(reader.output[0], "Mul")
    return None if product is None else [reader, product]


def _root_of(last: list[NodeProto], root: NodeProto) -> str:
    return str(last[0].output[0] if len(last) == 2 else root.output[0])


def _constant_behind(
    editor: GraphEditor, nodes: list[NodeProto], kind: str, shape: tuple[int, ...], side: int
) -> tuple[NDArray[Any] | None, list[NodeProto]]:
    """The constant that the result is multiplied by, or that is added to it, one per channel."""
    reader = editor.only_reader(nodes[-1].output[0], kind)
    if reader is None:
        return None, nodes
    other = reader.input[1] if reader.input[0] == nodes[-1].output[0] else reader.input[0]
    values = editor.constant(other)
    if values is None or values.ndim > len(shape):
        return None, nodes
    full = values.reshape([1] * (len(shape) - values.ndim) + list(values.shape))
    if any(size != 1 for axis, size in enumerate(full.shape) if axis != side):
        return None, nodes
    import numpy as np

    return np.broadcast_to(full.reshape(-1), (shape[side],)), [*nodes, reader]


@each("LayerNormalization")
def flatten_layer_norm(editor: GraphEditor, node: NodeProto) -> bool:
    """Over several axes: over one, after a Reshape."""
    shape = editor.shape(node.input[0])
    if shape is None or not is_float(editor, node) or len([n for n in node.output if n]) != 1:
        return False
    axis = int(attribute(node, "axis", -1)) % len(shape)
    values = [editor.constant(name) for name in node.input[1:] if name]
    if axis == len(shape) - 1 or not values:
        return False
    rest = shape[axis:]
    if any(value is None or value.shape != rest for value in values):
        return False
    new, name = editor.replacement([node]), node.name or node.output[0]
    flat = (*shape[:axis], math.prod(rest)) if axis else (1, math.prod(rest))
    inputs = [new.reshape(node.input[0], flat)]
    inputs += [editor.floats(f"{name}_weights", v.reshape(-1)) for v in values if v is not None]
    epsilon = attribute(node, "epsilon", 1e-5)
    made = new.add("LayerNormalization", inputs, flat, axis=-1, epsilon=epsilon)
    new.reshape(made, shape, node.output[0])
    new.done()
    return True


@each("GroupNormalization")
def split_group_norm(editor: GraphEditor, node: NodeProto) -> bool:
    """An InstanceNormalization of the groups, then gain and bias per channel."""
    import numpy as np

    shape = editor.shape(node.input[0])
    gain, bias = (editor.constant(name) for name in node.input[1:3])
    if shape is None or gain is None or bias is None or not is_float(editor, node):
        return False
    groups, name = int(attribute(node, "num_groups", 1)), node.name or node.output[0]
    new = editor.replacement([node])
    channel = (1, shape[1], *[1] * (len(shape) - 2))
    each_group = shape[1] // groups
    if gain.size == groups != shape[1]:
        gain, bias = np.repeat(gain, each_group), np.repeat(bias, each_group)
    grouped = (shape[0], groups, math.prod(shape[1:]) // groups)
    inputs = [new.reshape(node.input[0], grouped)]
    inputs.append(editor.floats(f"{name}_ones", np.ones(groups)))
    inputs.append(editor.floats(f"{name}_zeros", np.zeros(groups)))
    epsilon = attribute(node, "epsilon", 1e-5)
    normalized = new.add("InstanceNormalization", inputs, grouped, epsilon=epsilon)
    back = new.reshape(normalized, shape)
    scaled = new.add("Mul", [back, editor.floats(f"{name}_gain", gain.reshape(channel))], shape)
    shift = editor.floats(f"{name}_bias", bias.reshape(channel))
    new.add("Add", [scaled, shift], shape, node.output[0])
    new.done()
    return True


@each("InstanceNormalization")
def flatten_instance_norm(editor: GraphEditor, node: NodeProto) -> bool:
    """Over three sides: over one, after a Reshape."""
    shape = editor.shape(node.input[0])
    if shape is None or len(shape) < 5 or not is_float(editor, node):
        return False
    new = editor.replacement([node])
    flat = (*shape[:2], math.prod(shape[2:]))
    inputs = [new.reshape(node.input[0], flat), *node.input[1:]]
    epsilon = attribute(node, "epsilon", 1e-5)
    made = new.add("InstanceNormalization", inputs, flat, epsilon=epsilon)
    new.reshape(made, shape, node.output[0])
    new.done()
    return True


@each("BatchNormalization")
def scale_channels(editor: GraphEditor, node: NodeProto) -> bool:
    """Behind a Gemm a part of its weights; of an image a Conv of each channel; else Mul and Add.
    With 8 bits its five operands lose much, and compilers refuse some."""
    import numpy as np

    shape = editor.shape(node.input[0])
    values = [editor.constant(name) for name in node.input[1:]]
    if shape is None or not is_float(editor, node) or len(node.output) > 1:
        return False
    if any(value is None for value in values):
        return False
    gain, bias, mean, variance = (np.asarray(value) for value in values)
    factor = gain / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    shift = bias - mean * factor
    name, output = node.name or node.output[0], node.output[0]
    gemm = _gemm_before(editor, node)
    if gemm is not None:
        _fold_into_gemm(editor, gemm, node, factor, shift)
        return True
    new = editor.replacement([node])
    if len(shape) == _IMAGE_RANK:
        kernel = editor.floats(f"{name}_factor", factor.reshape(-1, 1, 1, 1))
        inputs = [node.input[0], kernel, editor.floats(f"{name}_shift", shift)]
        new.add("Conv", inputs, shape, output, group=shape[1], kernel_shape=[1, 1])
    else:
        sides = (1, -1, *[1] * (len(shape) - 2))
        factors = editor.floats(f"{name}_factor", factor.reshape(sides))
        scaled = new.add("Mul", [node.input[0], factors], shape)
        shifts = editor.floats(f"{name}_shift", shift.reshape(sides))
        new.add("Add", [scaled, shifts], shape, output)
    new.done()
    return True


def _gemm_before(editor: GraphEditor, node: NodeProto) -> NodeProto | None:
    """The plain Gemm or MatMul whose columns are the channels of a batch norm, if nothing else
    reads it; a Reshape of its rows may stand between."""
    source = node.input[0]
    shape = editor.shape(source) or ()
    if len(shape) != 2 or editor.only_reader(source) is not node:
        return None
    moved = editor.maker(source, "Reshape")
    if moved is not None:
        source = moved.input[0]
        if (editor.shape(source) or (0,))[-1] != shape[1] or editor.only_reader(
            source
        ) is not moved:
            return None
    maker = editor.maker(source, "Gemm", "MatMul")
    if maker is None or source in editor.ends:
        return None
    matrix = editor.shape(maker.input[1]) or ()
    plain = attribute(maker, "alpha", 1.0) == attribute(maker, "beta", 1.0) == 1
    constants = all(editor.is_constant(item) for item in maker.input[1:])
    return maker if plain and constants and len(matrix) == 2 else None


def _fold_into_gemm(
    editor: GraphEditor,
    gemm: NodeProto,
    norm: NodeProto,
    factor: NDArray[Any],
    shift: NDArray[Any],
) -> None:
    matrix = editor.constant(gemm.input[1])
    assert matrix is not None
    old = editor.constant(gemm.input[2]) if len(gemm.input) > 2 else None
    if attribute(gemm, "transB", 0):
        matrix = matrix.T
    bias = shift if old is None else old.reshape(-1) * factor + shift
    name, output = norm.name or norm.output[0], norm.output[0]
    shape, flat = editor.shape(norm.output[0]) or (), editor.shape(gemm.output[0]) or ()
    moved = [node for node in [editor.maker(norm.input[0], "Reshape")] if node is not None]
    new = editor.replacement([gemm, *moved, norm])
    first = gemm.input[0]
    if attribute(gemm, "transA", 0):
        first = new.transpose(first, (1, 0))
    rows = (math.prod(flat[:-1]), matrix.shape[0])
    inputs = [new.reshape(first, rows), editor.floats(f"{name}_matrix", matrix * factor)]
    inputs.append(editor.floats(f"{name}_shift", bias))
    new.add("Gemm", inputs, shape, output)
    new.done()


@each("LpNormalization")
def expand_l1_norm(editor: GraphEditor, node: NodeProto) -> bool:
    """Divided by the sum of absolute values."""
    shape = editor.shape(node.input[0])
    if shape is None or attribute(node, "p", 2) != 1 or not is_float(editor, node):
        return False
    axis = int(attribute(node, "axis", -1)) % len(shape)
    new, name = editor.replacement([node]), node.name or node.output[0]
    sizes = new.add("Abs", [node.input[0]], shape)
    total = tuple(1 if side == axis else size for side, size in enumerate(shape))
    summed = new.add("ReduceSum", [sizes, editor.ints(f"{name}_axes", [axis])], total, keepdims=1)
    new.add("Div", [node.input[0], summed], shape, node.output[0])
    new.done()
    return True


# Activations: GELU as one operator, and functions that the chip lacks by those that it has.


_GELU_OPSET = 20


@each("Erf")
def fuse_gelu(editor: GraphEditor, erf: NodeProto) -> bool:
    """x · ½ · (1 + erf(x / √2)), the three factors in any order."""
    scaled = editor.maker(erf.input[0], "Div", "Mul")
    shifted = editor.only_reader(erf.output[0], "Add")
    if scaled is None or shifted is None:
        return False
    source = _scaled_source(editor, scaled)
    if not source or not any(close_to(editor.scalar(name), 1) for name in shifted.input):
        return False
    product = _product(editor, shifted, source)
    if product is None:
        return False
    nodes = [scaled, erf, shifted, *product]
    output, shape = nodes[-1].output[0], editor.shape(source)
    if not editor.is_private(nodes, output) or shape is None or editor.kind(source) != FLOAT:
        return False
    new = editor.replacement(nodes)
    domain = "" if editor.opset >= _GELU_OPSET else CONTRIBUTED
    new.add("Gelu", [source], shape, output, domain=domain)
    new.done()
    return True


def _scaled_source(editor: GraphEditor, node: NodeProto) -> str:
    """The x of x / √2; empty where it is something else."""
    first, second = (str(name) for name in node.input)
    if node.op_type == "Div":
        return first if close_to(editor.scalar(second), math.sqrt(2)) else ""
    for one, other in ((first, second), (second, first)):
        if close_to(editor.scalar(other), math.sqrt(0.5)):
            return one
    return ""


def _product(editor: GraphEditor, factor: NodeProto, source: str) -> list[NodeProto] | None:
    """The Muls that make x · ½ · factor; the last one makes the result."""
    first = editor.only_reader(factor.output[0], "Mul")
    if first is None:
        return None
    other = _other(first, factor.output[0])
    half = editor.maker(other, "Mul")
    if half is not None and source in half.input:
        halved = close_to(editor.scalar(_other(half, source)), 0.5)
        return [half, first] if halved else None
    second = editor.only_reader(first.output[0], "Mul")
    if second is None:
        return None
    rest = _other(second, first.output[0])
    for one, two in ((other, rest), (rest, other)):
        if one == source and close_to(editor.scalar(two), 0.5):
            return [first, second]
    return None


def _other(node: NodeProto, name: str) -> str:
    return str(node.input[1] if node.input[0] == name else node.input[0])


@each("Softsign", "Celu", "Sinh", "Cosh", "Acos")
def compose(editor: GraphEditor, node: NodeProto) -> bool:
    """Functions by their formula."""
    shape = editor.shape(node.input[0])
    if not is_float(editor, node) or shape is None:
        return False
    new, source, output = editor.replacement([node]), node.input[0], node.output[0]
    name = node.name or output
    if node.op_type == "Softsign":
        size = new.add("Abs", [source], shape)
        shifted = new.add("Add", [size, editor.floats(f"{name}_one", 1.0)], shape)
        new.add("Div", [source, shifted], shape, output)
    elif node.op_type == "Celu":
        alpha = attribute(node, "alpha", 1.0)
        inside = new.add("Div", [source, editor.floats(f"{name}_alpha", alpha)], shape)
        curve = new.add("Elu", [inside], shape)
        new.add("Mul", [curve, editor.floats(f"{name}_alpha", alpha)], shape, output)
    elif node.op_type == "Acos":
        angle = new.add("Asin", [source], shape)
        new.add("Sub", [editor.floats(f"{name}_right_angle", math.pi / 2), angle], shape, output)
    else:
        rising = new.add("Exp", [source], shape)
        falling = new.add("Exp", [new.add("Neg", [source], shape)], shape)
        both = new.add("Sub" if node.op_type == "Sinh" else "Add", [rising, falling], shape)
        new.add("Mul", [both, editor.floats(f"{name}_half", 0.5)], shape, output)
    new.done()
    return True


@each("Pow")
def expand_powers(editor: GraphEditor, node: NodeProto) -> bool:
    """Squares and cubes as products, roots and inverses by their own operators; an exponent that
    is a whole number becomes a float."""
    exponent, shape = editor.scalar(node.input[1]), editor.shape(node.input[0])
    if exponent is None or shape is None or not is_float(editor, node):
        return False
    if editor.shape(node.output[0]) != shape:
        return False
    source, output = node.input[0], node.output[0]
    new = editor.replacement([node])
    if exponent == 2:
        new.add("Mul", [source, source], shape, output)
    elif exponent == 3:
        new.add("Mul", [new.add("Mul", [source, source], shape), source], shape, output)
    elif exponent == 0.5:
        new.add("Sqrt", [source], shape, output)
    elif exponent == -1:
        new.add("Reciprocal", [source], shape, output)
    elif exponent == -0.5:
        new.add("Reciprocal", [new.add("Sqrt", [source], shape)], shape, output)
    elif editor.kind(node.input[1]) != FLOAT:
        new.add("Pow", [source, editor.floats(f"{node.name}_exponent", exponent)], shape, output)
    else:
        return False
    new.done()
    return True
