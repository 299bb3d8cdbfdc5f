"""Who listens where: a daemon that lets anybody in as root must be reachable from here alone."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    address: str
    port: int
    inode: int

    @property
    def is_loopback(self) -> bool:
        return self.address == "::1" or self.address.startswith("127.")


def listeners() -> list[Listener]:
    """All TCP sockets of this machine that wait for connections."""
    found = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            fields = line.split()
            if fields[3] == _LISTEN:
                host, _, port = fields[1].partition(":")
                found.append(Listener(_address(host), int(port, 16), int(fields[9])))
    return found


def listeners_of(pid: int) -> list[Listener]:
    """Those that one process holds."""
    inodes = set()
    descriptors: list[Path] = []
    with contextlib.suppress(FileNotFoundError):  # it may have ended this moment
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    return [listener for listener in listeners() if listener.inode in inodes]


def _address(text: str) -> str:
    """The kernel writes addresses as words of four bytes in the machine's own order."""
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
