"""From an ONNX model to what a chip runs, and what runs it: one folder per vendor."""

from edgeloop.graph import GraphInfo
from edgeloop.platforms.device import (
    Artefacts,
    Device,
    GivesClasses,
    Kind,
    Layer,
    Measurement,
    Shared,
)
from edgeloop.platforms.qnn.chips import CHIPS, DEFAULT_CHIP, Chip, find_chip, named_chip
from edgeloop.platforms.qnn.profiles import (
    FEWEST_MODELS,
    PROFILES,
    Profile,
    calibrated,
    find_profile,
    fit_profile,
    list_profiles,
    save_profile,
)
from edgeloop.platforms.qnn.quantize import as_input
from edgeloop.platforms.qnn.toolchain import Estimate, QnnToolchain, target_options
from edgeloop.platforms.registry import (
    TOOLCHAINS,
    device_names,
    estimated_by,
    open_device,
    open_toolchain,
)
from edgeloop.platforms.snpe.board.listing import Attached, attached
from edgeloop.platforms.snpe.board.options import BoardOptions
from edgeloop.platforms.snpe.dlc import Encoding, output_encoding
from edgeloop.platforms.snpe.profile import ProfiledLayer, profile_of, read_profile, with_names
from edgeloop.platforms.snpe.sdk import Sdk, find_sdk
from edgeloop.platforms.snpe.toolchain import SnpeToolchain
from edgeloop.platforms.toolchain import DEFAULT_PRECISION, Converted, Precision, Toolchain

__all__ = [
    "CHIPS",
    "DEFAULT_CHIP",
    "DEFAULT_PRECISION",
    "FEWEST_MODELS",
    "PROFILES",
    "TOOLCHAINS",
    "Artefacts",
    "Attached",
    "BoardOptions",
    "Chip",
    "Converted",
    "Device",
    "Encoding",
    "Estimate",
    "GivesClasses",
    "GraphInfo",
    "Kind",
    "Layer",
    "Measurement",
    "Precision",
    "Profile",
    "ProfiledLayer",
    "QnnToolchain",
    "Sdk",
    "Shared",
    "SnpeToolchain",
    "Toolchain",
    "as_input",
    "attached",
    "calibrated",
    "device_names",
    "estimated_by",
    "find_chip",
    "find_profile",
    "find_sdk",
    "fit_profile",
    "list_profiles",
    "named_chip",
    "open_device",
    "open_toolchain",
    "output_encoding",
    "profile_of",
    "read_profile",
    "save_profile",
    "target_options",
    "with_names",
]
