"""The stand-ins' container: a zip with an ONNX model, and what the tools know of it.

As in a real DLC, images lie as height, width, channels; where the model wants channels first, its
tensors are turned on the way in and out.
"""

from __future__ import annotations

import json
import shlex
import zipfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Encoding:
    """value = (number + offset) × scale, as the SDK has it: offsets are not above zero."""

    bits: int
    scale: float
    offset: int

    @property
    def dtype(self) -> str:
        return f"uint{self.bits}"


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


@dataclass(frozen=True)
class Tensor:
    """`shape` is the model's own; `turned`: the container has it with channels last. `dtype` is the
    container's."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    turned: bool = False
    encoding: Encoding | None = None

    @property
    def outside(self) -> tuple[int, ...]:
        return channels_last(self.shape) if self.turned else self.shape

    @property
    def native(self) -> str:
        """The type of its files where native ones are asked for; there are no 64-bit integers."""
        if self.encoding is not None:
            return self.encoding.dtype
        return "int32" if self.dtype == "int64" else self.dtype


@dataclass(frozen=True)
class Layer:
    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shape: tuple[int, ...]
    parameters: int
    macs: int


@dataclass(frozen=True)
class Dlc:
    model: bytes
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    layers: tuple[Layer, ...]
    quantized: bool = False
    commands: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        known = asdict(replace(self, model=b""))
        del known["model"]
        lines = "".join(f"{name}={value}\n" for name, value in self.commands.items())
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model", self.model)
            archive.writestr("dlc.metadata", lines)
            archive.writestr("tensors.json", json.dumps(known))


class NoContainer(Exception):
    """What the tools say of a file that is no DLC of theirs."""


def read_dlc(path: Path) -> Dlc:
    try:
        with zipfile.ZipFile(path) as archive:
            known = json.loads(archive.read("tensors.json"))
            model = archive.read("model")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        message = f"Failed to open dlc {path}: {error or 'no container'}"
        raise NoContainer(
            f"error_code=301; error_message={message}; component=DL Container"
        ) from None
    return Dlc(
        model,
        tuple(map(_tensor, known["inputs"])),
        tuple(map(_tensor, known["outputs"])),
        tuple(_layer(fields) for fields in known["layers"]),
        known["quantized"],
        known["commands"],
    )


def command_line(name: str, arguments: list[str]) -> str:
    return shlex.join([name, *arguments])


def _tensor(fields: dict[str, Any]) -> Tensor:
    encoding = fields["encoding"]
    return Tensor(
        fields["name"],
        tuple(fields["shape"]),
        fields["dtype"],
        fields["turned"],
        Encoding(**encoding) if encoding else None,
    )


def _layer(fields: dict[str, Any]) -> Layer:
    lists = {name: tuple(fields[name]) for name in ("inputs", "outputs", "shape")}
    return Layer(**{**fields, **lists})
