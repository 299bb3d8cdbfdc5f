"""Activations: GELU as one operator, and functions that the chip lacks by those that it has."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgeloop.graph.rewrites.editor import (
    CONTRIBUTED,
    FLOAT,
    GraphEditor,
    attribute,
    close_to,
    each,
    is_float,
)

if TYPE_CHECKING:
    from onnx import NodeProto

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
