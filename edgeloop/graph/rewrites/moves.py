"""Values that are only moved about: found out by moving their numbers, and not by patterns.

Slices that are joined, and shapes that are changed and turned, come to one of two things: channels
in another order, or blocks of pixels as channels. A convolution behind them does the same with its
kernel in another order, or with a larger kernel and steps as wide as the blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeloop.graph.rewrites.editor import (
    FLOAT,
    Convolution,
    GraphEditor,
    attribute,
    convolution,
    each,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import NodeProto

    Places = NDArray[Any]

_SHAPING = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
_MOVING = (
    *_SHAPING,
    "Transpose",
    "Slice",
    "Concat",
    "Gather",
    "Split",
    "SpaceToDepth",
    "DepthToSpace",
)
_MOST_VALUES = 2**24
_MOST_STEPS = 24
_LARGEST_BLOCK = 8


@dataclass(frozen=True)
class _Movement:
    """Channel c of the result is channel `channels[c]` of the source, at every `block`th pixel from
    `rows[c]` and `columns[c]` on."""

    source: str
    block: int
    channels: Places
    rows: Places
    columns: Places

    @property
    def keeps_order(self) -> bool:
        """Whether the channels are neighbours in the source: a plain Slice."""
        import numpy as np

        return self.block == 1 and bool(np.all(np.diff(self.channels) == 1))


@each("Conv")
def stride_over_blocks(editor: GraphEditor, node: NodeProto) -> bool:
    """Blocks of pixels as channels in front of a convolution: a convolution with wider steps."""
    import numpy as np

    conv = convolution(editor, node)
    movement = conv and _movement(editor, conv.source)
    if not conv or not movement or movement.block == 1 or not _is_plain(conv):
        return False
    block, source_shape = movement.block, editor.shape(movement.source)
    assert source_shape is not None
    outputs, _, height, width = conv.kernel.shape
    kernel = np.zeros((outputs, source_shape[1], block * height, block * width))
    for channel, place in enumerate(movement.channels):
        row, column = int(movement.rows[channel]), int(movement.columns[channel])
        kernel[:, place, row::block, column::block] += conv.kernel[:, channel]
    _convolve(
        editor,
        conv,
        movement.source,
        kernel,
        strides=[block * step for step in conv.strides],
        pads=[block * pad for pad in conv.pads],
    )
    return True


@each("Conv")
def reorder_kernel(editor: GraphEditor, node: NodeProto) -> bool:
    """Channels in another order in front of a convolution: the kernel's in that order."""
    import numpy as np

    conv = convolution(editor, node)
    movement = conv and _movement(editor, conv.source)
    if (
        not conv
        or not movement
        or movement.block != 1
        or movement.keeps_order
        or not _is_plain(conv)
    ):
        return False
    source_shape = editor.shape(movement.source)
    assert source_shape is not None
    kernel = np.zeros((conv.kernel.shape[0], source_shape[1], *conv.kernel.shape[2:]))
    for channel, place in enumerate(movement.channels):
        kernel[:, place] += conv.kernel[:, channel]
    _convolve(editor, conv, movement.source, kernel)
    return True


@each(*_MOVING)
def reorder_by_convolution(editor: GraphEditor, node: NodeProto) -> bool:
    """Channels in another order: a convolution of single pixels by ones and zeros."""
    import numpy as np

    name = str(node.output[0])
    readers = editor.readers(name)
    moves_on = bool(readers) and all(reader.op_type in _MOVING for reader in readers)
    if len(node.output) != 1 or (moves_on and name not in editor.ends):
        return False
    movement = _movement(editor, name)
    if movement is None or movement.block != 1 or movement.keeps_order:
        return False
    _permute(editor, node, movement, np)
    return True


@each("Reshape", "Gather", "Concat")
def shuffle_by_convolution(editor: GraphEditor, node: NodeProto) -> bool:
    """All channels in another order: a convolution of single pixels by ones and zeros, whatever
    moves them further."""
    import numpy as np

    movement = _movement(editor, node.output[0])
    if movement is None or movement.block != 1 or movement.keeps_order:
        return False
    source_shape = editor.shape(movement.source)
    if source_shape is None or len(movement.channels) != source_shape[1]:
        return False
    _permute(editor, node, movement, np)
    return True


def _permute(editor: GraphEditor, node: NodeProto, movement: _Movement, np: Any) -> None:
    source_shape = editor.shape(movement.source)
    assert source_shape is not None
    matrix = np.zeros((len(movement.channels), source_shape[1]))
    matrix[np.arange(len(movement.channels)), movement.channels] = 1
    new = editor.replacement([node])
    name = node.name or node.output[0]
    new.add_pointwise(name, movement.source, matrix, output=str(node.output[0]))
    new.done()


def _is_plain(conv: Convolution) -> bool:
    return conv.group == 1 and conv.dilations == (1, 1)


def _convolve(
    editor: GraphEditor, conv: Convolution, source: str, kernel: Any, **changed: Any
) -> None:
    shape = editor.shape(conv.output)
    assert shape is not None
    new = editor.replacement([conv.node])
    new.add_convolution(conv, source, kernel, conv.bias, shape, conv.output, **changed)
    new.done()


def _movement(editor: GraphEditor, name: str) -> _Movement | None:
    """How an image was made of another one by moving values only; None where nothing moved."""
    import numpy as np

    shape = editor.shape(name)
    if shape is None or len(shape) != 4 or editor.kind(name) != FLOAT:
        return None
    source, places = _places(editor, name, 0)
    source_shape = editor.shape(source)
    if (
        source == name
        or source_shape is None
        or len(source_shape) != 4
        or source_shape[0] != 1
        or shape[0] != 1
    ):
        return None
    if places is None or places.shape != shape:
        return None
    block = source_shape[2] // shape[2]
    if not 1 <= block <= _LARGEST_BLOCK or any(source_shape[s] != block * shape[s] for s in (2, 3)):
        return None
    height, width = source_shape[2:]
    corner = places[0, :, 0, 0]
    channels = corner // (height * width)
    rows, columns = corner // width % height, corner % width
    if rows.max() >= block or columns.max() >= block:
        return None
    steps = np.arange(shape[2])[:, None] * block * width + np.arange(shape[3])[None, :] * block
    if not np.array_equal(places[0], corner[:, None, None] + steps[None]):
        return None
    return _Movement(source, block, channels, rows, columns)


def _places(editor: GraphEditor, name: str, steps: int) -> tuple[str, Places | None]:
    """The tensor that a tensor was made of by moving values, and where each value was in it."""
    import numpy as np

    shape, node = editor.shape(name), editor.maker(name, *_MOVING)
    if shape is None or math.prod(shape) > _MOST_VALUES:
        return name, None
    itself = name, np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    if node is None or steps > _MOST_STEPS:
        return itself
    inputs = list(node.input) if node.op_type == "Concat" else [node.input[0]]
    given = [_places(editor, str(one), steps + 1) for one in dict.fromkeys(inputs)]
    sources = {source for source, _ in given}
    arrays = dict(zip(dict.fromkeys(inputs), (places for _, places in given), strict=True))
    if len(sources) != 1 or any(places is None for places in arrays.values()):
        return itself
    moved = _moved(editor, node, name, [arrays[one] for one in inputs], shape)
    if moved is None or moved.shape != shape:
        return itself
    return sources.pop(), moved


def _moved(
    editor: GraphEditor, node: NodeProto, name: str, given: list[Any], shape: tuple[int, ...]
) -> Places | None:
    import numpy as np

    places, kind = given[0], node.op_type
    if kind in _SHAPING:
        return np.asarray(places.reshape(shape))
    if kind == "Transpose":
        return np.transpose(places, attribute(node, "perm"))
    if kind == "Concat":
        return np.concatenate(given, axis=int(attribute(node, "axis")))
    if kind == "Gather":
        chosen = editor.constant(node.input[1])
        return None if chosen is None else np.take(places, chosen, int(attribute(node, "axis", 0)))
    if kind == "Slice":
        return _sliced(editor, node, places)
    if kind == "Split":
        return _part(editor, node, name, places)
    return _blocks(node, places)


def _sliced(editor: GraphEditor, node: NodeProto, places: Places) -> Places | None:
    values = [editor.constant(name) if name else None for name in node.input[1:]]
    if any(name and value is None for name, value in zip(node.input[1:], values, strict=True)):
        return None
    starts, ends, axes, steps = (*values, None, None)[:4]
    assert starts is not None and ends is not None
    cut: list[slice] = [slice(None)] * places.ndim
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = int(axes[index]) if axes is not None else index
        step = int(steps[index]) if steps is not None else 1
        if step < 1:
            return None
        cut[axis] = slice(int(start), int(end), step)
    return places[tuple(cut)]


def _part(editor: GraphEditor, node: NodeProto, name: str, places: Places) -> Places | None:
    axis = int(attribute(node, "axis", 0)) % places.ndim
    sizes = [(editor.shape(output) or ())[axis : axis + 1] for output in node.output]
    if not all(sizes):
        return None
    index = list(node.output).index(name)
    first = sum(size[0] for size in sizes[:index])
    cut: list[slice] = [slice(None)] * places.ndim
    cut[axis] = slice(first, first + sizes[index][0])
    return places[tuple(cut)]


def _blocks(node: NodeProto, places: Places) -> Places | None:
    """SpaceToDepth and DepthToSpace."""
    if places.ndim != 4:
        return None
    size, (batch, depth, height, width) = int(attribute(node, "blocksize")), places.shape
    if node.op_type == "SpaceToDepth":
        parts = places.reshape(batch, depth, height // size, size, width // size, size)
        parts = parts.transpose(0, 3, 5, 1, 2, 4)
        return parts.reshape(batch, depth * size**2, height // size, width // size)
    if attribute(node, "mode", "DCR") == "DCR":
        parts = places.reshape(batch, size, size, depth // size**2, height, width)
        parts = parts.transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = places.reshape(batch, depth // size**2, size, size, height, width)
        parts = parts.transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(batch, depth // size**2, height * size, width * size)
