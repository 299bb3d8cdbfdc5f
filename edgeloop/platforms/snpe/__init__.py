"""Qualcomm's Neural Processing SDK: DLC files, and the boards over adb that run them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from edgeloop._util.health import HealthCheck
from edgeloop._util.schema import Section, Text
from edgeloop._util.values import number
from edgeloop.errors import DeviceUnavailable, EdgeloopError
from edgeloop.platforms.base import DeviceLeftover, ListedDevice, Platform

if TYPE_CHECKING:
    from edgeloop.platforms.snpe.device import AdbDevice
    from edgeloop.platforms.snpe.toolchain import SnpeToolchain
    from edgeloop.settings import Settings


# The settings of boards and of the SDK, and the limits that follow from them.


DEFAULT_CAP_BYTES = 4 * 10**9
_Positive = Annotated[float, number(is_open=True)]


class SnpeSettings(Section):
    """Keys of `edgeloop.yaml`."""

    snpe_root: Text = Field(
        "",
        description="Folder of the Neural Processing SDK; `SNPE_ROOT` and `QAIRT_SDK_ROOT` take "
        "precedence.",
        json_schema_extra={"environment": ["SNPE_ROOT", "QAIRT_SDK_ROOT"]},
    )
    board_tool_seconds: _Positive = Field(600.0, description="How long a tool may run on a board.")
    board_transfer_seconds: _Positive = Field(
        600.0, description="How long a transfer to or from a board may take."
    )
    board_probe_seconds: _Positive = Field(10.0, description="How long a board may take to answer.")
    board_cache_mb: _Positive = Field(
        4_000.0, description="Space for cached test images on a board."
    )
    board_hot_celsius: _Positive = Field(
        75.0, description="A benchmark waits until the board is cooler than this."
    )

    @property
    def board_options(self) -> BoardOptions:
        return BoardOptions(
            tool_s=self.board_tool_seconds,
            transfer_s=self.board_transfer_seconds,
            probe_s=self.board_probe_seconds,
            call_s=3 * self.board_probe_seconds,
            grace_s=1.5 * self.board_probe_seconds,
            cap_bytes=int(self.board_cache_mb * 1e6),
            hot_c=self.board_hot_celsius,
        )


@dataclass(frozen=True)
class BoardOptions:
    """Every wait has an end; tests make them short."""

    tool_s: float = 600.0
    grace_s: float = 15.0  # beyond the board's own limit, for the way there and back
    call_s: float = 60.0
    probe_s: float = 10.0
    transfer_s: float = 600.0
    lease_s: float = 60.0
    cap_bytes: int = DEFAULT_CAP_BYTES
    hot_c: float = 75.0
    cool_poll_s: float = 5.0
    cool_limit_s: float = 300.0
    benchmark_inputs: int = 50
    squeeze: bool | None = None


_REINSTALL = "unpack the whole SDK again, from Qualcomm's package for Linux and Android"


class SnpePlatform(Platform):
    name = "snpe"
    device_names = ("adb:SERIAL",)
    has_boards = True
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

        section = settings.section(SnpeSettings)
        sdk = find_sdk(section.snpe_root) if section.snpe_root else None
        return AdbDevice(name.partition(":")[2], sdk, options=section.board_options)

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

    def describe(self, listed: ListedDevice, settings: Settings) -> ListedDevice:
        """The board is asked once and left alone if it does not answer: another runner may use it,
        which a reconnection would disturb."""
        from edgeloop.platforms.snpe.adb import Adb
        from edgeloop.platforms.snpe.device import BoardProperties

        limit_s = settings.section(SnpeSettings).board_probe_seconds
        try:
            said = BoardProperties.read(Adb(listed.device.partition(":")[2]), limit_s)
        except DeviceUnavailable as error:
            return replace(listed, state=str(error.fields["reason"]))
        android = f"Android {said.release}" if said.release else ""
        about = ", ".join(filter(None, (said.model, android)))
        state = f"ready: {about}" if about else "ready"
        return replace(listed, state=state, chip=said.chip, model=said.model)

    def devices_of_type(self, chip: str, settings: Settings) -> Sequence[str]:
        names = [device.device for device in self.list_devices(settings)]
        matching = []
        for name in names:
            device = self.open_device(name, settings)
            try:
                with contextlib.suppress(EdgeloopError):
                    device.probe()
                if device.device_type == chip:
                    matching.append(name)
            finally:
                device.close()
        return matching

    def leftovers(
        self, device: str, settings: Settings, older_s: float
    ) -> Sequence[DeviceLeftover]:
        from edgeloop.platforms.snpe.adb import Adb
        from edgeloop.platforms.snpe.board import ROOT, BoardLeftovers
        from edgeloop.platforms.snpe.sdk import find_sdk

        section, digest = settings.section(SnpeSettings), ""
        with contextlib.suppress(EdgeloopError):
            digest = find_sdk(section.snpe_root).digest
        adb = Adb(device.partition(":")[2])
        lease_s = section.board_options.lease_s
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
