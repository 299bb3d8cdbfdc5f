"""This machine's CPU through ONNX Runtime: the float reference, and a proxy for a chip."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgeloop._util.health import HealthCheck, package_check
from edgeloop.platforms.base import ListedDevice, Platform

if TYPE_CHECKING:
    from edgeloop.platforms.host.device import HostDevice
    from edgeloop.settings import Settings


class HostPlatform(Platform):
    """Runs what the toolchain qnn makes: its quantized models are ONNX files."""

    name = "host"
    device_names = ("host",)
    has_toolchain = False
    converter = "qnn"

    def open_device(self, name: str, settings: Settings) -> HostDevice:
        from edgeloop.platforms.host.device import HostDevice

        return HostDevice()

    def list_devices(self, settings: Settings) -> Iterable[ListedDevice]:
        return (ListedDevice("host"),)

    def health(self, settings: Settings) -> Iterable[HealthCheck]:
        purpose = "F1 of float models, and measuring this CPU"
        return (package_check("onnxruntime", "pip install 'edgeloop[qnn]'", purpose),)
