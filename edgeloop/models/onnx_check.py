"""Is this file an ONNX model, whole, with all the files it needs? Asked before it is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    from edgeloop.graph.describe import GraphSummary

LARGEST_PROTOBUF = 2**31 - 1
_CHUNK = 1 << 20


@dataclass(frozen=True)
class OnnxFile:
    """A checked model. `files`: name below the model's folder → local file, the model first.
    `sha256` is each file's own, `content` that of all of them with the shapes."""

    path: Path
    files: dict[str, Path]
    size: int
    content: str
    sha256: dict[str, str]


def check_onnx(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxFile:
    """Raises BadModel, with the reason and the remedy, unless everything is there and valid. With
    other shapes of its inputs it is another model. What is read here for its graph and its files is
    what the hashes are of: a file that changes later differs from them."""
    from edgeloop.graph.read import external_files

    name = check_file_name(path.name)
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
    if size is None:
        raise BadModel(file=name, reason=f"there is no file {path.absolute()}")
    _check_size(name, size)
    serialized = _read(path)
    others = external_files(path, _parse(path, serialized))
    for location in (name, *others):
        check_blob_key(location)
    digest = ContentDigest(name, shapes or {})
    digest.add(name, [serialized])
    size = len(serialized)
    del serialized
    for location in sorted(others):
        size += digest.add(location, file_chunks(others[location]))
    _check_graph(path)
    return OnnxFile(path, {name: path, **others}, size, digest.content, digest.sha256)


def check_graph(file: OnnxFile, shapes: Mapping[str, tuple[int, ...]]) -> GraphSummary | None:
    """Raises UnusableModel for what no runner could evaluate. None where this machine could not
    find out, which is no fault of the model: a runner will."""
    from edgeloop.graph.process import graph_pool

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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None


def _parse(path: Path, serialized: bytes) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    from edgeloop.graph.read import check_limits

    try:
        model = onnx.load_model_from_string(serialized)
    except (DecodeError, ValueError):
        reason = "it is not an ONNX model, or it was cut off. Export or copy it again"
        raise BadModel(file=path.name, reason=reason) from None
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


def file_chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None


class ContentDigest:
    """One hash over a model, its external data and shapes that were given for it, as rows have it
    in `content`: the model first, then the others by name. The model's own name does not count."""

    def __init__(self, model: str, shapes: Mapping[str, Sequence[int]]) -> None:
        self._model = model
        self._shapes = shapes
        self._total = hashlib.sha256()
        self.sha256: dict[str, str] = {}

    def add(self, name: str, chunks: Iterable[bytes]) -> int:
        """The next file; its size."""
        own, size = hashlib.sha256(), 0
        if name != self._model:
            self._total.update(f"\0{name}\0".encode())
        for chunk in chunks:
            own.update(chunk)
            self._total.update(chunk)
            size += len(chunk)
        self.sha256[name] = own.hexdigest()
        return size

    @property
    def content(self) -> str:
        total = self._total.copy()
        for name, shape in sorted(self._shapes.items()):
            total.update(f"\0{name}={tuple(shape)}".encode())
        return total.hexdigest()
