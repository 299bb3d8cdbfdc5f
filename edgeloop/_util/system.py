"""What differs between operating systems: CPUs and processes."""

from __future__ import annotations

import os
from pathlib import Path


def available_cpus() -> int:
    """The CPUs this process may use; a container or `taskset` may allow fewer than there are."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_time(pid: int) -> str:
    """When a process started, in the kernel's clock ticks: a process number may be reused. Empty if
    there is none, and outside Linux."""
    fields = process_fields(pid)
    return fields[19] if fields else ""


def process_fields(pid: int) -> list[str]:
    """Linux's fields after the program's name, which may itself contain spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True
