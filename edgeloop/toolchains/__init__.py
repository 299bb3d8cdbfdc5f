"""From an ONNX model to what a chip runs. The door of the room: what others may use."""

from edgeloop.toolchains.base import (
    DEFAULT_PRECISION,
    Converted,
    GraphInfo,
    Precision,
    Toolchain,
)
from edgeloop.toolchains.chips import CHIPS, DEFAULT_CHIP, Chip, find_chip, named_chip
from edgeloop.toolchains.process import DEFAULT_LIMIT_S, NativeProcess
from edgeloop.toolchains.qnn import Estimate, QnnToolchain, target_options
from edgeloop.toolchains.quantize import as_input
from edgeloop.toolchains.serving import Answer, Work, serve

__all__ = [
    "CHIPS",
    "DEFAULT_CHIP",
    "DEFAULT_LIMIT_S",
    "DEFAULT_PRECISION",
    "Answer",
    "Chip",
    "Converted",
    "Estimate",
    "GraphInfo",
    "NativeProcess",
    "Precision",
    "QnnToolchain",
    "Toolchain",
    "Work",
    "as_input",
    "find_chip",
    "named_chip",
    "serve",
    "target_options",
]
