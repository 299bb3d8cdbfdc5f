"""Networks without their weights: a few kilobytes each, and the weights re-made from a seed.

A latency estimate depends on the graph and not on what its weights are. So the archive has every
network as ONNX in which a large float constant has its shape, mean and deviation only;
`with_weights` fills it with random numbers that are the same on every machine. Constants that
compress well (masks, anchors, ones) are kept as they are.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop._util.files import file_lock

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto, TensorProto

_MARK = "random:"  # then the mean and the standard deviation
_SMALL = 64  # elements
_PLAIN = 0.2  # of its size: what compresses better than this is no weight
_SAMPLE = 16384  # elements that are compressed to see that


def without_weights(model: ModelProto) -> ModelProto:
    """The same graph; `model` is changed and returned. Documentation and traces are left out."""
    model.doc_string = model.graph.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _empty(attribute.t)
    for tensor in model.graph.initializer:
        _empty(tensor)
    del model.graph.value_info[:]
    return model


def with_weights(model: ModelProto, seed: str) -> ModelProto:
    """`model` with every left-out constant, the same for the same seed; changed and returned."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _fill(attribute.t, f"{seed}/{node.name}")
    for tensor in model.graph.initializer:
        _fill(tensor, f"{seed}/{tensor.name}")
    return model


def add_to_archive(archive: Path, name: str, model: ModelProto) -> None:
    """Sorted and without times, so that the same networks give the same archive. Several may add
    at the same time."""
    with file_lock(archive.parent):
        content = {f"{name}.onnx": model.SerializeToString(deterministic=True)}
        if archive.is_file():
            with zipfile.ZipFile(archive) as packed:
                content = {one: packed.read(one) for one in packed.namelist()} | content
        partial = archive.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_LZMA) as packed:
            for one in sorted(content):
                packed.writestr(zipfile.ZipInfo(one), content[one], zipfile.ZIP_LZMA)
        partial.replace(archive)


def names_in(archive: Path) -> list[str]:
    with zipfile.ZipFile(archive) as packed:
        return [name.removesuffix(".onnx") for name in packed.namelist()]


def read_skeleton(archive: Path, name: str) -> ModelProto:
    import onnx

    with zipfile.ZipFile(archive) as packed:
        return onnx.load_model_from_string(packed.read(f"{name}.onnx"))


def _empty(tensor: TensorProto) -> None:
    from onnx import TensorProto, numpy_helper

    if tensor.data_type != TensorProto.FLOAT or math.prod(tensor.dims) <= _SMALL:
        return
    values = numpy_helper.to_array(tensor)
    sample = values.ravel()[:_SAMPLE].tobytes()
    if len(zlib.compress(sample, 1)) < _PLAIN * len(sample):
        return
    tensor.doc_string = f"{_MARK}{values.mean():.4g}:{values.std():.4g}"
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")


def _fill(tensor: TensorProto, seed: str) -> None:
    if not tensor.doc_string.startswith(_MARK):
        return
    mean, deviation = map(float, tensor.doc_string.removeprefix(_MARK).split(":"))
    tensor.raw_data = _random(seed, tuple(tensor.dims), mean, deviation).tobytes()
    tensor.doc_string = ""


def _random(seed: str, shape: tuple[int, ...], mean: float, deviation: float) -> NDArray:  # type: ignore[type-arg]
    import numpy as np

    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little")
    generator = np.random.Generator(np.random.PCG64(number))
    values = generator.random(shape, np.float32)
    values -= np.float32(0.5)
    values *= np.float32(deviation * math.sqrt(12))
    values += np.float32(mean)
    return values
