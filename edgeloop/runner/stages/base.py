"""What a stage gets and what it hands back. Pure work: neither table nor blobs are touched here,
so that a lost lease can never leave half a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgeloop.errors import BadInput
from edgeloop.platforms import DEFAULT_PRECISION, Device, Precision, Toolchain
from edgeloop.store import Values
from edgeloop.tasks import Task


@dataclass(frozen=True)
class Sizes:
    """How many images: for calibration, for the quick F1 and for the thorough one; and for PR
    curves, where F1 itself comes from class maps."""

    calibration: int = 1_000
    quick: int = 1_000
    thorough: int = 10_000
    curve: int = 100


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
        return self.artefact(".quant.onnx")

    @property
    def toolchain(self) -> str:
        """What converted it; rows of older versions do not say so, their files do."""
        said = str(self.row.get("toolchain") or "")
        if said or not any(name.endswith(".quant.dlc") for name in self.files):
            return said
        return "qnn" if any(name.endswith(".quant.onnx") for name in self.files) else "snpe"

    def find(self, suffix: str) -> Path | None:
        """The file that conversion made with this ending, if it made one."""
        found = [p for n, p in self.files.items() if n.endswith(suffix) and _is_whole(n, suffix)]
        if len(found) < 2:
            return found[0] if found else None
        return self.files.get(f"{self.onnx.stem}{suffix}")

    def artefact(self, suffix: str) -> Path:
        """The file that a device runs, by how its name ends; without an ending the uploaded one.

        Both toolchains make DLC files, with other ends: a board takes those of snpe only.
        """
        if not suffix:
            return self.onnx
        needed = "snpe" if suffix.endswith(".dlc") else "qnn"
        if self.toolchain not in ("", needed):
            raise BadInput(reason=_of_other_toolchain(self.model, self.toolchain, needed))
        found = self.find(suffix) if self.files else None
        if found is None:
            reason = (
                f"{self.model} has no quantized model (*{suffix}); reset it to convert it again"
            )
            raise BadInput(reason=reason)
        return found


@dataclass(frozen=True)
class Result:
    """Columns for the row, files by the names they get, and a line for people."""

    columns: Values
    files: Mapping[str, Path]
    summary: str


def _made(name: str) -> bool:
    return name.endswith((".quant.onnx", ".ctx.onnx"))


def _is_whole(name: str, suffix: str) -> bool:
    """`.dlc` is also how `.quant.dlc` ends, and that how `.classes.quant.dlc` does."""
    return not name.removesuffix(suffix).endswith((".quant", ".classes"))


def _of_other_toolchain(model: str, made_by: str, needed: str) -> str:
    who = "boards need snpe" if needed == "snpe" else "this device needs qnn"
    return (
        f"{model} was converted with {made_by}, and {who}: "
        f"'edgeloop reset {model} --stage convert', with a runner of the toolchain {needed}"
    )
