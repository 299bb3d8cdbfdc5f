"""Loads a model with all of its weights, and says in words why it cannot be loaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.errors import LocalFileError, UnusableModel
from edgeloop.graph.reading.external_data import all_tensors, load_external_data
from edgeloop.graph.reading.limits import check_limits

if TYPE_CHECKING:
    from onnx import ModelProto

LARGEST_FILE = 2**31 - 1
_LARGEST_INSIDE = 1 << 30  # bytes of weights: with more of them, a file has them beside it
_SMALL = 1 << 12  # elements: shapes, pads and scales, on which other shapes depend


def load_model(path: Path, with_weights: bool = True) -> ModelProto:
    """Without its weights, those that lie beside the file stay there."""
    import onnx
    from google.protobuf.message import DecodeError

    size = -1
    try:
        size = path.stat().st_size
        if not path.is_file():  # a pipe would never end
            raise UnusableModel(file=path.name, reason="it is not a file")
        if size > LARGEST_FILE:
            reason = "it is larger than 2 GB. Save it with its weights beside it"
            raise UnusableModel(file=path.name, reason=reason)
        model = onnx.load_model(str(path), load_external_data=False)
        check_limits(path.name, model)
        if with_weights:
            load_external_data(path, model)
    except (DecodeError, ValueError):
        reason = "it is empty" if not size else "it is not an ONNX model, or it was cut off"
        raise UnusableModel(file=path.name, reason=reason) from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    if not model.graph.node:
        raise UnusableModel(file=path.name, reason="its graph is empty")
    return model


def save_model(model: ModelProto, path: Path) -> None:
    """With weights beside the file where one file cannot hold them."""
    import onnx

    size = sum(len(tensor.raw_data) for tensor in all_tensors(model))
    if size <= _LARGEST_INSIDE:
        onnx.save_model(model, str(path))
        return
    beside = f"{path.name}.data"
    path.with_name(beside).unlink(missing_ok=True)
    onnx.save_model(model, str(path), save_as_external_data=True, location=beside)


def without_weights(model: ModelProto) -> ModelProto:
    """A copy for ONNX's own passes, which copy a model several times and take at most 2 GB: of a
    large weight it has type and shape alone."""
    import onnx

    light = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    for name in ("opset_import", "functions", "metadata_props"):
        getattr(light, name).extend(getattr(model, name))
    light.graph.name = model.graph.name
    for name in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, name).extend(getattr(model.graph, name))
    for tensor in model.graph.initializer:
        copy = light.graph.initializer.add()
        if math.prod(tensor.dims) <= _SMALL:
            copy.CopyFrom(tensor)
            continue
        copy.name, copy.data_type, copy.data_location = tensor.name, tensor.data_type, copy.EXTERNAL
        copy.dims.extend(tensor.dims)
    return light


def with_weights_of(light: ModelProto, model: ModelProto) -> ModelProto:
    """Puts the weights back into what a pass made of `without_weights(model)`."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for tensor in light.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            tensor.CopyFrom(weights[tensor.name])
    return light
