"""Weights of an ONNX model that lie in files beside it: which ones, whether they are whole, and
what is in them.

onnx's own loader refuses data files that have a second name (a hard link), and what it says of
missing and short ones does not tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.errors import BadModel

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

_LONGEST_SHOWN = 200
_PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


def external_files(path: Path, model: ModelProto) -> dict[str, Path]:
    """Weights kept in other files: those must lie in or below the model's own folder."""
    files: dict[str, Path] = {}
    folder = path.parent.resolve()
    for tensor in all_tensors(model):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        location = fields.get("location", "")
        files[location] = _external_file(path, folder, location)
        _extent(path, files[location], fields, _data_size(tensor))
    if path.name in files:
        raise BadModel(file=path.name, reason="it names itself as its external data")
    return files


def load_external_data(path: Path, model: ModelProto) -> None:
    """Read the weights that lie beside the model at `path` into `model`."""
    files = external_files(path, model)
    for tensor in all_tensors(model):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = _extent(path, files[fields["location"]], fields, _data_size(tensor))
        with files[fields["location"]].open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(length)
        tensor.data_location = tensor.DEFAULT
        del tensor.external_data[:]


def _external_file(path: Path, folder: Path, location: str) -> Path:
    file, shown = folder / location, repr(location[:_LONGEST_SHOWN])
    try:
        outside = not location or not file.resolve().is_relative_to(folder)
        if outside or Path(location).is_absolute() or ".." in Path(location).parts:
            reason = f"its external data {shown} points outside the model's folder"
            raise BadModel(file=path.name, reason=f"{reason}. Save it with its data beside it")
        is_there = file.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, a link to itself, a null character
        is_there = False
    if not is_there:
        reason = f"its external data {shown} is missing. Put that file beside the model"
        raise BadModel(file=path.name, reason=reason)
    return file


def _extent(path: Path, file: Path, fields: dict[str, str], needed: int) -> tuple[int, int]:
    """Offset and length. Exporters may leave the length out; the tensor's shape says it too."""
    try:
        offset, length = int(fields.get("offset", 0)), int(fields.get("length", needed))
    except ValueError:
        offset = length = -1
    if offset < 0 or length < needed:
        raise BadModel(file=path.name, reason="its external data has no valid extent")
    if offset + length > file.stat().st_size:
        reason = f"its external data {file.name!r} is cut off. Export or copy it again"
        raise BadModel(file=path.name, reason=reason)
    return offset, length


def _data_size(tensor: TensorProto) -> int:
    """Bytes of the tensor's data; types below a byte are packed."""
    from onnx import helper

    try:
        kind = tensor.DataType.Name(tensor.data_type)
        item = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError, TypeError):
        return 0  # ONNX's own check says what is wrong with it
    bits = _PACKED_BITS.get(kind, 8 * int(item.itemsize))
    count: int = math.prod(tensor.dims)
    return (count * bits + 7) // 8


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """All tensors that may carry data, those in attributes, sub-graphs and functions too."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node)


def _tensors_of_graph(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from attribute.tensors
        if attribute.HasField("t"):
            yield attribute.t
        for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            yield from _tensors_of_graph(inner)
