"""The first process of a board: it makes the board's files, then starts what it is asked to.

Run as `python -m tests.peers.board.init FOLDER DISK_BYTES` in new mount and process namespaces.
The root is a new one, with this machine's folders in it read-only: a command that goes astray on a
board harms nothing. A line on standard input starts a program (JSON: argv and environ); where the
input ends, so does the board, so that none outlives whoever started it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.peers.board import mounts, sensors
from tests.peers.board.places import BUILD_PROPERTIES, PROGRAMS, READY, SOCKET

_SHARED = ("dev", "sys")
_OWN = ("data", "proc", "tmp", "system", "mnt")
_GETPROP = """#!/bin/sh
[ $# -eq 0 ] && exec sed -E 's/^([^=]*)=(.*)$/[\\1]: [\\2]/' {properties}
value=$(grep -m1 -F -- "$1=" {properties} | cut -d= -f2-)
echo "${{value:-$2}}"
"""


def main() -> None:
    folder, disk_bytes = Path(sys.argv[1]), int(sys.argv[2])
    root = folder / "root"
    _make_root(root, disk_bytes)
    sensors.make(root)
    _make_programs(root, json.loads((folder / "properties.json").read_text()))
    os.chroot(root)
    os.chdir("/")
    SOCKET.parent.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(SOCKET))
    listener.listen(16)
    READY.touch()  # as the last thing: the one outside waits for it
    threading.Thread(target=_serve_tools, args=(listener,), daemon=True).start()
    threading.Thread(target=_start_programs, daemon=True).start()
    while True:  # the first process inherits every orphan
        try:
            os.wait()
        except ChildProcessError:
            signal.sigtimedwait([signal.SIGCHLD], 0.2)


def _make_root(root: Path, disk_bytes: int) -> None:
    root.mkdir(exist_ok=True)
    mounts.memory(root)
    for place in Path("/").iterdir():
        here = root / place.name
        if place.is_symlink():
            here.symlink_to(place.readlink())
        elif place.is_dir() and place.name not in (*_SHARED, *_OWN):
            here.mkdir()
            mounts.bind(place, here, read_only=True)
    for name in (*_SHARED, *_OWN):
        (root / name).mkdir()
    for name in _SHARED:
        mounts.bind(Path("/") / name, root / name)
    mounts.processes(root / "proc")
    mounts.memory(root / "tmp", "mode=1777")
    mounts.memory(root / "data", f"size={disk_bytes},mode=771")
    (root / "data/local/tmp").mkdir(parents=True)
    _show_ours(root)


def _show_ours(root: Path) -> None:
    """This repository and its Python, where they lie in a folder that the board has of its own."""
    shown: list[Path] = []
    for place in (Path(__file__).parents[3], Path(sys.prefix), Path(sys.base_prefix)):
        is_seen = any(place.is_relative_to(other) for other in shown)
        if place.parts[1] in _OWN and not is_seen:
            here = root / place.relative_to("/")
            here.mkdir(parents=True)
            mounts.bind(place, here, read_only=True)
            shown.append(place)


def _make_programs(root: Path, properties: dict[str, str]) -> None:
    (root / "system/bin").mkdir()
    (root / "system/etc").mkdir()
    lines = "".join(f"{name}={value}\n" for name, value in properties.items())
    (root / BUILD_PROPERTIES.relative_to("/")).write_text(lines)
    getprop = root / (PROGRAMS / "getprop").relative_to("/")
    getprop.write_text(_GETPROP.format(properties=BUILD_PROPERTIES))
    getprop.chmod(0o755)


def _serve_tools(listener: socket.socket) -> None:
    """The server of the board's tools takes a second to load: it starts when a caller waits, and
    it is the one that accepts."""
    command = [sys.executable, "-m", "tests.peers.board.tools.server", str(listener.fileno())]
    while True:
        select.select([listener], [], [])
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[3],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
        )
        # The first thread waits for every child, so this one looks whether it is still there.
        while Path(f"/proc/{process.pid}").exists():
            time.sleep(0.1)


def _start_programs() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        subprocess.Popen(
            order["argv"],
            env=order["environ"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    os._exit(0)


if __name__ == "__main__":
    main()
