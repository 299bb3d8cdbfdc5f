"""Toolchains by name."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from edgeloop.errors import BadInput
from edgeloop.toolchains.base import Toolchain
from edgeloop.toolchains.qnn import QnnToolchain
from edgeloop.toolchains.snpe import SnpeToolchain
from edgeloop.toolchains.snpe_sdk import find_sdk

TOOLCHAINS = ("qnn", "snpe")


def open_toolchain(name: str = "qnn", sdk_root: Path | str = "") -> Toolchain:
    """`sdk_root` is where the toolchain snpe finds its SDK; empty: as the environment says."""
    if name == "qnn":
        return QnnToolchain()
    if name == "snpe":
        return SnpeToolchain(find_sdk(sdk_root))
    close = get_close_matches(name, TOOLCHAINS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    known = ", ".join(TOOLCHAINS)
    raise BadInput(reason=f"there is no toolchain {name!r}.{hint} There are: {known}.")
