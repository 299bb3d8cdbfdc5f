"""How much time and memory a process for native work may take.

Time in which it waited for a CPU does not count, and memory is that of the process and of those it
started, looked at several times a second. Neither limit says that something is wrong with a model:
one that is reached on a busy machine, or on a small one, may not be on another.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgeloop._util.system import FairLimit, native_memory_bytes
from edgeloop._util.units import size_text
from edgeloop.errors import MemoryExceeded

NO_MEMORY = re.compile(r"bad_alloc|allocate memory|out of memory|MemoryError", re.IGNORECASE)
_LOOK_S = 0.25
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class CallLimits:
    """The limits of one call, for a process that leads a session of its own."""

    def __init__(self, work: str, limit_s: float, pid: int) -> None:
        self.time = FairLimit(limit_s, pid)
        self._work, self._pid = work, pid
        self._most_bytes = native_memory_bytes()
        self._look_at = time.monotonic() + _LOOK_S

    def pause_s(self) -> float:
        """How long to wait before asking again; 0 when the time is over. Raises MemoryExceeded."""
        pause_s = self.time.pause_s()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._check_memory()
        return min(pause_s, _LOOK_S)

    def _check_memory(self) -> None:
        if resident_bytes(self._pid) > self._most_bytes:
            raise memory_exceeded(self._work, self._most_bytes)


def memory_exceeded(work: str, most_bytes: int | None = None) -> MemoryExceeded:
    return MemoryExceeded(work=work, limit=size_text(most_bytes or native_memory_bytes()))


def resident_bytes(pid: int) -> int:
    """The memory of a process and of all below it; 0 where the system does not say."""
    return sum(own_bytes(each) for each in _tree(pid))


def own_bytes(pid: int) -> int:
    """Without what it shares with files: a model that is mapped is not in anybody's way."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return _PAGE * (int(fields[1]) - int(fields[2]))
    return 0


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError, ValueError):
            for child in file.read_text().split():
                yield from _tree(int(child))
