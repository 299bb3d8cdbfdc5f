"""Pools, kernels, copies and casts in forms that compilers take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgeloop.graph.rewrites.editor import GraphEditor, attribute, each, is_float

if TYPE_CHECKING:
    from onnx import NodeProto


def drop_casts(editor: GraphEditor) -> list[str]:
    """Casts to the type that a tensor has: nothing is quantized across them."""
    renamed: dict[str, str] = {}
    layers = []
    for node in editor.nodes:
        if node.op_type != "Cast" or node.output[0] in editor.ends:
            continue
        if attribute(node, "to") == editor.kind(node.input[0]):
            renamed[node.output[0]] = renamed.get(node.input[0], node.input[0])
            layers.append(node.name or node.output[0])
    if renamed:
        editor.bypass(renamed)
    return layers


@each("Gather")
def drop_copies(editor: GraphEditor, node: NodeProto) -> bool:
    """All elements in their own order are the same tensor in another shape."""
    import numpy as np

    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None or not editor.is_constant(node.input[1]):
        return False
    axis = int(attribute(node, "axis", 0)) % max(len(shape), 1)
    size = math.prod(editor.shape(node.input[1]) or ())
    chosen = editor.constant(node.input[1]) if size == shape[axis] and size > 1 else None
    if chosen is None or not np.array_equal(chosen.reshape(-1), np.arange(size)):
        return False
    new = editor.replacement([node])
    new.reshape(node.input[0], result, node.output[0])
    new.done()
    return True


@each("GatherND")
def gather_by_one_index(editor: GraphEditor, node: NodeProto) -> bool:
    """Constant coordinates in several sides are places in one side."""
    import numpy as np

    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    places = editor.constant(node.input[1])
    if shape is None or result is None or places is None or attribute(node, "batch_dims", 0):
        return False
    depth = places.shape[-1]
    sides, rest = shape[:depth], shape[depth:]
    coordinates = np.where(places < 0, places + np.array(sides), places)
    flat = np.ravel_multi_index(tuple(np.moveaxis(coordinates, -1, 0)), sides)
    new, kind = editor.replacement([node]), editor.kind(node.input[0])
    row = new.reshape(node.input[0], (math.prod(sides), *rest))
    chosen = editor.weights(f"{node.name or node.output[0]}_places", flat.astype(np.int64))
    new.add("Gather", [row, chosen], result, node.output[0], kind, axis=0)
    new.done()
    return True


@each("MaxPool")
def pool_videos_in_two_steps(editor: GraphEditor, node: NodeProto) -> bool:
    """The largest value of a box is the largest of its slices' largest ones."""
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None or len(shape) != 5 or not is_float(editor, node):
        return False
    if len(node.output) > 1 or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return False
    kernel = list(attribute(node, "kernel_shape"))
    strides = list(attribute(node, "strides", [1, 1, 1]))
    pads = list(attribute(node, "pads", [0] * 6))
    if any(step != 1 for step in attribute(node, "dilations", [1, 1, 1])):
        return False
    rounds_up = int(attribute(node, "ceil_mode", 0))
    count, channels, depth = shape[:3]
    new = editor.replacement([node])
    image = new.reshape(node.input[0], (count, channels * depth, *shape[3:]))
    sides = (count, channels * depth, *result[3:])
    pooled = new.add(
        "MaxPool",
        [image],
        sides,
        kernel_shape=kernel[1:],
        strides=strides[1:],
        pads=[*pads[1:3], *pads[4:6]],
        ceil_mode=rounds_up,
    )
    if kernel[0] > 1 or strides[0] > 1 or pads[0] or pads[3]:
        columns = new.reshape(pooled, (count, channels, depth, math.prod(result[3:])))
        pooled = new.add(
            "MaxPool",
            [columns],
            (count, channels, result[2], math.prod(result[3:])),
            kernel_shape=[kernel[0], 1],
            strides=[strides[0], 1],
            pads=[pads[0], 0, pads[3], 0],
            ceil_mode=rounds_up,
        )
    new.reshape(pooled, result, node.output[0])
    new.done()
    return True


@each("ConvTranspose")
def spread_kernels(editor: GraphEditor, node: NodeProto) -> bool:
    """A dilated kernel is a larger one with zeros between its values."""
    import numpy as np

    kernel, shape = editor.constant(node.input[1]), editor.shape(node.output[0])
    steps = attribute(node, "dilations") or []
    if kernel is None or shape is None or all(step == 1 for step in steps):
        return False
    sides = [(size - 1) * step + 1 for size, step in zip(kernel.shape[2:], steps, strict=True)]
    spread = np.zeros((*kernel.shape[:2], *sides), kernel.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, step) for step in steps))] = kernel
    new, name = editor.replacement([node]), node.name or node.output[0]
    kept = {a.name: attribute(node, a.name) for a in node.attribute}
    kept = {**kept, "dilations": [1] * len(steps), "kernel_shape": sides}
    inputs = [node.input[0], editor.floats(f"{name}_kernel", spread), *node.input[2:]]
    new.add("ConvTranspose", inputs, shape, node.output[0], **kept)
    new.done()
    return True


@each("AveragePool")
def drop_rounding_up(editor: GraphEditor, node: NodeProto) -> bool:
    """Rounding up changes nothing where windows fit; compilers get it wrong."""
    shape = editor.shape(node.input[0])
    if shape is None or not attribute(node, "ceil_mode", 0) or not is_float(editor, node):
        return False
    kernel = attribute(node, "kernel_shape")
    count = len(kernel)
    strides = attribute(node, "strides", [1] * count)
    pads = attribute(node, "pads", [0] * (2 * count))
    steps = attribute(node, "dilations", [1] * count)
    for axis in range(count):
        length = shape[2 + axis] + pads[axis] + pads[axis + count]
        if (length - (kernel[axis] - 1) * steps[axis] - 1) % strides[axis]:
            return False
    new = editor.replacement([node])
    kept = {a.name: attribute(node, a.name) for a in node.attribute if a.name != "ceil_mode"}
    new.add("AveragePool", [node.input[0]], (), node.output[0], **kept)
    new.done()
    return True
