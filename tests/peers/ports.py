"""Ports of the loopback interface that nobody uses."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 15_000
_given: set[int] = set()


def free_port() -> int:
    """A port below those that the kernel gives to outgoing connections.

    A stopped server's port must stay free until it is started again, and a client that knocks at a
    closed port of the kernel's own range can end up connected to itself.
    """
    highest = int(_EPHEMERAL_RANGE.read_text().split()[0]) if _EPHEMERAL_RANGE.exists() else 32_768
    choose = random.SystemRandom()
    for _ in range(1_000):
        port = choose.randrange(_LOWEST, highest)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise RuntimeError("no free port was found on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
