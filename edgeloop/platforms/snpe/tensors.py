"""Inputs and outputs as the SDK's tools read and write them: floats, with channels last.

The converter moves the channels of what it takes for an image behind its sides, and says so only
in the shapes that `snpe-dlc-info` prints. Where a tensor looks the same both ways (its sides are
equal), four dimensions are an image and others are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.graph import DLC_INPUT, GraphInfo, Shape, TensorInfo, dlc_names
from edgeloop.platforms.batching import model_inputs
from edgeloop.tasks import Tensors

_LARGEST_WHOLE = 1 << 24  # beyond, a float of four bytes does not hold every whole number
_IMAGE_RANK = 4


def is_float(tensor: TensorInfo) -> bool:
    return np.dtype(tensor.dtype).kind == "f"


def channels_last(shape: Shape) -> Shape:
    return (shape[0], *shape[2:], shape[1])


def is_moved(shape: Shape, in_dlc: Shape | None, image: bool = True) -> bool:
    """Whether the DLC has a tensor of this shape with its channels last. Where that does not say,
    or nobody knows `in_dlc`, a tensor of four dimensions is like this if it is an `image`."""
    if len(shape) < 3:
        return False
    turned = channels_last(shape)
    if in_dlc is None or turned == shape or in_dlc not in (shape, turned):
        return image and len(shape) == _IMAGE_RANK
    return in_dlc == turned


def input_word(name: str, path: str, count: int) -> str:
    """An input in a line of an input list; a model's only one needs no name."""
    return path if count == 1 else f"{name}:={path}"


def board_inputs(
    batch: Tensors, info: GraphInfo, shapes: Mapping[str, Shape]
) -> Iterator[NDArray[np.float32]]:
    """What the tools read for one run, in the order of the inputs. `shapes` are the DLC's."""
    names = dlc_names(DLC_INPUT, len(info.inputs))
    taken = model_inputs(batch, info)
    for name, tensor in zip(names, info.inputs, strict=True):
        yield board_input(taken[tensor.name], tensor, shapes.get(name))


def board_input(
    array: NDArray[Any], tensor: TensorInfo, in_dlc: Shape | None
) -> NDArray[np.float32]:
    """From what the model takes in one run. Whole numbers are written as floats, too."""
    if (
        not is_float(tensor)
        and array.size
        and np.abs(array.astype(np.int64)).max() > _LARGEST_WHOLE
    ):
        reason = (
            f"the input {tensor.name!r} has numbers beyond {_LARGEST_WHOLE}: the SDK's tools read "
            "floats, which do not hold them"
        )
        raise BadInput(reason=reason)
    floats = array.astype(np.float32, copy=False)
    if tensor.layout != "NHWC" and is_moved(tensor.shape, in_dlc):
        floats = np.moveaxis(floats, 1, -1)
    return np.ascontiguousarray(floats)
