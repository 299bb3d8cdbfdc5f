"""Platforms by name, and devices by theirs.

Built-in platforms are imported when they are asked for; those of plug-ins come by entry points of
the group `edgeloop.platforms`, each a `Platform` class or a function that makes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from edgeloop._util.health import HealthCheck
from edgeloop._util.values import close_names, suggestion
from edgeloop.errors import BadInput, EdgeloopError
from edgeloop.platforms.base import Device, ListedDevice, Platform, Toolchain
from edgeloop.settings import platform_points

if TYPE_CHECKING:
    from edgeloop.settings import Settings

DEFAULT_PLATFORM = "qnn"  # converts models where no device asks for another one


def find_platform(name: str) -> Platform:
    for point in platform_points():
        if point.name == name:
            return _load(point)
    hint = suggestion(name, platform_names(), "there are")
    raise BadInput(reason=f"there is no platform {name!r}: {hint}")


def platform_names() -> tuple[str, ...]:
    return tuple(point.name for point in platform_points())


def platforms() -> Iterator[Platform]:
    """All that can be loaded, the built-in ones first; `health` says why others cannot."""
    for point in platform_points():
        try:
            yield _load(point)
        except EdgeloopError:
            continue


def platform_of(device: str) -> Platform:
    """The platform that opens a device; raises BadInput with the names there are."""
    kind, _, rest = device.partition(":")
    for platform in platforms():
        for pattern in platform.device_names:
            pattern_kind, _, pattern_rest = pattern.partition(":")
            if kind == pattern_kind and bool(rest) == bool(pattern_rest):
                return platform
    kinds = dict.fromkeys(name.partition(":")[0] for name in device_names())
    if chip_hint := _device_of_chip(device):
        raise BadInput(reason=f"there is no device {device!r}: {chip_hint}")
    hint = suggestion(kind, kinds, "")
    opening = f"{hint} " if hint.startswith("did") else ""
    reason = f"there is no device {device!r}: {opening}there are {', '.join(device_names())}"
    raise BadInput(reason=reason)


def _device_of_chip(name: str) -> str:
    """`bench` prints a chip without its kind, so that is what people type next."""
    from edgeloop.platforms.qnn.chips import chips

    close = close_names(name, chips())
    return f"did you mean 'htp:{close[0]}'?" if close else ""


def named_devices(name: str, settings: Settings) -> list[str]:
    """The devices that a name stands for: itself, or all attached boards with this chip."""
    try:
        platform_of(name)
        return [name]
    except BadInput as error:
        chip = name.strip().lower().replace(" ", "-")
        for platform in platforms():
            if boards := platform.devices_of_type(chip, settings):
                return list(boards)
        if ":" in name:
            raise
        reason = f"{error.fields['reason']}; and no board with the chip {chip!r} is attached"
        raise BadInput(reason=reason) from None


def device_names() -> tuple[str, ...]:
    """What people may write; capitals stand for a name of their own, such as a board's serial."""
    return tuple(name for platform in platforms() for name in platform.device_names)


def board_kinds() -> frozenset[str]:
    """The first part of the names of boards, such as `adb`."""
    boards = [
        name for platform in platforms() if platform.has_boards for name in platform.device_names
    ]
    return frozenset(name.partition(":")[0] for name in boards)


def is_board(device: str) -> bool:
    """Whether a name stands for a board (`adb:SERIAL`) or for all of a kind (`adb`)."""
    return device.partition(":")[0] in board_kinds()


def open_device(name: str, settings: Settings | None = None) -> Device:
    return platform_of(name).open_device(name, settings or _settings())


def open_toolchain(name: str = DEFAULT_PLATFORM, settings: Settings | None = None) -> Toolchain:
    """The toolchain of a platform, by its name."""
    names = [platform.name for platform in platforms() if platform.has_toolchain]
    if name not in names:
        hint = suggestion(name, names, "there are")
        raise BadInput(reason=f"there is no toolchain {name!r}: {hint}")
    return find_platform(name).open_toolchain(settings or _settings())


def converter_of(device: str) -> str:
    """The name of the toolchain that makes what a device runs."""
    platform = platform_of(device)
    return platform.converter or platform.name


def converted_by(files: Iterable[str]) -> str:
    """Which toolchain made these files, by their suffixes; empty: none of them was converted."""
    names = list(files)
    for platform in platforms():
        for suffix in platform.file_suffixes[:1]:
            if any(name.endswith(suffix) for name in names):
                return platform.name
    return ""


def is_converted(file: str) -> bool:
    """Whether a file of a model was made by some toolchain, and not uploaded."""
    return any(file.endswith(platform.file_suffixes) for platform in platforms())


def list_devices(settings: Settings) -> list[ListedDevice]:
    """Those that are measured come before those that are estimated. A platform that cannot be
    loaded, or that fails to list its devices, has a row that says so and hides no other."""
    listed: list[ListedDevice] = []
    for point in platform_points():
        try:
            listed += _load(point).list_devices(settings)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            reason = str(error).partition("\n")[0] or type(error).__name__
            listed.append(ListedDevice(point.name, state=f"cannot be listed: {reason}"))
    return sorted(listed, key=lambda device: device.estimate != ListedDevice.estimate)


def describe_devices(settings: Settings) -> list[ListedDevice]:
    """As `list_devices`, and attached devices say what they are; all are asked at once."""
    from concurrent.futures import ThreadPoolExecutor

    def describe(listed: ListedDevice) -> ListedDevice:
        if not listed.is_attached or listed.condition.state != "ready":
            return listed
        try:
            return platform_of(listed.device).describe(listed, settings)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            reason = str(error).partition("\n")[0] or type(error).__name__
            return replace(listed, state=f"cannot be described: {reason}")

    listed = list_devices(settings)
    with ThreadPoolExecutor(max(1, len(listed)), thread_name_prefix="describe") as pool:
        return list(pool.map(describe, listed))


def health(settings: Settings) -> list[HealthCheck]:
    """What every platform says of itself; one that cannot be loaded has a line too."""
    checks: list[HealthCheck] = []
    for point in platform_points():
        try:
            checks += _load(point).health(settings)
        except EdgeloopError as error:
            checks.append(HealthCheck(point.name, ok=False, text=str(error)))
    return checks


@cache
def _load(point: EntryPoint) -> Platform:
    try:
        platform = point.load()()
    except Exception as error:  # a plug-in may fail in any way; the others still work
        reason = f"the platform {point.name!r} cannot be loaded ({point.value}): {error}"
        raise BadInput(reason=reason) from error
    if not isinstance(platform, Platform):
        raise BadInput(reason=f"{point.value} does not make an edgeloop.platforms.Platform")
    return platform


def _settings() -> Settings:
    from edgeloop.settings import Settings

    return Settings.load()
