"""Boards that are not there: AOSP's adb daemon, the real adb client, and stand-ins for the SDK.

`VirtualBoard` is a machine of its own as far as adb can see: its `/data`, programs and sensors.
`AdbServer` is a private adb server, so that the developer's own and its devices are left alone.
`make_sdk` lays out a Neural Processing SDK whose programs compute with ONNX Runtime.
"""

from __future__ import annotations

from tests.peers.board.adb import AdbServer
from tests.peers.board.board import ToolRun, VirtualBoard
from tests.peers.board.sdk import SDK_1, SDK_2, make_sdk

__all__ = ["SDK_1", "SDK_2", "AdbServer", "ToolRun", "VirtualBoard", "make_sdk"]
