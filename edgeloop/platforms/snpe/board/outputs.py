"""From the raw files of a run on a board to arrays: counted, sized and checked before anybody
scores them. The type of a file follows from its size; images have their channels last."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from edgeloop.errors import ModelFailed
from edgeloop.graph import DLC_CLASSES, DLC_OUTPUT, GraphInfo, TensorInfo, dlc_names
from edgeloop.platforms.snpe.dlc import DlcTensors, Encoding
from edgeloop.platforms.snpe.tensors import channels_last, is_float, is_moved
from edgeloop.tasks import Output, Tensors

_RESULT = re.compile(r"Result_(\d+)/(.+)\.raw")


def full_outputs(
    files: Mapping[str, bytes], runs: int, info: GraphInfo, dlc: DlcTensors, is_native: bool
) -> Tensors:
    """All outputs of all runs by the model's own names, each (n, …) in the layout and type of the
    model's own output. `info` is that of the graph in the DLC."""
    results = _results(files, runs, info)
    found = {}
    for name, tensor in zip(dlc_names(DLC_OUTPUT, len(info.outputs)), info.outputs, strict=True):
        raws = [_chosen(result, name, tensor) for result in results]
        shape = dlc.shapes.get(name)
        is_turned = is_moved(tensor.shape, shape, _has_channels_first(info, tensor))
        whole = _checked(raws, tensor, dlc.encodings.get(name), is_native)
        if is_turned:
            whole = np.moveaxis(whole.reshape(runs, *channels_last(tensor.shape)), -1, 2)
        samples = whole.reshape(runs * info.batch, *info.sample_shape(tensor))
        found[tensor.name] = samples.astype(tensor.dtype, copy=False)
    return found


def _checked(
    raws: list[bytes], tensor: TensorInfo, encoding: Encoding | None, is_native: bool
) -> Output:
    size = math.prod(tensor.shape)
    whole: Output = np.stack([_values(raw, size, tensor, encoding, is_native) for raw in raws])
    if whole.dtype.kind == "f" and not np.isfinite(whole).all():
        reason = f"its output {tensor.name!r} on the board is not all numbers (NaN or infinite)"
        raise ModelFailed(reason=reason)
    return whole if is_float(tensor) else np.rint(whole).astype(tensor.dtype)


def class_maps(files: Mapping[str, bytes], count: int, info: GraphInfo) -> Output:
    """(n, H, W) whole numbers below the number of classes."""
    tensor = info.outputs[0]
    shape = tensor.shape[1:]
    first = _has_channels_first(info, tensor)
    classes, sides = (shape[0], shape[1:]) if first else (shape[-1], shape[:-1])
    raws = [_chosen(result, DLC_CLASSES, tensor) for result in _results(files, count, info)]
    maps = [_classes(raw, math.prod(sides), classes) for raw in raws]
    return np.stack(maps).reshape(count, *sides)


def _has_channels_first(info: GraphInfo, tensor: TensorInfo) -> bool:
    """Of an image's output: where the sides are tells it; others follow the input."""
    image = next((each for each in info.inputs if each.layout), None)
    if image is None:
        return True
    sides, shape = (image.height, image.width), tensor.shape[1:]
    return shape[1:] == sides or (shape[:-1] != sides and image.layout == "NCHW")


def _results(files: Mapping[str, bytes], count: int, info: GraphInfo) -> list[Mapping[str, bytes]]:
    """One for each run, in order: the files of its outputs."""
    found: dict[int, dict[str, bytes]] = {}
    for name, content in files.items():
        if match := _RESULT.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = content
    if sorted(found) != list(range(count)):
        what = "images" if info.image is not None and info.batch == 1 else "runs"
        raise ModelFailed(reason=f"the board returned {len(found)} results for {count} {what}")
    return [found[number] for number in range(count)]


def _chosen(outputs: Mapping[str, bytes], name: str, tensor: TensorInfo) -> bytes:
    """The file of an output; one that stands alone may be called as the tool likes."""
    if len(outputs) == 1 and name in (DLC_OUTPUT, DLC_CLASSES):
        return next(iter(outputs.values()))
    for found, content in outputs.items():
        if found.removesuffix(":0") in (name, tensor.name):
            return content
    there = "one output" if len(outputs) == 1 else f"{len(outputs)} outputs"
    raise ModelFailed(reason=f"the board returned {there}, and {tensor.name!r} is not among them")


def _values(
    raw: bytes, size: int, tensor: TensorInfo, encoding: Encoding | None, is_native: bool
) -> Output:
    if len(raw) == 4 * size:
        return np.frombuffer(raw, np.float32 if is_float(tensor) or not is_native else np.int32)
    for width, kind in ((1, np.uint8), (2, np.uint16)):
        if len(raw) == width * size and encoding is not None and encoding.bits == 8 * width:
            return encoding.dequantize(np.frombuffer(raw, kind))
    raise ModelFailed(
        reason=f"its output {tensor.name!r} on the board has {len(raw)} bytes for {size} values"
    )


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
        raise ModelFailed(reason=f"a class map on the board has {len(raw)} bytes for {size} pixels")
    if size and not 0 <= int(found.min()) <= int(found.max()) < classes:
        reason = f"its class maps on the board have classes beyond its {classes}"
        raise ModelFailed(reason=reason)
    return found.astype(np.uint8 if classes <= 256 else np.uint16)
