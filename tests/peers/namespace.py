"""The first process of a network and process namespace: it runs one server, and a way in.

Run by path inside `unshare --net --pid --fork`: `namespace.py [PORT=SOCKET…] SOCKET PORT COMMAND…`.
The last socket leads in, to a port of the server. The others lead out: ports inside that are
servers outside. Whatever the server starts ends with this process, because the kernel ends a
process namespace as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

Connect = Callable[[], socket.socket]

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_CHUNK = 1 << 16


def forward(listener: socket.socket, connect: Connect) -> None:
    """Serve in the background: each connection to `listener` becomes one made by `connect`."""
    threading.Thread(target=_accept, args=(listener, connect), daemon=True).start()


def to_unix(path: Path) -> Connect:
    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(5)
        connection.connect(str(path))
        connection.settimeout(None)
        return connection

    return connect


def to_port(port: int) -> Connect:
    def connect() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), timeout=5)
        connection.settimeout(None)
        return connection

    return connect


def _accept(listener: socket.socket, connect: Connect) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:  # closed: the server is going down
            return
        try:
            far = connect()
        except OSError:  # as a port that nobody listens on would
            near.close()
            continue
        for end in (near, far):
            if end.family != socket.AF_UNIX:  # else an answer in two parts waits 40 ms in between
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=pair, daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _raise_loopback() -> None:
    """What `ip link set lo up` does, where there is no such program."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _stop(_signal: int, _frame: object) -> None:
    os._exit(0)


def main() -> None:
    words, ways_out = sys.argv[1:], []
    while "=" in words[0]:
        ways_out.append(words.pop(0).partition("="))
    entrance, port, command = Path(words[0]), int(words[1]), words[2:]
    signal.signal(signal.SIGTERM, _stop)
    _raise_loopback()
    for number, _, path in ways_out:
        forward(socket.create_server(("127.0.0.1", int(number)), backlog=128), to_unix(Path(path)))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(entrance))
    listener.listen(128)
    forward(listener, to_port(port))
    subprocess.Popen(command)
    while True:  # the first process inherits every orphan; the server's end is not ours
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()


if __name__ == "__main__":
    main()
