"""Is this file an ONNX model, whole, with all the files it needs? Asked before it is stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.errors import BadModel, LocalFileError
from edgeloop.models.names import check_file_name
from edgeloop.store import check_blob_key

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

LARGEST_PROTOBUF = 2**31 - 1
_CHUNK = 1 << 20
_PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


@dataclass(frozen=True)
class OnnxFile:
    """A checked model. `files`: name below the model's folder → local file, the model first."""

    path: Path
    files: dict[str, Path]
    size: int
    content: str


def check_onnx(path: Path) -> OnnxFile:
    """Raises BadModel, with the reason and the remedy, unless everything is there and valid."""
    name = check_file_name(path.name)
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
    if size is None:
        raise BadModel(file=name, reason=f"there is no file {path}")
    _check_size(name, size)
    model = _parse(path)
    files = {name: path, **_external_files(path, model)}
    _check_graph(path)
    return OnnxFile(
        path=path,
        files=files,
        size=sum(file.stat().st_size for file in files.values()),
        content=_digest(files),
    )


def _check_size(name: str, size: int) -> None:
    if size == 0:
        raise BadModel(file=name, reason="the file is empty")
    if size > LARGEST_PROTOBUF:
        reason = (
            f"it has {size / 1e9:.1f} GB, and an ONNX file ends at 2 GB. Save it with its weights "
            "beside it: onnx.save_model(model, path, save_as_external_data=True)"
        )
        raise BadModel(file=name, reason=reason)


def _parse(path: Path) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except (DecodeError, ValueError):
        reason = "it is not an ONNX model, or it was cut off. Export or copy it again"
        raise BadModel(file=path.name, reason=reason) from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
    if not model.graph.node or not model.ir_version or not model.opset_import:
        reason = "it holds no ONNX graph, or it was cut off. Export or copy it again"
        raise BadModel(file=path.name, reason=reason)
    return model


def _external_files(path: Path, model: ModelProto) -> dict[str, Path]:
    """Weights kept in other files: those must lie in or below the model's own folder."""
    files: dict[str, Path] = {}
    folder = path.parent.resolve()
    for tensor in _tensors(model):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        location = fields.get("location", "")
        files[location] = _external_file(path, folder, location)
        _check_extent(path, files[location], fields, _data_size(tensor))
    if path.name in files:
        raise BadModel(file=path.name, reason="it names itself as its external data")
    return files


def _external_file(path: Path, folder: Path, location: str) -> Path:
    file = folder / location
    outside = not location or not file.resolve().is_relative_to(folder)
    if outside or Path(location).is_absolute() or ".." in Path(location).parts:
        reason = f"its external data {location!r} points outside the model's folder"
        raise BadModel(file=path.name, reason=f"{reason}. Save it with its data beside it")
    if not file.is_file():
        reason = f"its external data {location!r} is missing. Put that file beside the model"
        raise BadModel(file=path.name, reason=reason)
    check_blob_key(location)
    return file


def _check_extent(path: Path, file: Path, fields: dict[str, str], needed: int) -> None:
    """Exporters may leave the length out; the tensor's shape says it too."""
    try:
        offset, length = int(fields.get("offset", 0)), int(fields.get("length", needed))
    except ValueError:
        offset = length = -1
    if offset < 0 or length < needed:
        raise BadModel(file=path.name, reason="its external data has no valid extent")
    if offset + length > file.stat().st_size:
        reason = f"its external data {file.name!r} is cut off. Export or copy it again"
        raise BadModel(file=path.name, reason=reason)


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


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
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


def _check_graph(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "invalid graph")
        raise BadModel(file=path.name, reason=f"ONNX's own check says: {first.strip()}") from None


def _digest(files: dict[str, Path]) -> str:
    """One hash over the model and its external data; the model's own name does not count."""
    import hashlib

    model, *others = files
    total = hashlib.sha256()
    for name in (model, *sorted(others)):
        if name != model:
            total.update(f"\0{name}\0".encode())
        with files[name].open("rb") as file:
            while chunk := file.read(_CHUNK):
                total.update(chunk)
    return total.hexdigest()
