"""The line of jobs on this machine: a folder, with no daemon behind it.

`waiting/<priority>.<number>.<job>`   a file a job; the names sort in the order they start
`running/<job>`                       what it was given: GPUs, and the process that has it
`over/<job>`                          how it ended
`alive/<job>`                         locked by the job's process as long as that lives
`lock`                                held for the moment in which something is decided

Where a file lies is the job's state, and a file moves in one step. Nobody guesses from a process
number whether a job lives: the kernel gives a lock back when its holder ends, by a kill -9 too. A
dead job that still stands in line is moved away by whoever is next.

Jobs start strictly in order: a small one never overtakes a large one that waits for room, or the
large one would wait for ever. This module, like `turn.py`, needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgeloop.jobs.computes.local.turn import ALIVE, OVER, RUNNING, WAITING, is_alive, job_of
from edgeloop.jobs.protocol.resources import Capacity, Resources, Taken, place

LOGS, WRAPPERS = "logs", "wrappers"
ENDED_WAITING = "its process ended before its turn came: it was killed, or the machine restarted"
ENDED_RUNNING = "its process ended without a word: it was killed, or the machine restarted"
_MIDDLE_PRIORITY = 10**9  # so that negative priorities sort as text
_LOCK_LIMIT_S = 20.0


class QueueBusy(Exception):
    """Somebody has held the lock for so long that it can only be a stopped process."""


@dataclass(frozen=True)
class Entry:
    """What is known of one job here. `pid` and `born` are set while it runs."""

    job: str
    priority: int
    submitted: float
    resources: Resources
    capacity: Capacity
    scratch: str  # where its wrapper works, and leaves everything should it be killed
    gpus: tuple[str, ...] = ()
    pid: int = 0
    born: str = ""
    cancel: bool = False
    state: str = ""  # how it ended
    reason: str = ""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Entry:
        fields: dict[str, Any] = json.loads(content)
        fields["resources"] = Resources(**fields["resources"])
        capacity = fields["capacity"]
        fields["capacity"] = Capacity(**{**capacity, "gpus": tuple(capacity["gpus"])})
        fields["gpus"] = tuple(fields["gpus"])
        return cls(**fields)


@dataclass(frozen=True)
class Glance:
    """Where jobs lay at one moment."""

    waiting: Mapping[str, str]  # job: name in the line
    running: frozenset[str]
    over: frozenset[str]


class Queue:
    """One machine's line for one user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def at(cls, folder: str) -> Queue:
        return cls(Path(folder))

    def make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in (WAITING, RUNNING, OVER, ALIVE, LOGS, WRAPPERS):
            (self.folder / part).mkdir(exist_ok=True)

    def enter(self, entry: Entry) -> tuple[str, int] | None:
        """Stand in line: the name there, and the lock to hand to the job's process. None where
        this job is known already."""
        with self._deciding():
            if self._knows(entry.job):
                return None
            lock = os.open(self._alive(entry.job), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                rank = f"{entry.priority + _MIDDLE_PRIORITY:010d}.{self._next_number():012d}"
                name = f"{rank}.{entry.job}"
                self._write(self.folder / WAITING / name, entry)
            except OSError:
                os.close(lock)
                raise
        return name, lock

    def leave(self, name: str) -> None:
        """As if it had never come."""
        (self.folder / WAITING / name).unlink(missing_ok=True)
        self._alive(job_of(name)).unlink(missing_ok=True)

    def start(self, name: str) -> Entry | None:
        """Called by a waiting job's own process: it runs now, or not yet."""
        with self._deciding():
            waiting = self.folder / WAITING / name
            names = sorted(os.listdir(waiting.parent))  # noqa: PTH208
            if not names or names[0] != name:
                return None
            entry = self._read(waiting)
            gpus = place(entry.resources, entry.capacity, self._taken())
            if gpus is None:
                return None
            running = self.folder / RUNNING / entry.job
            started = replace(entry, gpus=gpus, pid=os.getpid(), born=born(os.getpid()))
            waiting.rename(running)
            self._write(running, started)
        return started

    def end(self, job: str, exit_code: int) -> None:
        """Called by a job's own process when its wrapper is done."""
        with self._deciding():
            running = self.folder / RUNNING / job
            if running.exists():
                self._end(running, *_verdict(exit_code, self._read(running).cancel))

    def bury(self, job: str) -> None:
        """Take a dead job out of the line."""
        glance = self.glance()
        with self._deciding():
            if not is_alive(str(self.folder), job):
                if job in glance.waiting:
                    self._end(self.folder / WAITING / glance.waiting[job], "failed", ENDED_WAITING)
                self._bury_running(job)

    def cancel(self, jobs: Sequence[str]) -> list[Entry]:
        """Those that wait are canceled by this. Those that run are given back: tell them."""
        running = []
        with self._deciding():
            glance = self.glance()
            for job in jobs:
                if job in glance.waiting:
                    file = self.folder / WAITING / glance.waiting[job]
                    self._end(file, "canceled", "canceled while it waited")
                elif job in glance.running:
                    file = self.folder / RUNNING / job
                    entry = replace(self._read(file), cancel=True)
                    self._write(file, entry)
                    running.append(entry)
        return running

    def glance(self) -> Glance:
        """In this order, which is the way a job takes: none is missed."""
        waiting = {job_of(name): name for name in self._names(WAITING)}
        return Glance(waiting, frozenset(self._names(RUNNING)), frozenset(self._names(OVER)))

    def scratch(self, job: str) -> Path | None:
        """Where a job worked that ran here, or still does."""
        for part in (RUNNING, OVER):
            with contextlib.suppress(FileNotFoundError):
                return Path(self._read(self.folder / part / job).scratch)
        return None

    def outcome(self, job: str) -> tuple[str, str] | None:
        """How a job ended and why; None where it has not, or is not known."""
        try:
            entry = self._read(self.folder / OVER / job)
        except FileNotFoundError:
            return None
        return entry.state, entry.reason

    def was_canceled(self, job: str) -> bool:
        """Whether somebody has asked for the end of a running job."""
        try:
            return self._read(self.folder / RUNNING / job).cancel
        except FileNotFoundError:
            return False

    def is_alive(self, job: str) -> bool:
        return is_alive(str(self.folder), job)

    def forget(self, job: str) -> None:
        """Only of jobs that are over; a process that has said its last word may still be there."""
        if self.outcome(job) is None and self.is_alive(job):
            return
        for part in (RUNNING, OVER, LOGS, ALIVE):
            (self.folder / part / job).unlink(missing_ok=True)

    def log(self, job: str) -> Path:
        return self.folder / LOGS / job

    def _knows(self, job: str) -> bool:
        waits = any(job_of(name) == job for name in self._names(WAITING))
        return waits or any((self.folder / part / job).exists() for part in (RUNNING, OVER))

    def _taken(self) -> list[Taken]:
        """What living jobs hold; the dead are moved away."""
        taken = []
        for job in self._names(RUNNING):
            if self.is_alive(job):
                entry = self._read(self.folder / RUNNING / job)
                taken.append(Taken(entry.resources, entry.gpus))
            else:
                self._bury_running(job)
        return taken

    def _bury_running(self, job: str) -> None:
        file = self.folder / RUNNING / job
        if not file.exists():
            return
        if self._read(file).cancel:
            self._end(file, "canceled", "")
        else:
            self._end(file, "failed", ENDED_RUNNING)

    def _end(self, file: Path, state: str, reason: str) -> None:
        entry = replace(self._read(file), state=state, reason=reason)
        self._write(self.folder / OVER / entry.job, entry)
        file.unlink()

    @contextlib.contextmanager
    def _deciding(self) -> Iterator[None]:
        deadline = time.monotonic() + _LOCK_LIMIT_S
        with (self.folder / "lock").open("ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise QueueBusy from None
                    time.sleep(0.002)
            yield

    def _next_number(self) -> int:
        """Clocks jump; a count does not."""
        file = self.folder / "count"
        number = int(file.read_text() or 0) + 1 if file.exists() else 1
        partial = self.folder / "count.part"
        partial.write_text(str(number))
        partial.replace(file)
        return number

    def _write(self, file: Path, entry: Entry) -> None:
        partial = self.folder / f"{entry.job}.part"
        partial.write_bytes(entry.to_json())
        partial.replace(file)

    def _read(self, file: Path) -> Entry:
        return Entry.from_json(file.read_bytes())

    def _names(self, part: str) -> list[str]:
        try:
            return os.listdir(self.folder / part)  # noqa: PTH208
        except FileNotFoundError:
            return []

    def _alive(self, job: str) -> Path:
        return self.folder / ALIVE / job


def born(pid: int) -> str:
    """When a process began, in the kernel's own count, or empty: a number used again is not it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _verdict(exit_code: int, asked_to_end: bool) -> tuple[str, str]:
    if exit_code == 0:
        return "completed", ""
    if asked_to_end:
        return "canceled", ""
    return "failed", f"the wrapper ended with exit code {exit_code}"
