"""A Neural Processing SDK, laid out as the two generations are, with stand-ins for its programs."""

from __future__ import annotations

import random
import shlex
import sys
from pathlib import Path

from tests.peers.board.tools import client, launch

SDK_1 = "1.68.0.3932"
SDK_2 = "2.28.0.241029"
_HOST = "x86_64-linux-clang"
_TOOLS = {
    "snpe-onnx-to-dlc": "convert",
    "snpe-dlc-quantize": "quantize",
    "snpe-dlc-info": "info",
    "snpe-diagview": "diagview",
}
# Names and sizes in KB of libraries, after those of the real thing.
_LIBRARIES_1 = {
    "lib/aarch64-android-clang8.0/libSNPE.so": 6_100,
    "lib/aarch64-android-clang8.0/libc++_shared.so": 900,
    "lib/aarch64-android-clang8.0/libSnpeHtpPrepare.so": 8_200,
    "lib/aarch64-android-clang8.0/libSnpeHtpV68Stub.so": 270,
    "lib/aarch64-android-clang8.0/libsnpe_dsp_domains_v2.so": 60,
    "lib/dsp/libsnpe_dsp_v66_domains_v2_skel.so": 3_400,
    "lib/dsp/libSnpeHtpV68Skel.so": 4_300,
}
_LIBRARIES_2 = {
    "lib/aarch64-android/libSNPE.so": 7_800,
    "lib/aarch64-android/libSnpeHtpPrepare.so": 9_100,
    "lib/aarch64-android/libSnpeHtpV68Stub.so": 280,
    "lib/aarch64-android/libSnpeHtpV73Stub.so": 280,
    "lib/aarch64-android/libSnpeDspV66Stub.so": 60,
    "lib/hexagon-v66/unsigned/libSnpeDspV66Skel.so": 3_500,
    "lib/hexagon-v68/unsigned/libSnpeHtpV68Skel.so": 4_200,
    "lib/hexagon-v73/unsigned/libSnpeHtpV73Skel.so": 4_600,
}


def make_sdk(folder: Path, version: str = SDK_2) -> Path:
    """The SDK's root, a new folder below `folder`: what SNPE_ROOT or QAIRT_SDK_ROOT would name."""
    is_first = version.startswith("1.")
    root = folder / (f"snpe-{version}" if is_first else f"qairt/{version}")
    target = "aarch64-android-clang8.0" if is_first else "aarch64-android"
    root.mkdir(parents=True)
    for name, module in _TOOLS.items():
        _write_program(root / "bin" / _HOST / name, _host_program(module, version))
    if not is_first:
        (root / "bin" / _HOST / "snpe-dlc-quant").symlink_to("snpe-dlc-quantize")
    source = Path(client.__file__).read_text().replace("@VERSION@", version)
    _write_program(root / "bin" / target / "snpe-net-run", f"#!{sys.executable} -IS\n{source}")
    for name, kilobytes in (_LIBRARIES_1 if is_first else _LIBRARIES_2).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(random.Random(f"{name} {version}").randbytes(kilobytes << 10))
    if is_first:
        (root / "ReleaseNotes.txt").write_text(f"Release notes of version {version}\n")
    else:
        (root / "sdk.yaml").write_text(f"name: qairt\nversion: {version}\n")
    return root


def _host_program(module: str, version: str) -> str:
    start = shlex.join([sys.executable, "-I", launch.__file__, version, module])
    return f'#!/bin/sh\nexec {start} "$@"\n'


def _write_program(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
