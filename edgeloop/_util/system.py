"""What differs between operating systems: CPUs and processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
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


def waited_for_cpu_s(session: int) -> float:
    """How long the processes of a session have waited for a CPU that others used: that of the
    thread that waited longest. 0 where the system does not say."""
    longest_ns = 0
    for folder in Path("/proc").glob("[0-9]*"):
        fields = process_fields(int(folder.name))
        if len(fields) < 4 or fields[3] != str(session):
            continue
        for file in folder.glob("task/*/schedstat"):
            with suppress(OSError, ValueError, IndexError):
                longest_ns = max(longest_ns, int(file.read_text().split()[1]))
    return longest_ns / 1e9


class FairLimit:
    """A time limit for a program in a session of its own. Time that it had to wait for a CPU does
    not count, up to four times the limit: on a busy machine it ends later, and `is_unfair` then
    tells that its end says nothing about the work itself."""

    MOST = 4.0

    def __init__(self, limit_s: float, session: int) -> None:
        self._limit_s, self._session = limit_s, session
        self._began = time.monotonic()
        self._waited_before_s: float | None = None
        self._first_look_s = min(0.5, 0.05 * limit_s)
        self._granted_s = 0.0

    def pause_s(self) -> float:
        """How long to wait before asking again; 0 when the time is over."""
        left_s = self._left_s()
        first_s = self._first_look_s if self._waited_before_s is None else 1.0
        return max(0.0, min(left_s, first_s))

    def _left_s(self) -> float:
        """Work that takes a moment never pays for a look at the system."""
        elapsed_s = time.monotonic() - self._began
        if self._waited_before_s is None and elapsed_s >= self._first_look_s:
            self._waited_before_s = waited_for_cpu_s(self._session)
        left_s = self._limit_s + self._granted_s - elapsed_s
        if left_s > 0 or self.is_unfair or self._waited_before_s is None:
            return left_s
        waited_s = waited_for_cpu_s(self._session) - self._waited_before_s
        fresh_s = min(waited_s, self.MOST * self._limit_s) - self._granted_s
        if fresh_s < 0.01 * self._limit_s:
            return left_s
        self._granted_s += fresh_s
        return left_s + fresh_s

    @property
    def is_unfair(self) -> bool:
        """Whether it got all the patience there is, and the machine is busy still."""
        return self._granted_s >= self.MOST * self._limit_s


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


_PR_SET_PDEATHSIG = 1


def dies_with_parent(number: int = signal.SIGKILL) -> Callable[[], None] | None:
    """To run in a new process before its program: the kernel sends it this signal when the thread
    that started it ends. None where the system cannot."""
    call, parent = prctl(), os.getpid()
    if call is None:
        return None

    def arrange() -> None:
        call(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def prctl() -> Callable[..., int] | None:
    import ctypes

    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def descendants(root: int) -> set[int]:
    """Every living process below `root`, without itself."""
    parents = {
        pid: int(fields[1]) for pid in process_numbers() if is_alive(fields := process_fields(pid))
    }
    found: set[int] = set()
    children = {root}
    while children:
        children = {pid for pid, parent in parents.items() if parent in children} - found - {root}
        found |= children
    return found


def process_numbers() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
    except OSError:  # not Linux
        return set()


def is_alive(fields: list[str]) -> bool:
    """Whether a process with these `process_fields` still runs."""
    return bool(fields) and fields[0] not in ("Z", "X")
