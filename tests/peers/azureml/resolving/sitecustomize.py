"""Makes every name below `localhost` this machine, as RFC 6761 has it and glibc does not.

Python imports this by itself when the folder is on PYTHONPATH: for tests only.
"""

from __future__ import annotations

import socket
from typing import Any

_ask_the_system = socket.getaddrinfo


def _getaddrinfo(host: Any, *rest: Any, **named: Any) -> Any:
    if isinstance(host, str) and host.lower().rstrip(".").endswith(".localhost"):
        host = "127.0.0.1"
    return _ask_the_system(host, *rest, **named)


def install() -> None:
    socket.getaddrinfo = _getaddrinfo


install()
