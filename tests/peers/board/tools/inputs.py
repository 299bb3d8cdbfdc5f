"""Input lists and raw files, as all the tools read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.peers.board.tools.dlc import Tensor

_KINDS = {
    "tensor(float)": "float32",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
Line = dict[str, Path]  # a model's only input may be nameless


@dataclass(frozen=True)
class InputList:
    """`outputs` is what a first line with `#` or `%` asks for; empty: those of the model."""

    outputs: tuple[str, ...]
    lines: tuple[Line, ...]

    @classmethod
    def read(cls, path: Path, folder: Path) -> InputList:
        outputs: tuple[str, ...] = ()
        lines = []
        for text in path.read_text().splitlines():
            if text.startswith(("#", "%")):
                outputs = tuple(text[1:].split())
            elif text.strip():
                lines.append(_line(text, folder))
        return cls(outputs, tuple(lines))


def load(tensors: Sequence[Tensor], line: Line, native: bool) -> dict[str, NDArray[Any]]:
    """What the model is fed. Raises ValueError for a file that does not fit."""
    named = {tensors[0].name: next(iter(line.values()))} if len(tensors) == 1 else line
    missing = [tensor.name for tensor in tensors if tensor.name not in named]
    if missing:
        raise ValueError(f"error_code=1001; error_message=No file for input {missing[0]}")
    return {tensor.name: _load(tensor, named[tensor.name], native) for tensor in tensors}


def as_taken(session: Any, fed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """In the types that the model's inputs have in ONNX Runtime."""
    kinds = {value.name: _KINDS[value.type] for value in session.get_inputs()}
    return {name: values.astype(kinds[name], copy=False) for name, values in fed.items()}


def _line(text: str, folder: Path) -> Line:
    parts: Line = {}
    for number, part in enumerate(text.split()):
        name, found, path = part.partition(":=")
        parts[name if found else str(number)] = folder / (path if found else part)
    return parts


def _load(tensor: Tensor, path: Path, native: bool) -> NDArray[Any]:
    kind = tensor.native if native else "float32"
    values = np.fromfile(path, dtype=kind)
    if values.size != np.prod(tensor.shape):
        wanted = int(np.prod(tensor.shape)) * np.dtype(kind).itemsize
        raise ValueError(
            "error_code=1002; error_message=Input tensor size mismatch. "
            f"{path} has {path.stat().st_size} bytes, {tensor.name} takes {wanted}"
        )
    if native and tensor.encoding is not None:
        scale, offset = tensor.encoding.scale, tensor.encoding.offset
        values = ((values.astype(np.float32) + offset) * scale).astype(np.float32)
    values = values.reshape(tensor.outside)
    if tensor.turned:
        values = np.moveaxis(values, -1, 1)
    return np.ascontiguousarray(values)
