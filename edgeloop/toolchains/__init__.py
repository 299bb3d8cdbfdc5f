"""From an ONNX model to what a chip runs. The door of the room: what others may use."""

from edgeloop.toolchains.base import (
    DEFAULT_PRECISION,
    Converted,
    GraphInfo,
    Precision,
    Toolchain,
)
from edgeloop.toolchains.chips import CHIPS, DEFAULT_CHIP, Chip, find_chip, named_chip
from edgeloop.toolchains.opening import TOOLCHAINS, open_toolchain
from edgeloop.toolchains.process import DEFAULT_LIMIT_S, NativeProcess
from edgeloop.toolchains.qnn import Estimate, QnnToolchain, target_options
from edgeloop.toolchains.quantize import as_input
from edgeloop.toolchains.serving import Answer, Work, serve
from edgeloop.toolchains.snpe import SnpeToolchain
from edgeloop.toolchains.snpe_info import Encoding, output_encoding
from edgeloop.toolchains.snpe_profile import (
    Profile,
    ProfiledLayer,
    profile_of,
    read_profile,
    with_names,
)
from edgeloop.toolchains.snpe_sdk import Sdk, find_sdk

__all__ = [
    "CHIPS",
    "DEFAULT_CHIP",
    "DEFAULT_LIMIT_S",
    "DEFAULT_PRECISION",
    "TOOLCHAINS",
    "Answer",
    "Chip",
    "Converted",
    "Encoding",
    "Estimate",
    "GraphInfo",
    "NativeProcess",
    "Precision",
    "Profile",
    "ProfiledLayer",
    "QnnToolchain",
    "Sdk",
    "SnpeToolchain",
    "Toolchain",
    "Work",
    "as_input",
    "find_chip",
    "find_sdk",
    "named_chip",
    "open_toolchain",
    "output_encoding",
    "profile_of",
    "read_profile",
    "serve",
    "target_options",
    "with_names",
]
