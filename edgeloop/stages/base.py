"""What a stage gets and what it hands back. Pure work: neither table nor blobs are touched here,
so that a lost lease can never leave half a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgeloop.devices import Device
from edgeloop.errors import BadInput
from edgeloop.store import Values
from edgeloop.tasks import Task
from edgeloop.toolchains import DEFAULT_PRECISION, Precision, Toolchain


@dataclass(frozen=True)
class Sizes:
    """How many images: for calibration, for the quick F1 and for the thorough one."""

    calibration: int = 1_000
    quick: int = 1_000
    thorough: int = 10_000


@dataclass(frozen=True)
class Equipment:
    """What a worker can use. `device` is what its device stages run on; `host` is always there."""

    toolchain: Toolchain
    host: Device
    task: Task
    device: Device
    chips: tuple[str, ...] = ()
    precision: Precision = DEFAULT_PRECISION
    sizes: Sizes = field(default_factory=Sizes)


@dataclass(frozen=True)
class Assignment:
    """One stage of one model: its row as it was claimed, its files here, a folder to work in."""

    model: str
    stage: str
    row: Values
    files: Mapping[str, Path]
    folder: Path

    @property
    def onnx(self) -> Path:
        """The model as it was uploaded; old rows may not say its name, but have only one."""
        named = self.files.get(str(self.row.get("model_name", "")))
        plain = [p for n, p in self.files.items() if n.endswith(".onnx") and not _made(n)]
        if named is None and len(plain) != 1:
            raise BadInput(reason=f"{self.model} has {len(plain)} .onnx files; one is needed")
        return named or plain[0]

    @property
    def quantized(self) -> Path:
        for name, path in self.files.items():
            if name.endswith(".quant.onnx"):
                return path
        raise BadInput(reason=f"{self.model} has no quantized model; reset it to convert it again")


@dataclass(frozen=True)
class Result:
    """Columns for the row, files by the names they get, and a line for people."""

    columns: Values
    files: Mapping[str, Path]
    summary: str


def _made(name: str) -> bool:
    return name.endswith((".quant.onnx", ".ctx.onnx"))
