"""Which CPUs of a machine belong to which runner: a lock file per CPU, which the system releases
when its runner dies. They lie in the user's own folder for state, by the machine's name, since
several machines may share that folder.

A runner with `--cpus N` holds N of them for as long as it lives, and quantizes whenever it wants.
A runner without quantizes when no other of its kind does, on the CPUs that are not reserved.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from edgeloop._util.files import file_lock, own_folder, try_lock
from edgeloop._util.system import (
    announced_cpus,
    available_cpus,
    bind_to_cpus,
    can_bind,
    cgroup_cpus,
    is_container,
    show_progress,
    usable_cpus,
)
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.settings import state_folder

LOOK_AGAIN_S = 0.1
YIELD_S = 1.0  # to a runner that waits for CPUs: it looks several times in that time


class NoCpusError(Exception):
    """The runner was told to stop, or its patience was over, before CPUs were free."""


class CpuPool:
    """The CPUs that this process may use, shared with the other runners of the same user.

    In a container CPUs are counted and not chosen: other containers, whose locks cannot be seen,
    would all choose the same ones. Outside Linux they cannot be chosen.
    """

    def __init__(self, folder: Path | None = None, may_bind: bool | None = None) -> None:
        self._folder = folder or _lock_folder()
        usable, limit = usable_cpus(), cgroup_cpus()
        if may_bind is None:
            has_all = limit is None or limit >= len(usable)
            may_bind = can_bind() and has_all and not is_container()
        self._may_bind = may_bind
        self._numbers = usable if may_bind else usable[: available_cpus()]
        self._is_reserved = False

    @contextlib.contextmanager
    def reserve(
        self,
        count: int,
        stopping: threading.Event,
        note: Callable[[str], None],
        patience_s: float | None = None,
    ) -> Iterator[None]:
        """Hold `count` CPUs; this process and those it starts use them alone. While others hold
        them it waits, and says so; raises NoCpusError when told to stop, or after `patience_s`."""
        if count > (have := len(self._numbers)):
            raise BadInput(reason=f"--cpus {count} is more than the {have} this process may use")
        with ExitStack() as held:
            numbers = self._wait_for(count, held, stopping, note, patience_s)
            held.enter_context(announced_cpus(count, for_libraries=not self._may_bind))
            if self._may_bind:
                held.callback(bind_to_cpus, usable_cpus())
                bind_to_cpus(numbers)
            self._is_reserved = True
            held.callback(setattr, self, "_is_reserved", False)
            yield

    @contextlib.contextmanager
    def turn(self, stopping: threading.Event) -> Iterator[None]:
        """Around one quantization, which takes all CPUs that it can get and much memory. Raises
        NoCpusError when told to stop before its turn comes."""
        if self._is_reserved:
            yield
            return
        with ExitStack() as held:
            while not self._hold("quantize.lock", held):
                _pause(stopping, LOOK_AGAIN_S)
            self._yield_to_reservations(stopping)
            numbers = self._wait_for(0, held, stopping, lambda _: None, None)
            if self._may_bind and len(numbers) < len(self._numbers):
                held.callback(bind_to_cpus, self._numbers)
                bind_to_cpus(numbers)
            yield

    def _wait_for(
        self,
        count: int,
        held: ExitStack,
        stopping: threading.Event,
        note: Callable[[str], None],
        patience_s: float | None,
    ) -> list[int]:
        """The numbers of the CPUs that `held` now holds: `count`, or all free ones where that is 0,
        one at least."""
        began = time.monotonic()
        if numbers := self._take(count, held):
            return numbers
        note(self._who_holds(count))
        with ExitStack() as waiting:
            if count:
                self._hold("waiting.lock", waiting, shared=True)
            while not (numbers := self._take(count, held)):
                if patience_s is not None and time.monotonic() - began > patience_s:
                    raise NoCpusError
                _pause(stopping, LOOK_AGAIN_S)
        return numbers

    def _yield_to_reservations(self, stopping: threading.Event) -> None:
        """Between two quantizations of this runner, one that waits for CPUs gets its chance."""
        with ExitStack() as nobody_waits:
            if not self._hold("waiting.lock", nobody_waits):
                _pause(stopping, YIELD_S)

    def _take(self, count: int, held: ExitStack) -> list[int]:
        """All or none: no two runners wait for each other with half of what they need."""
        with file_lock(self._file("cpus.lock")):
            locks = {n: try_lock(self._file(f"cpu-{n}.lock")) for n in self._numbers}
            free = {number: lock for number, lock in locks.items() if lock is not None}
            wanted = list(free)[: count or None]
            if len(wanted) < max(1, count):
                wanted = []
            for number, lock in free.items():
                if number in wanted:
                    held.callback(os.close, lock)
                    os.truncate(lock, 0)
                    os.pwrite(lock, str(os.getpid()).encode(), 0)
                else:
                    os.close(lock)
        return wanted

    def _who_holds(self, count: int) -> str:
        holders = set()
        for number in self._numbers:
            with ExitStack() as free, contextlib.suppress(OSError):
                if not self._hold(f"cpu-{number}.lock", free):
                    holders.add(self._file(f"cpu-{number}.lock").read_text())
        named = ", ".join(sorted(filter(None, holders))) or "another one"
        have = len(self._numbers)
        return (
            f"Waiting for {count} of {have} CPUs: other runners have reserved them (process "
            f"{named})."
        )

    def _hold(self, name: str, held: ExitStack, shared: bool = False) -> bool:
        lock = try_lock(self._file(name), shared)
        if lock is not None:
            held.callback(os.close, lock)
        return lock is not None

    def _file(self, name: str) -> Path:
        return own_folder(self._folder) / name


def _lock_folder() -> Path:
    """A home may be read-only, in a container mostly."""
    name = re.sub(r"[^\w.-]", "_", socket.gethostname()) or "machine"
    try:
        return own_folder(state_folder() / "cpus" / name)
    except LocalFileError:
        user = os.getuid() if hasattr(os, "getuid") else "user"
        return own_folder(Path(tempfile.gettempdir()) / f"edgeloop-{user}")


def _pause(stopping: threading.Event, seconds: float) -> None:
    show_progress()
    if stopping.wait(seconds):
        raise NoCpusError
