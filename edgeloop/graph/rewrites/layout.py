"""Pools, kernels, copies and casts in forms that compilers take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from edgeloop.graph.rewrites.editor import (
    AXES_AS_INPUT,
    GraphEditor,
    attribute,
    axes_of,
    each,
    is_float,
)

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
    settings = {a.name: attribute(node, a.name) for a in node.attribute}
    settings = {**settings, "dilations": [1] * len(steps), "kernel_shape": sides}
    inputs = [node.input[0], editor.floats(f"{name}_kernel", spread), *node.input[2:]]
    new.add("ConvTranspose", inputs, shape, node.output[0], **settings)
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
    settings = {a.name: attribute(node, a.name) for a in node.attribute if a.name != "ceil_mode"}
    new.add("AveragePool", [node.input[0]], (), node.output[0], **settings)
    new.done()
    return True


# Tensors with more sides than a chip knows, such as windows of an image: the same with fewer.
#
# Sides that stay neighbours are one side. A Transpose that still has too many sides is done in
# several, each of which swaps two neighbouring blocks; what only changes shapes in between goes
# away.


LARGEST_RANK = 5
_RESHAPING = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
_POINTWISE = (
    "Abs",
    "Clip",
    "Elu",
    "Exp",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Neg",
    "Relu",
    "Sigmoid",
    "Softplus",
    "Sqrt",
    "Tanh",
)
_PAIRWISE = ("Add", "Sub", "Mul", "Div")
_REDUCING = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")


def lower_ranks(editor: GraphEditor) -> list[str]:
    """Everything with more than five sides, as far as it can be written with fewer."""
    if not _has_large_ranks(editor):
        return []
    return _pointwise(editor) + _reductions(editor) + _reshape_once(editor)


def _has_large_ranks(editor: GraphEditor) -> bool:
    names = (name for node in editor.nodes for name in node.output)
    return any(len(editor.shape(name) or ()) > LARGEST_RANK for name in names)


@each("Transpose")
def merge_sides(editor: GraphEditor, node: NodeProto) -> bool:
    """Transposes of more than five sides, and those of five that move the innermost one, with
    fewer: the compiler takes these, and then needs up to a thousand times as long for them."""
    shape = editor.shape(node.input[0])
    if shape is None or len(shape) < LARGEST_RANK:
        return False
    order = list(attribute(node, "perm", range(len(shape) - 1, -1, -1)))
    result = tuple(shape[side] for side in order)
    moves_innermost = order[-1] != len(shape) - 1
    sides, order = _merged(shape, order)
    if len(shape) == LARGEST_RANK and (len(sides) == len(shape) or not moves_innermost):
        return False
    new = editor.replacement([node])
    moved = new.reshape(node.input[0], sides)
    if len(sides) <= LARGEST_RANK:
        moved = new.transpose(moved, order)
    else:
        for blocks in _swaps(sides, order):
            moved = new.transpose(new.reshape(moved, blocks), (0, 2, 1, 3))
    new.reshape(moved, result, node.output[0])
    new.done()
    return True


def _merged(shape: tuple[int, ...], order: list[int]) -> tuple[list[int], list[int]]:
    """Sides of one left out, and sides that stay neighbours taken as one."""
    long_sides = [side for side in range(len(shape)) if shape[side] != 1]
    order = [long_sides.index(side) for side in order if side in long_sides]
    sizes = [shape[side] for side in long_sides]
    groups: list[list[int]] = []
    for side in order:
        if groups and groups[-1][-1] + 1 == side:
            groups[-1].append(side)
        else:
            groups.append([side])
    places = sorted(range(len(groups)), key=lambda group: groups[group][0])
    merged = [math.prod(sizes[side] for side in groups[group]) for group in places]
    return merged or [1], [places.index(group) for group in range(len(groups))] or [0]


def _swaps(sides: list[int], order: list[int]) -> list[list[int]]:
    """Shapes (before, block, block, behind) whose middle blocks are swapped one after another."""
    now, shapes = list(range(len(sides))), []
    for place, side in enumerate(order):
        where = now.index(side)
        if where == place:
            continue
        sizes = [sides[item] for item in now]
        blocks = (sizes[:place], sizes[place:where], [sizes[where]], sizes[where + 1 :])
        shapes.append([math.prod(block) for block in blocks])
        now.insert(place, now.pop(where))
    return shapes


@each(*_POINTWISE, *_PAIRWISE)
def _pointwise(editor: GraphEditor, node: NodeProto) -> bool:
    """Values one by one: of any shape, such as one with two sides."""
    shape = editor.shape(node.output[0])
    if shape is None or len(shape) <= LARGEST_RANK:
        return False
    flat = (math.prod(shape[:-1]), shape[-1])
    large = [name for name in node.input if editor.shape(name) == shape]
    others = [editor.shape(name) for name in node.input if name not in large]
    if not large or any(other is None or math.prod(other) != 1 for other in others):
        return False
    new = editor.replacement([node])
    inputs = [new.reshape(name, flat) if name in large else name for name in node.input]
    attributes = {a.name: attribute(node, a.name) for a in node.attribute}
    kind = editor.kind(node.output[0])
    made = new.add(node.op_type, inputs, flat, "", kind, node.domain, **attributes)
    new.reshape(made, shape, node.output[0])
    new.done()
    return True


@each("Softmax", "LogSoftmax")
def flatten_softmax(editor: GraphEditor, node: NodeProto) -> bool:
    """Softmax with more than five sides, and LogSoftmax with more than four: with two or three."""
    shape = editor.shape(node.input[0])
    if shape is None or len(shape) <= LARGEST_RANK - (node.op_type == "LogSoftmax"):
        return False
    axis = int(attribute(node, "axis", -1)) % len(shape)
    behind = math.prod(shape[axis + 1 :])
    flat = (math.prod(shape[:axis]), shape[axis], behind)[: 2 if behind == 1 else 3]
    new = editor.replacement([node])
    made = new.add(node.op_type, [new.reshape(node.input[0], flat)], flat, axis=1)
    new.reshape(made, shape, node.output[0])
    new.done()
    return True


@each("Slice", "Gather")
def flatten_slices(editor: GraphEditor, node: NodeProto) -> bool:
    """Parts along one of five or more sides: of four at most. The compiler takes five, has no
    cost for them, and needs up to a thousand times as long."""
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None or len(shape) < LARGEST_RANK:
        return False
    axis = _cut_axis(editor, node, len(shape))
    if axis is None:
        return False
    count = math.prod(result) * shape[axis] // math.prod(shape)
    before, behind = math.prod(shape[:axis]), shape[axis + 1 :]
    rest = (math.prod(behind[:-1]), behind[-1]) if behind else ()
    new, name = editor.replacement([node]), node.name or node.output[0]
    kind = editor.kind(node.input[0])
    flat = new.reshape(node.input[0], (before, shape[axis], *rest))
    if node.op_type == "Slice":
        inputs = [flat, *node.input[1:3], editor.ints(f"{name}_axis", [1]), *node.input[4:5]]
        made = new.add("Slice", inputs, (before, count, *rest), "", kind)
    else:
        places = editor.constant(node.input[1])
        assert places is not None
        chosen = editor.ints(f"{name}_places", [int(place) for place in places.reshape(-1)])
        made = new.add("Gather", [flat, chosen], (before, count, *rest), "", kind, axis=1)
    new.reshape(made, result, node.output[0])
    new.done()
    return True


def _cut_axis(editor: GraphEditor, node: NodeProto, rank: int) -> int | None:
    """The one side that a Slice or Gather with constant places is about."""
    if not all(editor.is_constant(name) for name in node.input[1:] if name):
        return None
    if node.op_type == "Gather":
        return int(attribute(node, "axis", 0)) % rank
    axes = editor.constant(node.input[3]) if len(node.input) > 3 and node.input[3] else None
    return int(axes.reshape(-1)[0]) % rank if axes is not None and axes.size == 1 else None


@each(*_REDUCING)
def _reductions(editor: GraphEditor, node: NodeProto) -> bool:
    """Over neighbouring sides: over the middle one of three."""
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None or len(shape) <= LARGEST_RANK:
        return False
    axes = axes_of(editor, node, len(shape))
    if axes is None or axes != list(range(axes[0], axes[-1] + 1)):
        return False
    before, inside = math.prod(shape[: axes[0]]), math.prod(shape[axes[0] : axes[-1] + 1])
    behind = math.prod(shape[axes[-1] + 1 :])
    new = editor.replacement([node])
    source = new.reshape(node.input[0], (before, inside, behind))
    inputs = [source]
    attributes: dict[str, Any] = {"keepdims": 1}
    if node.op_type == "ReduceSum" or editor.opset >= AXES_AS_INPUT:
        inputs.append(editor.ints(f"{node.name}_axes", [1]))
    else:
        attributes["axes"] = [1]
    made = new.add(node.op_type, inputs, (before, 1, behind), **attributes)
    new.reshape(made, result, node.output[0])
    new.done()
    return True


@each(*_RESHAPING)
def _reshape_once(editor: GraphEditor, node: NodeProto) -> bool:
    """A shape that another one follows at once is not needed."""
    shape = editor.shape(node.output[0])
    source, rank = node.input[0], 0
    while (before := editor.maker(source, *_RESHAPING)) is not None:
        rank = max(rank, len(editor.shape(source) or ()))
        source = before.input[0]
    if shape is None or rank <= LARGEST_RANK:
        return False
    new = editor.replacement([node])
    new.reshape(source, shape, node.output[0])
    new.done()
    return True


def drop_unread(editor: GraphEditor) -> None:
    """Remove nodes whose results are not read, last ones first."""
    read = set(editor.ends)
    read_nodes = []
    for node in reversed(editor.nodes):
        if any(name in read for name in node.output):
            read_nodes.append(node)
            read.update(node.input)
    editor.nodes = read_nodes[::-1]
