"""Channels up to a multiple that suits the chip: the added ones are zero and never read.

Convolutions that make a tensor get empty kernels, those that read it ignore the new channels. What
lies between has to treat every channel by itself, and nothing else may see the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.graph.rewrites.editor import (
    FLOAT,
    POINTWISE,
    Convolution,
    GraphEditor,
    attribute,
    convolution,
    each,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from edgeloop.graph.rewrites.editor import Floats


MULTIPLE = 32
_BY_CHANNEL = frozenset((*POINTWISE, "MaxPool", "AveragePool", "GlobalAveragePool"))
_MOST_NODES = 40


@each("Conv")
def pad_channels(editor: GraphEditor, node: NodeProto) -> bool:
    """Tensors whose channels are no multiple of 32: padded with channels that are never read."""
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
        made = new.add_convolution(conv, inputs[0], kernel, bias, tuple(shape), target, group=group)
        if not target:
            renamed[output] = made
    new.done()


def _region(
    editor: GraphEditor, name: str, count: int
) -> tuple[list[NodeProto], list[NodeProto], list[NodeProto]] | None:
    """Convolutions that make, those that read, and all between of tensors whose channels belong
    together; None where another node makes or reads one of them."""
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


# Factors and offsets of channels, such as the normalization of an image, inside convolutions.
#
# A factor always fits into the kernel. An offset in front of a convolution that pads with zeros
# does not fit into its bias alone, since the padding has no offset: what is missing at the border
# is added as a constant map, which is zero everywhere else.


_AFFINE = ("Mul", "Div", "Add", "Sub", "BatchNormalization")
_TO_CHANNEL_FIRST = [0, 3, 1, 2]
_FEW_CHANNELS = 4


@dataclass(frozen=True)
class _Affine:
    """`nodes` together compute source · scale + shift, with one of each per channel; `moved` is the
    Transpose among them from channel last to channel first."""

    nodes: tuple[NodeProto, ...]
    source: str
    scale: Floats
    shift: Floats
    moved: NodeProto | None = None


@each("Conv")
def fold_before(editor: GraphEditor, node: NodeProto) -> bool:
    """Factors and offsets in front of a convolution: into its kernel and bias."""
    return _fold(editor, node, has_border=False)


@each("Conv")
def fold_with_border(editor: GraphEditor, node: NodeProto) -> bool:
    """The same where the convolution pads: with a constant map for the border behind it."""
    return _fold(editor, node, has_border=True)


def _fold(editor: GraphEditor, node: NodeProto, has_border: bool) -> bool:
    conv = convolution(editor, node)
    affine = conv and _before(editor, conv)
    if not conv or not affine or conv.group != 1:
        return False
    shifted = (conv.kernel * affine.shift.reshape(1, -1, 1, 1)).sum(axis=1)
    border = _border(editor, conv, shifted)
    if (border is not None) != has_border:
        return False
    new = editor.replacement([*affine.nodes, node])
    source = affine.source
    if affine.moved is not None:
        source = new.transpose(source, _TO_CHANNEL_FIRST)
    kernel = conv.kernel * affine.scale.reshape(1, -1, 1, 1)
    bias = conv.bias + shifted.sum(axis=(1, 2))
    shape = editor.shape(conv.output)
    assert shape is not None
    if border is None:
        new.add_convolution(conv, source, kernel, bias, shape, conv.output)
    else:
        made = new.add_convolution(conv, source, kernel, bias, shape)
        name = f"{node.name or conv.output}_border"
        new.add("Add", [made, editor.floats(name, border)], shape, conv.output)
    new.done()
    return True


@each("Conv")
def mix_before(editor: GraphEditor, node: NodeProto) -> bool:
    """Factors and offsets in front of a convolution: as a convolution of single pixels."""
    conv = convolution(editor, node)
    affine = conv and _before(editor, conv)
    if not conv or not affine or affine.moved is not None:
        return False
    count = len(affine.scale)
    if count > _FEW_CHANNELS:
        return False
    import numpy as np

    new = editor.replacement([*affine.nodes, node])
    name = affine.nodes[0].name or affine.nodes[0].output[0]
    mixed = new.add_pointwise(name, affine.source, np.diag(affine.scale), affine.shift)
    shape = editor.shape(conv.output)
    assert shape is not None
    new.add_convolution(conv, mixed, conv.kernel, conv.bias, shape, conv.output)
    new.done()
    return True


@each(*_AFFINE)
def fold_behind(editor: GraphEditor, node: NodeProto) -> bool:
    """Factors and offsets behind a convolution: into its kernel and bias."""
    step = _step(editor, node, axis=1)
    conv = convolution(editor, editor.maker(step.source, "Conv")) if step else None
    if step is None or conv is None or editor.only_reader(conv.output) is not node:
        return False
    new = editor.replacement([conv.node, node])
    shape = editor.shape(conv.output)
    assert shape is not None
    kernel = conv.kernel * step.scale.reshape(-1, 1, 1, 1)
    bias = conv.bias * step.scale + step.shift
    new.add_convolution(conv, conv.source, kernel, bias, shape, str(node.output[0]))
    new.done()
    return True


@each("Sub", "Div")
def plain_operands(editor: GraphEditor, node: NodeProto) -> bool:
    """Sub and Div by constants: Add and Mul."""
    import numpy as np

    values = editor.constant(node.input[1])
    shape = editor.shape(node.output[0])
    if values is None or shape is None or editor.kind(node.output[0]) != FLOAT:
        return False
    if node.op_type == "Div" and not np.all(np.abs(values) > np.finfo(np.float32).tiny):
        return False
    wide = values.astype(np.float64)
    kind, other = ("Add", -wide) if node.op_type == "Sub" else ("Mul", 1 / wide)
    new = editor.replacement([node])
    operand = editor.floats(node.input[1], other)
    new.add(kind, [node.input[0], operand], shape, node.output[0])
    new.done()
    return True


def _before(editor: GraphEditor, conv: Convolution) -> _Affine | None:
    """All that only scales and shifts the channels that a convolution alone reads."""
    import numpy as np

    channels = conv.kernel.shape[1] * conv.group
    scale, shift = np.ones(channels), np.zeros(channels)
    nodes: list[NodeProto] = []
    name, axis, moved, reader = conv.source, 1, None, conv.node
    while editor.only_reader(name) is reader:
        maker = editor.maker(name)
        step = _step(editor, maker, axis) if maker is not None else None
        if maker is not None and step is not None and len(step.scale) == channels:
            shift, scale = shift + scale * step.shift, scale * step.scale
            source = step.source
        elif maker is not None and moved is None and _moves_channels(maker):
            source, axis, moved = str(maker.input[0]), 3, maker
        else:
            break
        nodes.insert(0, maker)
        name, reader = source, maker
    if not any(node.op_type in _AFFINE for node in nodes):
        return None
    return _Affine(tuple(nodes), name, scale, shift, moved)


def _moves_channels(node: NodeProto) -> bool:
    return node.op_type == "Transpose" and list(attribute(node, "perm", [])) == _TO_CHANNEL_FIRST


def _step(editor: GraphEditor, node: NodeProto, axis: int) -> _Affine | None:
    """A node that scales or shifts each channel of an image by a constant."""
    import numpy as np

    if node.op_type not in _AFFINE or editor.kind(node.output[0]) != FLOAT:
        return None
    if node.op_type == "BatchNormalization":
        return _norm(editor, node) if axis == 1 else None
    first, second = (str(name) for name in node.input)
    source, other = (first, second) if editor.is_constant(second) else (second, first)
    shape = editor.shape(node.output[0])
    values = editor.constant(other)
    if values is None or shape is None or editor.shape(source) != shape or len(shape) != 4:
        return None
    wide = _per_channel(values, shape[axis], axis)
    if wide is None:
        return None
    one, nothing = np.ones_like(wide), np.zeros_like(wide)
    if node.op_type == "Mul":
        return _Affine((node,), source, wide, nothing)
    if node.op_type == "Add":
        return _Affine((node,), source, one, wide)
    if node.op_type == "Sub":
        return _Affine((node,), source, one, -wide) if source == first else None
    if source != first or not np.all(np.abs(wide) > np.finfo(np.float32).tiny):
        return None
    return _Affine((node,), source, 1 / wide, nothing)


def _norm(editor: GraphEditor, node: NodeProto) -> _Affine | None:
    import numpy as np

    constants = [editor.constant(name) for name in node.input[1:]]
    shape = editor.shape(node.input[0])
    if len(node.output) != 1 or len(constants) != 4 or shape is None or len(shape) != 4:
        return None
    if any(values is None for values in constants):
        return None
    gain, offset, mean, variance = (np.asarray(v, np.float64) for v in constants)
    scale = gain / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    return _Affine((node,), str(node.input[0]), scale, offset - mean * scale)


def _per_channel(values: Floats, channels: int, axis: int) -> Floats | None:
    """One value per channel, if the constant has no more than that."""
    import numpy as np

    if values.ndim > 4:
        return None
    sides = (1,) * (4 - values.ndim) + values.shape
    if any(size != 1 for side, size in enumerate(sides) if side != axis):
        return None
    return np.broadcast_to(values.reshape(-1).astype(np.float64), (channels,)).copy()


def _border(editor: GraphEditor, conv: Convolution, shifted: Floats) -> Floats | None:
    """What the offset of the padding, which is none, is off the bias; None where it is nothing."""
    import numpy as np

    source_shape, made = editor.shape(conv.source), editor.shape(conv.output)
    assert source_shape is not None and made is not None
    if not any(conv.pads) or not shifted.any():
        return None
    inside = []
    for side in (0, 1):
        taps = np.arange(conv.kernel.shape[2 + side]) * conv.dilations[side]
        places = np.arange(made[2 + side]) * conv.strides[side] - conv.pads[side]
        reached = places[:, None] + taps[None, :]
        inside.append(((reached >= 0) & (reached < source_shape[2 + side])).astype(np.float64))
    seen = np.einsum("okl,yk,xl->oyx", shifted, *inside, optimize=True)
    border = seen - shifted.sum(axis=(1, 2)).reshape(-1, 1, 1)
    border[np.abs(border) < 1e-12] = 0
    return border[None] if border.any() else None
