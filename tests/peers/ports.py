"""Ports of the loopback interface that no one else uses, nor another test process chooses."""

from __future__ import annotations

import random
import socket
import sys
from pathlib import Path

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 15_000
_claims: dict[int, socket.socket | None] = {}


def free_port() -> int:
    """A port below those that the kernel gives to outgoing connections, ours until we end.

    A stopped server's port must stay free until it is started again, and a client that knocks at a
    closed port of the kernel's own range can end up connected to itself.
    """
    highest = int(_EPHEMERAL_RANGE.read_text().split()[0]) if _EPHEMERAL_RANGE.exists() else 32_768
    choose = random.SystemRandom()
    for _ in range(1_000):
        port = choose.randrange(_LOWEST, highest)
        if port not in _claims and _claim(port):
            return port
    raise RuntimeError("no free port was found on 127.0.0.1")


def _claim(port: int) -> bool:
    """Whether no one listens there and no other test process has claimed it. A claim is a name of
    Linux's abstract sockets: one process of the machine can have it, and loses it when it ends."""
    claim = None
    if sys.platform == "linux":
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0edgeloop-test-port-{port}")
        except OSError:
            claim.close()
            return False
    if not _is_free(port):
        if claim is not None:
            claim.close()
        return False
    _claims[port] = claim
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
