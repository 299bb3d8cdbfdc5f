"""Convolutions that can be one: side by side on the same image, added, or one behind the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.graph.rewrites.editor import (
    FLOAT,
    POINTWISE,
    Convolution,
    GraphEditor,
    Replacement,
    attribute,
    convolution,
    each,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from edgeloop.graph.rewrites.editor import Floats


_MOST_TERMS = 8


@each("Concat")
def merge_joined(editor: GraphEditor, node: NodeProto) -> bool:
    """Convolutions of one image, side by side, whose results are joined: one convolution."""
    shape = editor.shape(node.output[0])
    if shape is None or len(shape) != 4 or int(attribute(node, "axis")) % 4 != 1:
        return False
    branches = [_branch(editor, node, str(name)) for name in node.input]
    first = branches[0]
    if first is None or len(branches) < 2:
        return False
    convs, ends = [first[0]], [first[1]]
    for branch in branches[1:]:
        if branch is None or not _alike(first[0], branch[0]) or not _same(first[1], branch[1]):
            return False
        convs.append(branch[0])
        ends.append(branch[1])
    import numpy as np

    nodes = [conv.node for conv in convs] + [end for end in ends if end is not None]
    new = editor.replacement([*nodes, node])
    kernel = np.concatenate([conv.kernel for conv in convs])
    bias = np.concatenate([conv.bias for conv in convs])
    output, end = str(node.output[0]), ends[0]
    made = new.add_convolution(
        convs[0], convs[0].source, kernel, bias, shape, "" if end else output
    )
    if end is not None:
        new.add_copy(end, made, output)
    new.done()
    return True


@each("Add", "Sum")
def merge_added(editor: GraphEditor, node: NodeProto) -> bool:
    """Convolutions of one image that are added, the image itself among them: one convolution."""
    terms = _terms(editor, node)
    convs = [term.conv for term in terms or () if term.conv is not None]
    if not terms or not convs:
        return False
    largest = max(convs, key=lambda conv: conv.kernel.shape[2] * conv.kernel.shape[3])
    if largest.group != 1 or len(terms) < 2 or len({term.source for term in terms}) != 1:
        return False
    kernels = [_embedded(editor, term, largest) for term in terms]
    if any(kernel is None for kernel in kernels):
        return False
    shape = editor.shape(node.output[0])
    assert shape is not None
    inner = [one for term in terms for one in term.nodes]
    new = editor.replacement([*inner, node])
    kernel = sum(one for one in kernels if one is not None)
    bias = sum(conv.bias for conv in convs)
    new.add_convolution(
        largest,
        largest.source,
        kernel,  # type: ignore[arg-type]
        bias,  # type: ignore[arg-type]
        shape,
        str(node.output[0]),
    )
    new.done()
    return True


@each("Conv")
def merge_consecutive(editor: GraphEditor, node: NodeProto) -> bool:
    """A convolution of single pixels right behind or in front of another one: both as one."""
    import numpy as np

    second = convolution(editor, node)
    first = convolution(editor, editor.maker(second.source, "Conv")) if second else None
    if first is None or second is None or editor.only_reader(first.output) is not node:
        return False
    if second.group != 1 or first.group not in (1, first.kernel.shape[0]):
        return False
    shape = editor.shape(second.output)
    assert shape is not None
    dense = _dense(first)
    if dense is None:
        return False
    if second.is_pointwise:
        kernel = np.einsum("om,mikl->oikl", second.kernel[:, :, 0, 0], dense)
        bias, like = second.bias + second.kernel[:, :, 0, 0] @ first.bias, first
    elif first.is_pointwise and (not first.bias.any() or not any(second.pads)):
        kernel = np.einsum("omkl,mi->oikl", second.kernel, dense[:, :, 0, 0])
        bias, like = second.bias + second.kernel.sum(axis=(2, 3)) @ first.bias, second
    else:
        return False
    new = editor.replacement([first.node, node])
    new.add_convolution(like, first.source, kernel, bias, shape, second.output, group=1)
    new.done()
    return True


@dataclass(frozen=True)
class _Term:
    """What is added: a convolution, or (without one) the image itself."""

    source: str
    conv: Convolution | None
    nodes: tuple[NodeProto, ...]


def _branch(
    editor: GraphEditor, joined: NodeProto, name: str
) -> tuple[Convolution, NodeProto | None] | None:
    """The convolution, and the activation behind it, that make an input of a Concat alone."""
    if list(joined.input).count(name) != 1 or editor.only_reader(name) is not joined:
        return None
    maker = editor.maker(name)
    end = None
    if maker is not None and maker.op_type in POINTWISE:
        if editor.only_reader(maker.input[0]) is not maker:
            return None
        end, maker = maker, editor.maker(maker.input[0])
    conv = convolution(editor, maker)
    return (conv, end) if conv is not None and conv.group == 1 else None


def _alike(first: Convolution, other: Convolution) -> bool:
    """Whether they differ in their weights only."""
    return (
        first.source == other.source
        and first.kernel.shape[1:] == other.kernel.shape[1:]
        and (first.strides, first.pads, first.dilations, first.group)
        == (other.strides, other.pads, other.dilations, other.group)
    )


def _same(first: NodeProto | None, other: NodeProto | None) -> bool:
    if first is None or other is None:
        return first is other
    settings = [
        sorted((a.name, str(attribute(node, a.name))) for a in node.attribute)
        for node in (first, other)
    ]
    return (
        first.op_type == other.op_type
        and settings[0] == settings[1]
        and list(first.input[1:]) == list(other.input[1:])
    )


def _terms(editor: GraphEditor, node: NodeProto) -> list[_Term] | None:
    """What a tree of Adds adds up, where the inner ones have no other reader."""
    terms: list[_Term] = []
    waiting = [str(name) for name in node.input]
    inner: list[NodeProto] = []
    shape = editor.shape(node.output[0])
    while waiting:
        name = waiting.pop()
        if editor.shape(name) != shape or len(terms) > _MOST_TERMS:
            return None
        maker = editor.maker(name)
        is_own = editor.only_reader(name) is not None and list(node.input).count(name) <= 1
        if is_own and maker is not None and maker.op_type in ("Add", "Sum"):
            inner.append(maker)
            waiting.extend(str(one) for one in maker.input)
            continue
        conv = convolution(editor, maker) if is_own else None
        if conv is not None:
            terms.append(_Term(conv.source, conv, (conv.node,)))
        else:
            terms.append(_Term(name, None, ()))
    if inner and terms:
        first = terms[0]
        terms[0] = _Term(first.source, first.conv, (*first.nodes, *inner))
    return terms


def _embedded(editor: GraphEditor, term: _Term, like: Convolution) -> Floats | None:
    """The kernel of a term, within one as large as another convolution's."""
    import numpy as np

    rows, columns = like.kernel.shape[2:]
    top, left, bottom, right = like.pads
    is_centred = (rows - 1 - top, columns - 1 - left) == (bottom, right)
    kernel = np.zeros(like.kernel.shape)
    if like.dilations != (1, 1):
        return None
    if term.conv is None:
        if like.strides != (1, 1) or like.kernel.shape[0] != like.kernel.shape[1]:
            return None
        if top >= rows or left >= columns or not is_centred:
            return None
        kernel[np.arange(len(kernel)), np.arange(len(kernel)), top, left] = 1
        return kernel
    conv = term.conv
    if conv.group != 1 or conv.dilations != (1, 1) or conv.strides != like.strides:
        return None
    down, across = top - conv.pads[0], left - conv.pads[1]
    height, width = conv.kernel.shape[2:]
    fits = 0 <= down <= rows - height and 0 <= across <= columns - width
    if not fits or editor.shape(conv.output) != editor.shape(like.output):
        return None
    kernel[:, :, down : down + height, across : across + width] = conv.kernel
    return kernel


def _dense(conv: Convolution) -> Floats | None:
    """The kernel of a convolution by channel, as that of one across all channels."""
    import numpy as np

    if conv.group == 1:
        return conv.kernel
    if conv.kernel.shape[1] != 1:
        return None
    count = conv.kernel.shape[0]
    dense = np.zeros((count, count, *conv.kernel.shape[2:]))
    dense[np.arange(count), np.arange(count)] = conv.kernel[:, 0]
    return dense


# Convolutions of single pixels on the smaller side of a Resize or a pooling.
#
# Both mix neighbouring pixels of one channel with weights that add up to one; such a convolution
# mixes the channels of one pixel. The order does not matter, and one of them has fewer pixels.


@each("Conv")
def convolve_before_resize(editor: GraphEditor, node: NodeProto) -> bool:
    """A convolution of single pixels behind an enlarging Resize: in front of it."""
    conv = convolution(editor, node)
    if conv is None or not conv.is_pointwise:
        return False
    resize = editor.maker(conv.source, "Resize")
    if (
        resize is None
        or editor.only_reader(conv.source) is not node
        or not _enlarges(editor, resize)
    ):
        return False
    behind = _activations(editor, conv.output) if _is_nearest(resize) else []
    small = editor.shape(resize.input[0])
    assert small is not None
    new = editor.replacement([resize, node, *behind])
    shape = (small[0], conv.kernel.shape[0], *small[2:])
    made = new.add_convolution(conv, str(resize.input[0]), conv.kernel, conv.bias, shape)
    for activation in behind:
        made = new.add_copy(activation, made)
    _resize(editor, new, resize, made, str((behind or [node])[-1].output[0]))
    new.done()
    return True


@each("Conv")
def convolve_parts_before_resize(editor: GraphEditor, node: NodeProto) -> bool:
    """Enlarged images that are joined and then convolved by single pixels: each convolved while it
    is small, and added."""
    conv = convolution(editor, node)
    if conv is None or not conv.is_pointwise or conv.group != 1:
        return False
    joined = editor.maker(conv.source, "Concat")
    if joined is None or editor.only_reader(conv.source) is not node:
        return False
    rank = len(editor.shape(conv.output) or ())
    if int(attribute(joined, "axis")) % rank != 1:
        return False
    parts = [_part(editor, joined, str(name)) for name in joined.input]
    resizes = [resize for resize in parts if resize is not None]
    if not resizes:
        return False
    sizes = [(editor.shape(name) or (0, 0))[1] for name in joined.input]
    new = editor.replacement([*resizes, joined, node])
    name, first, terms = node.name or conv.output, 0, []
    plain: list[tuple[str, int, int]] = []
    for resize, source, size in zip(parts, joined.input, sizes, strict=True):
        matrix = conv.kernel[:, first : first + size, 0, 0]
        if resize is None:
            plain.append((str(source), first, size))
        else:
            made = new.add_pointwise(name, str(resize.input[0]), matrix)
            terms.append(_resize(editor, new, resize, made))
        first += size
    terms += _plain_part(editor, new, name, plain, conv.kernel[:, :, 0, 0])
    shape = editor.shape(conv.output)
    assert shape is not None
    if len(terms) == 1:
        terms.append(editor.floats(f"{name}_bias", conv.bias.reshape(-1, 1, 1)))
    elif conv.bias.any():
        bias = editor.floats(f"{name}_bias", conv.bias.reshape(-1, 1, 1))
        terms[-1] = new.add("Add", [terms[-1], bias], shape)
    total = terms[0]
    for term in terms[1:]:
        total = new.add("Add", [total, term], shape, conv.output if term is terms[-1] else "")
    new.done()
    return True


@each("AveragePool", "GlobalAveragePool")
def pool_before_convolution(editor: GraphEditor, node: NodeProto) -> bool:
    """A pooling of averages behind a convolution of single pixels: in front of it."""
    conv = convolution(editor, editor.maker(node.input[0], "Conv"))
    made, pooled_from = editor.shape(node.output[0]), editor.shape(node.input[0])
    if conv is None or not conv.is_pointwise or editor.only_reader(conv.output) is not node:
        return False
    if made is None or pooled_from is None or any(attribute(node, "pads", [])):
        return False
    if attribute(node, "auto_pad", "NOTSET") != "NOTSET" or attribute(node, "ceil_mode", 0):
        return False
    new = editor.replacement([conv.node, node])
    settings = {a.name: attribute(node, a.name) for a in node.attribute}
    source = editor.shape(conv.source)
    assert source is not None
    pooled = new.add(node.op_type, [conv.source], (*source[:2], *made[2:]), **settings)
    new.add_convolution(conv, pooled, conv.kernel, conv.bias, made, str(node.output[0]))
    new.done()
    return True


def _plain_part(
    editor: GraphEditor,
    new: Replacement,
    name: str,
    plain: list[tuple[str, int, int]],
    matrix: object,
) -> list[str]:
    """What is joined at full size stays so, and is convolved as one."""
    import numpy as np

    if not plain:
        return []
    values = np.asarray(matrix)
    columns = np.concatenate([values[:, first : first + size] for _, first, size in plain], axis=1)
    source = plain[0][0]
    if len(plain) > 1:
        shape = list(editor.shape(source) or ())
        shape[1] = columns.shape[1]
        source = new.add("Concat", [one for one, _, _ in plain], shape, axis=1)
    return [new.add_pointwise(name, source, columns)]


def _part(editor: GraphEditor, joined: NodeProto, name: str) -> NodeProto | None:
    """The Resize that makes an input of a Concat, for it alone."""
    resize = editor.maker(name, "Resize")
    is_once = list(joined.input).count(name) == 1
    if resize is None or not is_once or editor.only_reader(name) is not joined:
        return None
    return resize if _enlarges(editor, resize) else None


def _enlarges(editor: GraphEditor, resize: NodeProto) -> bool:
    """Whether it makes an image larger, by weights that add up to one at every pixel."""
    before, made = editor.shape(resize.input[0]), editor.shape(resize.output[0])
    if before is None or made is None or len(before) != 4 or before[:2] != made[:2]:
        return False
    if editor.kind(resize.output[0]) != FLOAT or attribute(resize, "axes") is not None:
        return False
    if attribute(resize, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return False
    if attribute(resize, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    if not all(editor.is_constant(name) for name in resize.input[1:] if name):
        return False
    is_known = attribute(resize, "mode", "nearest") in ("nearest", "linear")
    return is_known and math.prod(made) > math.prod(before)


def _is_nearest(resize: NodeProto) -> bool:
    return bool(attribute(resize, "mode", "nearest") == "nearest")


def _activations(editor: GraphEditor, name: str) -> list[NodeProto]:
    """What computes each value by itself, one after the other, with no other reader."""
    chain: list[NodeProto] = []
    while (node := editor.only_reader(name, *POINTWISE)) is not None:
        if node.input[0] != name or not all(editor.is_constant(n) for n in node.input[1:] if n):
            break
        chain.append(node)
        name = str(node.output[0])
    return chain


def _resize(
    editor: GraphEditor, new: Replacement, resize: NodeProto, source: str, output: str = ""
) -> str:
    """The same Resize of an image with another number of channels."""
    import numpy as np

    small, large = editor.shape(source), editor.shape(resize.output[0])
    assert small is not None and large is not None
    shape = (*small[:2], *large[2:])
    inputs = [source, *resize.input[1:]]
    if len(inputs) > 3 and inputs[3]:
        inputs[3] = editor.ints(f"{resize.name}_sizes", shape)
    elif len(inputs) > 2 and inputs[2]:
        scales = editor.constant(inputs[2])
        assert scales is not None
        inputs[2] = editor.floats(f"{resize.name}_scales", np.asarray(scales))
    settings = {a.name: attribute(resize, a.name) for a in resize.attribute}
    return new.add("Resize", inputs, shape, output, **settings)
