"""From the raw files of a run on a board to arrays: counted, sized and checked before anybody
scores them. The type of a file follows from its size; a board writes channel-last."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from edgeloop.errors import ModelFailed
from edgeloop.graph import GraphInfo
from edgeloop.platforms.snpe.dlc import Encoding
from edgeloop.tasks import Output

_RESULT = re.compile(r"Result_(\d+)/(.+)\.raw")


def full_outputs(
    files: Mapping[str, bytes], count: int, info: GraphInfo, encoding: Encoding | None
) -> Output:
    """(n, …) float32 in the layout of the model's own output."""
    shape = info.output_shape[1:]
    is_turned = len(shape) == 3 and _has_channels_first(info)
    there = (*shape[1:], shape[0]) if is_turned else shape
    outputs = [_values(raw, math.prod(shape), encoding) for raw in _results(files, count, info)]
    whole = np.stack(outputs).reshape(count, *there)
    if not np.isfinite(whole).all():
        raise ModelFailed(reason="its outputs on the board are not all numbers (NaN or infinite)")
    return np.moveaxis(whole, -1, 1) if is_turned else whole


def class_maps(files: Mapping[str, bytes], count: int, info: GraphInfo) -> Output:
    """(n, H, W) whole numbers below the number of classes."""
    shape = info.output_shape[1:]
    first = _has_channels_first(info)
    classes, sides = (shape[0], shape[1:]) if first else (shape[-1], shape[:-1])
    maps = [_classes(raw, math.prod(sides), classes) for raw in _results(files, count, info)]
    return np.stack(maps).reshape(count, *sides)


def _has_channels_first(info: GraphInfo) -> bool:
    """Where the sides are tells it; outputs of another size follow the input."""
    sides, shape = (info.height, info.width), info.output_shape[1:]
    return shape[1:] == sides or (shape[:-1] != sides and info.layout == "NCHW")


def _results(files: Mapping[str, bytes], count: int, info: GraphInfo) -> list[bytes]:
    """One for each input, in order; the model's own output where there are several."""
    found: dict[int, dict[str, bytes]] = {}
    for name, content in files.items():
        if match := _RESULT.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = content
    if sorted(found) != list(range(count)):
        reason = f"the board returned {len(found)} results for {count} images"
        raise ModelFailed(reason=reason)
    return [_chosen(found[number], info) for number in range(count)]


def _chosen(outputs: Mapping[str, bytes], info: GraphInfo) -> bytes:
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    for name, content in outputs.items():
        if name.removesuffix(":0") == info.output_name:
            return content
    raise ModelFailed(reason=f"none of its {len(outputs)} outputs is called {info.output_name!r}")


def _values(raw: bytes, size: int, encoding: Encoding | None) -> Output:
    if len(raw) == 4 * size:
        return np.frombuffer(raw, np.float32)
    for width, kind in ((1, np.uint8), (2, np.uint16)):
        if len(raw) == width * size and encoding is not None and encoding.bits == 8 * width:
            return encoding.dequantize(np.frombuffer(raw, kind))
    raise _wrong_size(raw, size)


def _classes(raw: bytes, size: int, classes: int) -> Output:
    """One or two bytes each, or whole numbers or floats of four, whichever makes sense."""
    if len(raw) == size:
        found = np.frombuffer(raw, np.uint8)
    elif len(raw) == 2 * size:
        found = np.frombuffer(raw, np.uint16)
    elif len(raw) == 4 * size:
        found = np.frombuffer(raw, np.int32)
        if size and not 0 <= int(found.min()) <= int(found.max()) < classes:
            floats = np.frombuffer(raw, np.float32)
            if not (np.isfinite(floats).all() and (floats == np.floor(floats)).all()):
                raise ModelFailed(reason="its class maps on the board are not whole numbers")
            found = floats.astype(np.int64)
    else:
        raise _wrong_size(raw, size)
    if size and not 0 <= int(found.min()) <= int(found.max()) < classes:
        reason = f"its class maps on the board have classes beyond its {classes}"
        raise ModelFailed(reason=reason)
    return found.astype(np.uint8 if classes <= 256 else np.uint16)


def _wrong_size(raw: bytes, size: int) -> ModelFailed:
    return ModelFailed(reason=f"an output on the board has {len(raw)} bytes for {size} values")
