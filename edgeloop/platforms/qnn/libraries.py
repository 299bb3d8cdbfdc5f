"""Qualcomm's libraries in the package onnxruntime-qnn, and whether this system can load them."""

from __future__ import annotations

import ctypes
from pathlib import Path

from edgeloop.errors import MissingExtra

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
