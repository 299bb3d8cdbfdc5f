"""Channels up to a multiple that suits the chip: the added ones are zero and nobody reads them.

Convolutions that make a tensor get empty kernels, those that read it ignore the new channels. What
lies between has to treat every channel by itself, and nothing else may see the tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeloop.graph.advice.sites import (
    POINTWISE,
    Convolution,
    add_convolution,
    convolution,
    sites,
)
from edgeloop.graph.rewrites.editor import GraphEditor, attribute

if TYPE_CHECKING:
    from onnx import NodeProto

MULTIPLE = 32
_BY_CHANNEL = frozenset((*POINTWISE, "MaxPool", "AveragePool", "GlobalAveragePool"))
_MOST_NODES = 40


@sites("Conv")
def pad_channels(editor: GraphEditor, node: NodeProto) -> bool:
    """Tensors whose channels are no multiple of 32: padded with channels that nobody reads."""
    conv = convolution(editor, node)
    if conv is None or conv.group != 1 or conv.kernel.shape[0] % MULTIPLE == 0:
        return False
    count = conv.kernel.shape[0]
    region = _region(editor, conv.output, count)
    if region is None:
        return False
    makers, readers, between = region
    wide = -(-count // MULTIPLE) * MULTIPLE
    nodes = {id(n): n for n in (*makers, *readers, *between)}
    order = [n for n in editor.nodes if id(n) in nodes]
    renamed: dict[str, str] = {}
    made_by = {id(n) for n in makers}
    for one in order:
        _widen(editor, one, renamed, id(one) in made_by, one in readers, wide)
    return True


def _widen(
    editor: GraphEditor,
    node: NodeProto,
    renamed: dict[str, str],
    makes: bool,
    reads: bool,
    wide: int,
) -> None:
    """One node of a region, with more channels where it makes or reads them."""
    import numpy as np

    new = editor.replacement([node])
    output = str(node.output[0])
    shape = list(editor.shape(output) or ())
    inputs = [renamed.get(name, name) for name in node.input]
    conv = convolution(editor, node)
    if conv is None:
        shape[1] = wide
        settings = {a.name: attribute(node, a.name) for a in node.attribute}
        renamed[output] = new.add(node.op_type, inputs, shape, domain=node.domain, **settings)
    else:
        kernel, bias, group = conv.kernel, conv.bias, conv.group
        by_channel = not makes and not reads
        if reads:
            kernel = np.pad(kernel, ((0, 0), (0, wide - kernel.shape[1]), (0, 0), (0, 0)))
        if makes or by_channel:
            more = wide - kernel.shape[0]
            kernel, bias = (
                np.pad(kernel, ((0, more), (0, 0), (0, 0), (0, 0))),
                np.pad(bias, (0, more)),
            )
            shape[1] = wide
        if by_channel:
            group = wide
        target = output if not (makes or by_channel) else ""
        made = add_convolution(
            editor, new, conv, inputs[0], kernel, bias, tuple(shape), target, group=group
        )
        if not target:
            renamed[output] = made
    new.done()


def _region(
    editor: GraphEditor, name: str, count: int
) -> tuple[list[NodeProto], list[NodeProto], list[NodeProto]] | None:
    """Convolutions that make, those that read, and all between of tensors whose channels belong
    together; None where somebody else makes or reads one of them."""
    makers: list[NodeProto] = []
    readers: list[NodeProto] = []
    between: list[NodeProto] = []
    seen, waiting = set(), [name]
    while waiting:
        tensor = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        node = editor.maker(tensor)
        if node is None or tensor in editor.ends or len(seen) > _MOST_NODES:
            return None
        for one, is_maker in ((node, True), *((n, False) for n in editor.readers(tensor))):
            role = _role(editor, one, tensor, is_maker, count)
            if role == "":
                return None
            place = {"makes": makers, "reads": readers, "between": between}[role]
            if any(one is other for other in place):
                continue
            place.append(one)
            if role == "between":
                waiting.extend(str(n) for n in one.input if not editor.is_constant(n) and n)
                waiting.append(str(one.output[0]))
    if any(one is other for one in makers for other in readers):
        return None
    return makers, readers, between


def _role(editor: GraphEditor, node: NodeProto, tensor: str, is_maker: bool, count: int) -> str:
    conv: Convolution | None = convolution(editor, node)
    if conv is not None:
        if conv.group == 1:
            return "makes" if is_maker else "reads" if conv.source == tensor else ""
        by_channel = conv.group == count and conv.kernel.shape[:2] == (count, 1)
        return "between" if by_channel else ""
    if node.op_type in _BY_CHANNEL and len(node.output) == 1:
        rest = [name for name in node.input[1:] if name]
        return "between" if all(_is_scalar(editor, name) for name in rest) else ""
    if node.op_type in ("Add", "Mul"):
        shapes = {editor.shape(name) for name in node.input}
        return (
            "between" if len(shapes) == 1 and not any(map(editor.is_constant, node.input)) else ""
        )
    return ""


def _is_scalar(editor: GraphEditor, name: str) -> bool:
    return editor.scalar(name) is not None
