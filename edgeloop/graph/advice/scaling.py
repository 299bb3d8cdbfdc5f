"""Factors and offsets of channels, such as the normalization of an image, inside convolutions.

A factor always fits into the kernel. An offset in front of a convolution that pads with zeros does
not fit into its bias alone, since the padding has no offset: what is missing at the border is added
as a constant map, which is zero everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.graph.advice.sites import (
    Convolution,
    add_convolution,
    add_pointwise,
    convolution,
    sites,
)
from edgeloop.graph.rewrites.editor import FLOAT, GraphEditor, attribute

if TYPE_CHECKING:
    from onnx import NodeProto

    from edgeloop.graph.advice.sites import Floats

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


@sites("Conv")
def fold_before(editor: GraphEditor, node: NodeProto) -> bool:
    """Factors and offsets in front of a convolution: into its kernel and bias."""
    return _fold(editor, node, has_border=False)


@sites("Conv")
def fold_with_border(editor: GraphEditor, node: NodeProto) -> bool:
    """The same where the convolution pads: with a constant map for the border behind it."""
    return _fold(editor, node, has_border=True)


def _fold(editor: GraphEditor, node: NodeProto, has_border: bool) -> bool:
    conv = convolution(editor, node)
    found = conv and _before(editor, conv)
    if not conv or not found or conv.group != 1:
        return False
    shifted = (conv.kernel * found.shift.reshape(1, -1, 1, 1)).sum(axis=1)
    border = _border(editor, conv, shifted)
    if (border is not None) != has_border:
        return False
    new = editor.replacement([*found.nodes, node])
    source = found.source
    if found.moved is not None:
        source = new.transpose(source, _TO_CHANNEL_FIRST)
    kernel = conv.kernel * found.scale.reshape(1, -1, 1, 1)
    bias = conv.bias + shifted.sum(axis=(1, 2))
    shape = editor.shape(conv.output)
    assert shape is not None
    if border is None:
        add_convolution(editor, new, conv, source, kernel, bias, shape, conv.output)
    else:
        made = add_convolution(editor, new, conv, source, kernel, bias, shape)
        name = f"{node.name or conv.output}_border"
        new.add("Add", [made, editor.floats(name, border)], shape, conv.output)
    new.done()
    return True


@sites("Conv")
def mix_before(editor: GraphEditor, node: NodeProto) -> bool:
    """Factors and offsets in front of a convolution: as a convolution of single pixels."""
    conv = convolution(editor, node)
    found = conv and _before(editor, conv)
    if not conv or not found or found.moved is not None:
        return False
    count = len(found.scale)
    if count > _FEW_CHANNELS:
        return False
    import numpy as np

    new = editor.replacement([*found.nodes, node])
    name = found.nodes[0].name or found.nodes[0].output[0]
    mixed = add_pointwise(editor, new, name, found.source, np.diag(found.scale), found.shift)
    shape = editor.shape(conv.output)
    assert shape is not None
    add_convolution(editor, new, conv, mixed, conv.kernel, conv.bias, shape, conv.output)
    new.done()
    return True


@sites(*_AFFINE)
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
    add_convolution(editor, new, conv, conv.source, kernel, bias, shape, str(node.output[0]))
    new.done()
    return True


@sites("Sub", "Div")
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
    """All that only scales and shifts the channels that a convolution reads, and nobody else."""
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

    given, made = editor.shape(conv.source), editor.shape(conv.output)
    assert given is not None and made is not None
    if not any(conv.pads) or not shifted.any():
        return None
    inside = []
    for side in (0, 1):
        taps = np.arange(conv.kernel.shape[2 + side]) * conv.dilations[side]
        places = np.arange(made[2 + side]) * conv.strides[side] - conv.pads[side]
        reached = places[:, None] + taps[None, :]
        inside.append(((reached >= 0) & (reached < given[2 + side])).astype(np.float64))
    seen = np.einsum("okl,yk,xl->oyx", shifted, *inside, optimize=True)
    border = seen - shifted.sum(axis=(1, 2)).reshape(-1, 1, 1)
    border[np.abs(border) < 1e-12] = 0
    return border[None] if border.any() else None
