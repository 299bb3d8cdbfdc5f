"""Where things are on a board, as seen from the board, and what it says of itself."""

from __future__ import annotations

from pathlib import Path

PROGRAMS = Path("/system/bin")
BUILD_PROPERTIES = Path("/system/build.prop")
SOCKET = Path("/system/socket/tools")
FAULTS = Path("/system/etc/faults.json")
TOOL_RUNS = Path("/system/tool-runs.jsonl")
READY = Path("/system/ready")

PROPERTIES = {
    "ro.product.manufacturer": "Virtual",
    "ro.product.model": "Virtual Board 888",
    "ro.product.cpu.abi": "arm64-v8a",
    "ro.board.platform": "lahaina",
    "ro.soc.model": "SM8350",
    "ro.build.version.release": "13",
    "ro.build.version.sdk": "33",
    "sys.boot_completed": "1",
}
