"""Is this file an ONNX model, whole, with all the files it needs? Asked before it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.errors import (
    BadModel,
    LocalFileError,
    ModelFailed,
    ModelRefused,
    UnusableModel,
    WorkerFailed,
)
from edgeloop.models.names import check_file_name
from edgeloop.store import check_blob_key

if TYPE_CHECKING:
    from onnx import ModelProto

    from edgeloop.graph import GraphSummary

LARGEST_PROTOBUF = 2**31 - 1
_CHUNK = 1 << 20


@dataclass(frozen=True)
class OnnxFile:
    """A checked model. `files`: name below the model's folder → local file, the model first."""

    path: Path
    files: dict[str, Path]
    size: int
    content: str


def check_onnx(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxFile:
    """Raises BadModel, with the reason and the remedy, unless everything is there and valid. With
    other shapes of its inputs it is another model."""
    from edgeloop.graph import external_files

    name = check_file_name(path.name)
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
    if size is None:
        raise BadModel(file=name, reason=f"there is no file {path}")
    _check_size(name, size)
    model = _parse(path)
    files = {name: path, **external_files(path, model)}
    for location in files:
        check_blob_key(location)
    _check_graph(path)
    return OnnxFile(
        path=path,
        files=files,
        size=sum(file.stat().st_size for file in files.values()),
        content=_digest(files, shapes or {}),
    )


def check_graph(file: OnnxFile, shapes: Mapping[str, tuple[int, ...]]) -> GraphSummary | None:
    """Raises UnusableModel for what no runner could evaluate. None where this machine could not
    find out, which is no fault of the model: a runner will."""
    from edgeloop.graph import graph_pool

    try:
        summary = graph_pool().summarize(file.path, shapes)
    except ModelRefused:
        raise
    except (ModelFailed, WorkerFailed):
        return None
    if summary.problem:
        raise UnusableModel(file=file.path.name, reason=summary.problem)
    return summary


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

    from edgeloop.graph import check_limits

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
    check_limits(path.name, model)
    return model


def _check_graph(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "invalid graph")
        raise BadModel(file=path.name, reason=f"ONNX's own check says: {first.strip()}") from None


def _digest(files: dict[str, Path], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """One hash over the model, its external data and shapes that were given for it; the model's own
    name does not count."""
    import hashlib

    model, *others = files
    total = hashlib.sha256()
    for name in (model, *sorted(others)):
        if name != model:
            total.update(f"\0{name}\0".encode())
        with files[name].open("rb") as file:
            while chunk := file.read(_CHUNK):
                total.update(chunk)
    for name, shape in sorted(shapes.items()):
        total.update(f"\0{name}={shape}".encode())
    return total.hexdigest()
