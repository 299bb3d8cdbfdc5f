"""Convolutions of single pixels on the smaller side of a Resize or a pooling.

Both mix neighbouring pixels of one channel with weights that add up to one; such a convolution
mixes the channels of one pixel. The order does not matter, and one of them has fewer pixels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgeloop.graph.advice.sites import (
    POINTWISE,
    add_convolution,
    add_pointwise,
    convolution,
    copied,
    sites,
)
from edgeloop.graph.rewrites.editor import FLOAT, GraphEditor, Replacement, attribute

if TYPE_CHECKING:
    from onnx import NodeProto


@sites("Conv")
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
    made = add_convolution(editor, new, conv, str(resize.input[0]), conv.kernel, conv.bias, shape)
    for activation in behind:
        made = copied(editor, new, activation, made)
    _resize(editor, new, resize, made, str((behind or [node])[-1].output[0]))
    new.done()
    return True


@sites("Conv")
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
            made = add_pointwise(editor, new, name, str(resize.input[0]), matrix)
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


@sites("AveragePool", "GlobalAveragePool")
def pool_before_convolution(editor: GraphEditor, node: NodeProto) -> bool:
    """A pooling of averages behind a convolution of single pixels: in front of it."""
    conv = convolution(editor, editor.maker(node.input[0], "Conv"))
    made, given = editor.shape(node.output[0]), editor.shape(node.input[0])
    if conv is None or not conv.is_pointwise or editor.only_reader(conv.output) is not node:
        return False
    if made is None or given is None or any(attribute(node, "pads", [])):
        return False
    if attribute(node, "auto_pad", "NOTSET") != "NOTSET" or attribute(node, "ceil_mode", 0):
        return False
    new = editor.replacement([conv.node, node])
    settings = {a.name: attribute(node, a.name) for a in node.attribute}
    source = editor.shape(conv.source)
    assert source is not None
    pooled = new.add(node.op_type, [conv.source], (*source[:2], *made[2:]), **settings)
    add_convolution(editor, new, conv, pooled, conv.kernel, conv.bias, made, str(node.output[0]))
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
    kept = np.concatenate([values[:, first : first + size] for _, first, size in plain], axis=1)
    source = plain[0][0]
    if len(plain) > 1:
        shape = list(editor.shape(source) or ())
        shape[1] = kept.shape[1]
        source = new.add("Concat", [one for one, _, _ in plain], shape, axis=1)
    return [add_pointwise(editor, new, name, source, kept)]


def _part(editor: GraphEditor, joined: NodeProto, name: str) -> NodeProto | None:
    """The Resize that makes an input of a Concat, for it alone."""
    resize = editor.maker(name, "Resize")
    is_once = list(joined.input).count(name) == 1
    if resize is None or not is_once or editor.only_reader(name) is not joined:
        return None
    return resize if _enlarges(editor, resize) else None


def _enlarges(editor: GraphEditor, resize: NodeProto) -> bool:
    """Whether it makes an image larger, by weights that add up to one at every pixel."""
    given, made = editor.shape(resize.input[0]), editor.shape(resize.output[0])
    if given is None or made is None or len(given) != 4 or given[:2] != made[:2]:
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
    return is_known and math.prod(made) > math.prod(given)


def _is_nearest(resize: NodeProto) -> bool:
    return bool(attribute(resize, "mode", "nearest") == "nearest")


def _activations(editor: GraphEditor, name: str) -> list[NodeProto]:
    """What computes each value by itself, one after the other, for nobody else."""
    found: list[NodeProto] = []
    while (node := editor.only_reader(name, *POINTWISE)) is not None:
        if node.input[0] != name or not all(editor.is_constant(n) for n in node.input[1:] if n):
            break
        found.append(node)
        name = str(node.output[0])
    return found


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
