"""Toolchains and devices by name."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from edgeloop.errors import BadInput
from edgeloop.isolation import DEFAULT_LIMIT_S
from edgeloop.platforms.device import Device
from edgeloop.platforms.qnn.chips import CHIPS, DEFAULT_CHIP, Chip, find_chip
from edgeloop.platforms.qnn.profiles import Profile, find_profile
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.platforms.snpe.board.options import BoardOptions
from edgeloop.platforms.snpe.sdk import Sdk, find_sdk
from edgeloop.platforms.snpe.toolchain import SnpeToolchain
from edgeloop.platforms.toolchain import Toolchain

TOOLCHAINS = ("qnn", "snpe")
ENTRY_POINTS = "edgeloop.devices"


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


def open_device(
    name: str,
    profiles_folder: Path | None = None,
    threads: int = 1,
    workers: int | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    sdk: Sdk | None = None,
    board: BoardOptions | None = None,
) -> Device:
    """`host`, `htp`, `htp:CHIP`, `htp:PROFILE` (a board calibrated in this workspace),
    `adb:SERIAL` (a board), or what a plug-in names: its entry point is called with the whole name
    and the profiles' folder.

    `threads` are those of a measured run on the host, `workers` the simulators that run at once,
    `sdk` is what boards run with, `board` how long they are waited for.
    """
    kind, _, rest = name.partition(":")
    if kind == "host" and not rest:
        from edgeloop.platforms.host.device import HostDevice

        return HostDevice(threads=threads, limit_s=limit_s)
    if kind == "htp":
        from edgeloop.platforms.qnn.device import HtpDevice

        chip, profile = _chip_and_profile(rest or DEFAULT_CHIP, profiles_folder)
        whole = f"htp:{rest or DEFAULT_CHIP}"  # `htp` is short for it; the table has one name
        return HtpDevice(chip, profile, name=whole, workers=workers, limit_s=limit_s)
    if kind == "adb" and rest:
        from edgeloop.platforms.snpe.board.device import AdbDevice

        return AdbDevice(rest, sdk, options=board)
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == kind:
            return cast(Device, point.load()(name, profiles_folder))
    close = get_close_matches(kind, [known.partition(":")[0] for known in device_names()], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    known = ", ".join(device_names())
    raise BadInput(reason=f"there is no device {name!r}.{hint} There are: {known}.")


def estimated_by(name: str, profiles_folder: Path | None = None) -> tuple[Chip, Profile | None]:
    """The chip of `htp:…`, and the profile that corrects the compiler's estimate for it, if any:
    for estimates of graphs that are no models yet."""
    kind, _, rest = name.partition(":")
    if kind != "htp":
        reason = f"the compiler estimates chips, as htp:{DEFAULT_CHIP}, and not {name!r}"
        raise BadInput(reason=reason)
    return _chip_and_profile(rest or DEFAULT_CHIP, profiles_folder)


def device_names() -> tuple[str, ...]:
    """What `open_device` takes; CHIP stands for a name of the table of chips, SERIAL for a
    board's as `adb devices` shows it."""
    others = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    return ("host", "htp", "htp:CHIP", "adb:SERIAL", *others)


def _chip_and_profile(name: str, folder: Path | None) -> tuple[Chip, Profile | None]:
    """A profile of the workspace that is no chip's name is a board: the chip it was fitted on."""
    own = find_profile(name, folder)
    if own is not None and name not in CHIPS:
        fitted = [chip for chip in CHIPS.values() if chip.estimate_soc == own.soc]
        if not fitted:
            reason = f"profile {name!r} belongs to chip number {own.soc}, which has no estimate"
            raise BadInput(reason=reason)
        return fitted[0], own
    chip = find_chip(name)
    return chip, find_profile(chip.name, folder)
