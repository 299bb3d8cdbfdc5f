"""How many cores this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """A container or `taskset` may allow fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
