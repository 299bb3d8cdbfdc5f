"""The queue of jobs on this machine: a folder, without a daemon.

`waiting/<priority>.<number>.<job>`   one file per job; names sort in the order in which jobs start
`running/<job>`                       what it was given: GPUs, and the process that has it
`over/<job>`                          how it ended
`alive/<job>`                         locked by the job's process for as long as it lives
`lock`                                held while a decision is made

The folder of a file is the job's state, and a file moves in one step. Whether a job lives is not
guessed from a process number: the kernel releases a lock when its holder ends, even by kill -9. A
dead job that is still in the queue is removed by the one behind it.

Jobs start strictly in order: if a small job could overtake a large one that waits for resources,
the large one might wait forever. This module, like `waiting.py`, needs only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop._util.locks import try_lock
from edgeloop._util.system import start_time
from edgeloop.jobs.computes.local.waiting import ALIVE, OVER, RUNNING, WAITING, is_alive, job_of
from edgeloop.jobs.protocol.codec import from_json, to_json
from edgeloop.jobs.protocol.resources import Allocation, Capacity, Resources, allocate

try:
    import fcntl
except ImportError:  # not a POSIX system: the other computes still work
    fcntl = None  # type: ignore[assignment]

LOGS, WRAPPERS = "logs", "wrappers"
ENDED_WAITING = "its process ended while it waited: it was killed, or the machine restarted"
ENDED_RUNNING = "its process ended without reporting: it was killed, or the machine restarted"
_MIDDLE_PRIORITY = 10**9  # so that negative priorities sort as text
_LOCK_LIMIT_S = 20.0
_LOCK_POLL_S = 0.002


class QueueBusy(Exception):
    """The lock has been held for so long that its holder must be a stopped process."""


@dataclass(frozen=True)
class QueueEntry:
    """What the queue knows about a job. `pid` and `born` are set while it runs."""

    job: str
    priority: int
    submitted: float
    resources: Resources
    capacity: Capacity
    scratch: str  # where its wrapper works, and leaves everything if it is killed
    gpus: tuple[str, ...] = ()
    pid: int = 0
    born: str = ""  # when that process started, by the kernel
    cancel: bool = False
    state: str = ""  # how it ended
    reason: str = ""


@dataclass(frozen=True)
class QueueSnapshot:
    """Where jobs were at one moment."""

    waiting: Mapping[str, str]  # job: name in the queue
    running: frozenset[str]


class JobQueue:
    """One machine's queue for one user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def at(cls, folder: str) -> JobQueue:
        return cls(Path(folder))

    def create(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in (WAITING, RUNNING, OVER, ALIVE, LOGS, WRAPPERS):
            (self.folder / part).mkdir(exist_ok=True)

    def enter(self, entry: QueueEntry) -> tuple[str, int] | None:
        """Join the queue: the name there, and the lock to pass to the job's process. None if the
        job is already known."""
        with self._locked():
            waits = any(job_of(name) == entry.job for name in self._names(WAITING))
            if waits or any((self.folder / part / entry.job).exists() for part in (RUNNING, OVER)):
                return None
            alive = self.folder / ALIVE / entry.job
            lock = os.open(alive, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                count = self.folder / "count"  # not a time, since clocks may jump
                number = int(count.read_text() or 0) + 1 if count.exists() else 1
                write_atomic(count, str(number))
                name = f"{entry.priority + _MIDDLE_PRIORITY:010d}.{number:012d}.{entry.job}"
                self._write(self.folder / WAITING / name, entry)
            except OSError:
                os.close(lock)
                raise
        return name, lock

    def leave(self, name: str) -> None:
        """As if it had never entered."""
        (self.folder / WAITING / name).unlink(missing_ok=True)
        (self.folder / ALIVE / job_of(name)).unlink(missing_ok=True)

    def start(self, name: str) -> QueueEntry | None:
        """Called by a waiting job's own process: None if it cannot run yet."""
        with self._locked():
            waiting = self.folder / WAITING / name
            names = sorted(os.listdir(waiting.parent))  # noqa: PTH208
            if not names or names[0] != name:
                return None
            entry = _read(waiting)
            gpus = allocate(entry.resources, entry.capacity, self._allocations())
            if gpus is None:
                return None
            running = self.folder / RUNNING / entry.job
            started = replace(entry, gpus=gpus, pid=os.getpid(), born=start_time(os.getpid()))
            waiting.rename(running)
            self._write(running, started)
        return started

    def end(self, job: str, exit_code: int) -> None:
        """Called by a job's own process when its wrapper has ended."""
        with self._locked():
            running = self.folder / RUNNING / job
            if not running.exists():
                return
            if exit_code == 0:
                self._end(running, "completed", "")
            elif _read(running).cancel:
                self._end(running, "canceled", "")
            else:
                self._end(running, "failed", f"the wrapper ended with exit code {exit_code}")

    def remove_dead(self, job: str) -> None:
        """Take a dead job out of the queue."""
        snapshot = self.snapshot()
        with self._locked():
            if not self.is_alive(job):
                if job in snapshot.waiting:
                    file = self.folder / WAITING / snapshot.waiting[job]
                    self._end(file, "failed", ENDED_WAITING)
                self._end_dead(job)

    def cancel(self, jobs: Sequence[str]) -> list[QueueEntry]:
        """Cancels those that wait. Returns those that run, which must be signaled."""
        running = []
        with self._locked():
            snapshot = self.snapshot()
            for job in jobs:
                if job in snapshot.waiting:
                    file = self.folder / WAITING / snapshot.waiting[job]
                    self._end(file, "canceled", "canceled while it waited")
                elif job in snapshot.running:
                    file = self.folder / RUNNING / job
                    entry = replace(_read(file), cancel=True)
                    self._write(file, entry)
                    running.append(entry)
        return running

    def snapshot(self) -> QueueSnapshot:
        """Read in the order in which a job moves, so that none is missed."""
        waiting = {job_of(name): name for name in self._names(WAITING)}
        return QueueSnapshot(waiting, frozenset(self._names(RUNNING)))

    def scratch(self, job: str) -> Path | None:
        """The folder of a job that runs or ran here."""
        for part in (RUNNING, OVER):
            with contextlib.suppress(FileNotFoundError):
                return Path(_read(self.folder / part / job).scratch)
        return None

    def ended(self, job: str) -> QueueEntry | None:
        """None if it has not ended, or is unknown."""
        try:
            return _read(self.folder / OVER / job)
        except FileNotFoundError:
            return None

    def was_canceled(self, job: str) -> bool:
        """Whether a running job was asked to end."""
        try:
            return _read(self.folder / RUNNING / job).cancel
        except FileNotFoundError:
            return False

    def is_alive(self, job: str) -> bool:
        return is_alive(str(self.folder), job)

    def forget(self, job: str) -> None:
        """Only jobs that are over; a process that has reported its end may still exist."""
        if self.ended(job) is None and self.is_alive(job):
            return
        for part in (RUNNING, OVER, LOGS, ALIVE):
            (self.folder / part / job).unlink(missing_ok=True)

    def log(self, job: str) -> Path:
        return self.folder / LOGS / job

    def _allocations(self) -> list[Allocation]:
        """What living jobs hold; dead ones are moved away."""
        allocations = []
        for job in self._names(RUNNING):
            if self.is_alive(job):
                entry = _read(self.folder / RUNNING / job)
                allocations.append(Allocation(entry.resources, entry.gpus))
            else:
                self._end_dead(job)
        return allocations

    def _end_dead(self, job: str) -> None:
        file = self.folder / RUNNING / job
        if not file.exists():
            return
        if _read(file).cancel:
            self._end(file, "canceled", "")
        else:
            self._end(file, "failed", ENDED_RUNNING)

    def _end(self, file: Path, state: str, reason: str) -> None:
        entry = replace(_read(file), state=state, reason=reason)
        self._write(self.folder / OVER / entry.job, entry)
        file.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + _LOCK_LIMIT_S
        while (lock := try_lock(self.folder / "lock")) is None:
            if time.monotonic() > deadline:
                raise QueueBusy
            time.sleep(_LOCK_POLL_S)
        try:
            yield
        finally:
            os.close(lock)

    def _write(self, file: Path, entry: QueueEntry) -> None:
        """Through a file outside of `waiting/` and `running/`, whose names are all jobs."""
        partial = self.folder / f"{entry.job}.part"
        partial.write_bytes(to_json(entry))
        partial.replace(file)

    def _names(self, part: str) -> list[str]:
        try:
            return os.listdir(self.folder / part)  # noqa: PTH208
        except FileNotFoundError:
            return []


def _read(file: Path) -> QueueEntry:
    return from_json(QueueEntry, file.read_bytes())
