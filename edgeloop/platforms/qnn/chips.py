"""The chips by name, from `chips.yaml`: what to compile for, and where an estimate comes from."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from edgeloop._util.values import did_you_mean
from edgeloop._util.yaml import read_yaml
from edgeloop.errors import BadInput, MissingExtra

DEFAULT_CHIP = "qcs8550"  # calibrated: its estimates have an interval


@dataclass(frozen=True)
class Chip:
    """`soc` None: compiled for the architecture alone. `estimate_soc` None: no estimate,
    `nearest` then names a chip that has one."""

    name: str
    title: str
    arch: int
    soc: int | None = None
    estimate_soc: int | None = None
    nearest: str = ""

    def require_estimate(self) -> int:
        """The number that the compiler estimates it by; raises BadInput where there is none."""
        if self.estimate_soc is None:
            reason = (
                f"{self.name} has no latency estimate; the nearest chip that has one is "
                f"{self.nearest}"
            )
            raise BadInput(reason=reason)
        return self.estimate_soc


@cache
def chips() -> dict[str, Chip]:
    return {name: Chip(name, **fields) for name, fields in read_table("chips.yaml").items()}


def read_table(file: str) -> dict[str, dict[str, Any]]:
    """A data file of this folder: a mapping of fields for each name."""
    return cast(dict[str, dict[str, Any]], read_yaml(Path(__file__).with_name(file)).value)


def named_chip(chip: Chip) -> Chip:
    """The chip itself or, where it has no number, one of the same architecture that has: the
    simulator's fp16 wants a number. That chips of an architecture compute alike is assumed."""
    if chip.soc is not None:
        return chip
    return next(o for o in chips().values() if o.arch == chip.arch and o.soc is not None)


def find_chip(name: str) -> Chip:
    """Spelling is forgiven (`Snapdragon 888`); anything else lists what there is."""
    plain = name.strip().lower().replace(" ", "-").replace("_", "-")
    if plain in chips():
        return chips()[plain]
    hint = did_you_mean(plain, chips())
    opening = f"{hint} Known are" if hint else "Known are"
    raise BadInput(reason=f"there is no chip {name!r}: {opening} {', '.join(chips())}.")


# Qualcomm's libraries in the package onnxruntime-qnn, and whether this system can load them.


PROVIDER_LIBRARY = "libonnxruntime_providers_qnn.so"
_SYSTEM_LIBRARY = "libQnnSystem.so"


def library(name: str) -> Path:
    try:
        import onnxruntime_qnn
    except ImportError:
        raise MissingExtra(what="The qnn toolchain", extra="qnn") from None
    if name == PROVIDER_LIBRARY:
        return Path(onnxruntime_qnn.get_library_path())
    return Path(onnxruntime_qnn.LIB_DIR_FULL_PATH) / name


def missing_library() -> str:
    """What the system lacks for them; empty if nothing. Without this question ONNX Runtime would
    go on, and its compiler would seem to refuse every operator of every model."""
    try:
        ctypes.CDLL(str(library(_SYSTEM_LIBRARY)))
    except OSError as error:
        hint = "install the system's package that has it, such as libatomic1"
        return f"Qualcomm's compiler cannot be loaded, {error}: {hint}"
    return ""
