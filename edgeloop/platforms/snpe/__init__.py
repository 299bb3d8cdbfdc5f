"""Qualcomm's Neural Processing SDK: DLC files, and the boards over adb that run them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from edgeloop._util.health import HealthCheck
from edgeloop.errors import EdgeloopError
from edgeloop.platforms.base import DeviceLeftover, ListedDevice, Platform
from edgeloop.platforms.snpe.options import SnpeSettings

if TYPE_CHECKING:
    from edgeloop.platforms.snpe.device import AdbDevice
    from edgeloop.platforms.snpe.toolchain import SnpeToolchain
    from edgeloop.settings import Settings

_REINSTALL = "unpack the whole SDK again, from Qualcomm's package for Linux and Android"


class SnpePlatform(Platform):
    name = "snpe"
    device_names = ("adb:SERIAL",)
    file_suffixes = (".quant.dlc", ".dlc", ".layers.csv", ".encodings.json")
    settings = SnpeSettings

    def open_toolchain(self, settings: Settings) -> SnpeToolchain:
        from edgeloop.platforms.snpe.sdk import find_sdk
        from edgeloop.platforms.snpe.toolchain import SnpeToolchain

        return SnpeToolchain(find_sdk(settings.section(SnpeSettings).snpe_root))

    def check_toolchain(self, settings: Settings) -> None:
        from edgeloop.platforms.snpe.sdk import CONVERTERS, find_sdk

        sdk = find_sdk(settings.section(SnpeSettings).snpe_root)
        for name in CONVERTERS:
            sdk.tool(name)

    def open_device(self, name: str, settings: Settings) -> AdbDevice:
        """A board can be probed without the SDK; running anything on it needs one."""
        from edgeloop.platforms.snpe.device import AdbDevice
        from edgeloop.platforms.snpe.sdk import find_sdk

        own = settings.section(SnpeSettings)
        sdk = find_sdk(own.snpe_root) if own.snpe_root else None
        return AdbDevice(name.partition(":")[2], sdk, options=own.board_options)

    def list_devices(self, settings: Settings) -> Iterable[ListedDevice]:
        """None without adb, or while its server does not answer."""
        from edgeloop.platforms.snpe.adb import attached_boards

        with contextlib.suppress(EdgeloopError):
            for board in attached_boards():
                state = board.advice or f"ready {board.details}".strip()
                yield ListedDevice(
                    f"adb:{board.serial}",
                    state=state,
                    is_attached=True,
                    condition=board.condition,
                )

    def devices_of_type(self, chip: str, settings: Settings) -> Sequence[str]:
        names = [device.device for device in self.list_devices(settings)]
        found = []
        for name in names:
            device = self.open_device(name, settings)
            try:
                with contextlib.suppress(EdgeloopError):
                    device.probe()
                if device.device_type == chip:
                    found.append(name)
            finally:
                device.close()
        return found

    def leftovers(
        self, device: str, settings: Settings, older_s: float
    ) -> Sequence[DeviceLeftover]:
        from edgeloop.platforms.snpe.adb import Adb
        from edgeloop.platforms.snpe.board import ROOT, BoardLeftovers
        from edgeloop.platforms.snpe.sdk import find_sdk

        own, digest = settings.section(SnpeSettings), ""
        with contextlib.suppress(EdgeloopError):
            digest = find_sdk(own.snpe_root).digest
        adb = Adb(device.partition(":")[2])
        lease_s = own.board_options.lease_s
        return BoardLeftovers(adb, ROOT, digest, older_s, lease_s).find()

    def health(self, settings: Settings) -> Iterable[HealthCheck]:
        """One line for the SDK, one for each part of it that is missing, and one for adb."""
        from edgeloop.platforms.snpe.sdk import find_sdk

        try:
            sdk = find_sdk(settings.section(SnpeSettings).snpe_root)
        except EdgeloopError as error:
            yield HealthCheck("snpe-sdk", False, f"boards need it. {error}")
        else:
            title = f"Neural Processing SDK {sdk.version or '(version unknown)'} in {sdk.root}"
            missing = sdk.missing()
            yield HealthCheck("snpe-sdk", not missing, title)
            for what, where in missing:
                yield HealthCheck(what, False, f"{where} is missing: {_REINSTALL}")
        adb = shutil.which("adb")
        hint = "boards over USB need it: install your system's package 'adb'"
        yield HealthCheck("adb", adb is not None, adb or hint)
