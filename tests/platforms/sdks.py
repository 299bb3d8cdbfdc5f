"""SDK folders for tests: made of a few scripts, or another one with a tool exchanged."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from edgeloop.platforms.snpe.sdk import HOST, HOST_TOOLS


def make_sdk(root: Path, scripts: Mapping[str, str] | None = None, version: str = "2.28.0") -> Path:
    """Every tool is a shell script; those not named end well without a word."""
    tools = root / "bin" / HOST
    tools.mkdir(parents=True)
    (root / "sdk.yaml").write_text(f"name: qairt\nversion: {version}.241029\n")
    for name in HOST_TOOLS:
        write_tool(tools / name, (scripts or {}).get(name, "exit 0"))
    for name in (
        "bin/aarch64-android/snpe-net-run",
        "lib/aarch64-android/libSNPE.so",
        "lib/hexagon-v73/unsigned/libSnpeHtpV73Skel.so",
        "lib/hexagon-v68/unsigned/libSnpeHtpV68Skel.so",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def write_tool(path: Path, script: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def with_tool(sdk: Path, root: Path, name: str, script: str | None) -> Path:
    """A copy of an SDK in which one of the host's tools is another; None: is not there."""
    shutil.copytree(sdk, root, symlinks=True)
    tool = root / "bin" / HOST / name
    if script is None:
        tool.unlink()
    else:
        write_tool(tool, script)
    return root
