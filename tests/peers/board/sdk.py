"""A Neural Processing SDK, laid out as the two generations are, with stand-ins for its programs."""

from __future__ import annotations

import atexit
import os
import random
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.peers.board import places
from tests.peers.board.tools import client

SDK_1 = "1.68.0.3932"
SDK_2 = "2.28.0.241029"
_HOST = "x86_64-linux-clang"
_TOOLS = {
    "snpe-onnx-to-dlc": "convert",
    "snpe-dlc-quantize": "quantize",
    "snpe-dlc-info": "info",
    "snpe-diagview": "diagview",
}
# Names of libraries, and sizes in KB: a twentieth of what the real ones have.
_LIBRARIES_1 = {
    "lib/aarch64-android-clang8.0/libSNPE.so": 305,
    "lib/aarch64-android-clang8.0/libc++_shared.so": 45,
    "lib/aarch64-android-clang8.0/libSnpeHtpPrepare.so": 410,
    "lib/aarch64-android-clang8.0/libSnpeHtpV68Stub.so": 13,
    "lib/aarch64-android-clang8.0/libsnpe_dsp_domains_v2.so": 3,
    "lib/dsp/libsnpe_dsp_v66_domains_v2_skel.so": 170,
    "lib/dsp/libSnpeHtpV68Skel.so": 215,
}
_LIBRARIES_2 = {
    "lib/aarch64-android/libSNPE.so": 390,
    "lib/aarch64-android/libSnpeHtpPrepare.so": 455,
    "lib/aarch64-android/libSnpeHtpV68Stub.so": 14,
    "lib/aarch64-android/libSnpeHtpV73Stub.so": 14,
    "lib/aarch64-android/libSnpeDspV66Stub.so": 3,
    "lib/hexagon-v66/unsigned/libSnpeDspV66Skel.so": 175,
    "lib/hexagon-v68/unsigned/libSnpeHtpV68Skel.so": 210,
    "lib/hexagon-v73/unsigned/libSnpeHtpV73Skel.so": 230,
}


def make_sdk(folder: Path, version: str = SDK_2) -> Path:
    """The SDK's root, a new folder below `folder`: what SNPE_ROOT or QAIRT_SDK_ROOT would name."""
    is_first = version.startswith("1.")
    root = folder / (f"snpe-{version}" if is_first else f"qairt/{version}")
    target = "aarch64-android-clang8.0" if is_first else "aarch64-android"
    root.mkdir(parents=True)
    for name, module in _TOOLS.items():
        _write_program(root / "bin" / _HOST / name, _program(module, version, _host_server()))
    if not is_first:
        (root / "bin" / _HOST / "snpe-dlc-quant").symlink_to("snpe-dlc-quantize")
    on_board = _program("netrun", version, str(places.SOCKET))
    _write_program(root / "bin" / target / "snpe-net-run", on_board)
    for name, kilobytes in (_LIBRARIES_1 if is_first else _LIBRARIES_2).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(random.Random(f"{name} {version}").randbytes(kilobytes << 10))
    if is_first:
        (root / "ReleaseNotes.txt").write_text(f"Release notes of version {version}\n")
    else:
        (root / "sdk.yaml").write_text(f"name: qairt\nversion: {version}\n")
    return root


@cache
def _host_server() -> str:
    """Where the host's tools are served (see `tools/host.py`): once for a process that makes SDKs,
    and no longer than that. The address is one in the kernel, as the files of a run come and go."""
    name = f"edgeloop-sdk-{os.getpid()}-{random.SystemRandom().randrange(1 << 32):08x}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(16)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.peers.board.tools.host", str(listener.fileno())],
            cwd=Path(__file__).parents[3],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    atexit.register(server.communicate)
    return f"\\0{name}"


def _program(tool: str, version: str, server: str) -> str:
    source = Path(client.__file__).read_text()
    for name, value in {"@TOOL@": tool, "@VERSION@": version, "@SERVER@": server}.items():
        source = source.replace(name, value)
    return f"#!{sys.executable} -IS\n{source}"


def _write_program(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
