"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_S = 0.02


def wait_until(condition: Callable[[], object], limit_s: float, what: str) -> None:
    """Poll until the condition holds; raises TimeoutError, naming `what`, after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:g} s for {what}")
        time.sleep(_POLL_S)
