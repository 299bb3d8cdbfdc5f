"""The queue of jobs on this machine: a folder, without a daemon.

`waiting/<priority>.<number>.<job>`  one file per job; names sort in the order in which jobs start
`running/<job>`                      the GPUs that it was given, and the process that has it
`over/<job>`                         how it ended
`alive/<job>`                        locked by the job's process for as long as it lives
`wake/<job>`                         a pipe on which a waiting process sleeps
`lock`                               held while a decision is made

The folder of a file is the job's state, and a file moves in one step. Whether a job lives is not
guessed from a process number: the kernel releases a lock when its holder ends, even by kill -9. A
dead job that is still in the queue is removed by the one behind it.

Jobs start strictly in order: if a small job could overtake a large one that waits for resources,
the large one might wait forever. A process that changes the queue wakes the first few that wait;
the others sleep, however many they are.

A disk that is full for a while ends no job: what cannot be written now is tried again, and a job
that ends then is noted in the blocks that its entry has. An entry that cannot be read, for example
after a power cut, is a failed job and holds up no other. Needs only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgeloop._util.files import wait_for_lock, write_atomic
from edgeloop._util.retry import retry
from edgeloop._util.system import THREAD_VARIABLES, start_time
from edgeloop.errors import LocalFileError
from edgeloop.jobs.computes.waiting import (
    ALIVE,
    FIRST_FEW,
    OVER,
    RUNNING,
    WAITING,
    WAKE,
    is_alive,
    job_of,
    queue_names,
)
from edgeloop.node.ticket import Resources, from_json, to_json

try:
    import fcntl
except ImportError:  # not a POSIX system: the other computes still work
    fcntl = None  # type: ignore[assignment]

LOGS, WRAPPERS = "logs", "wrappers"
ENDED_WAITING = "its process ended while it waited: it was killed, or the machine restarted"
ENDED_RUNNING = "its process ended without reporting: it was killed, or the machine restarted"
UNREADABLE = "its entry in the queue of this machine cannot be read: submit the job again"
_MIDDLE_PRIORITY = 10**9  # so that negative priorities sort as text
_LOCK_LIMIT_S = 20.0
_LOCK_POLL_S = 0.002
_END_PATIENCE_S = 60.0


class QueueBusy(Exception):
    """The lock has been held for so long that its holder must be a stopped process."""


class NoLocks(Exception):
    """Not a POSIX system: nothing would tell a job that runs from one that was killed."""


class UnreadableEntry(Exception):
    """The entry of a job is empty or damaged."""


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
        if fcntl is None:
            raise NoLocks
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in (WAITING, RUNNING, OVER, ALIVE, WAKE, LOGS, WRAPPERS):
            (self.folder / part).mkdir(exist_ok=True)

    def enter(self, entry: QueueEntry) -> tuple[str, int] | None:
        """Join the queue: the name there, and the lock to pass to the job's process. None if the
        job is already known."""
        with self._locked():
            names = queue_names(str(self.folder))
            waits = any(job_of(name) == entry.job for name in names)
            if waits or any((self.folder / part / entry.job).exists() for part in (RUNNING, OVER)):
                return None
            alive = self.folder / ALIVE / entry.job
            lock = os.open(alive, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            name = f"0.0.{entry.job}"
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                name = self._name(entry, names)
                with contextlib.suppress(OSError):  # without it, the process looks now and then
                    os.mkfifo(self.folder / WAKE / entry.job, 0o600)
                self._write(self.folder / WAITING / name, entry)
            except OSError:
                os.close(lock)
                self.leave(name)
                raise
        return name, lock

    def _name(self, entry: QueueEntry, names: Sequence[str]) -> str:
        """Sorts after all of its priority. Counted by submission, since clocks may jump."""
        count = self.folder / "count"
        try:
            number = int(count.read_text()) + 1
        except (OSError, ValueError):
            number = 1
        number = max([number, *(int(name.split(".")[1]) + 1 for name in names)])
        write_atomic(count, str(number))
        return f"{entry.priority + _MIDDLE_PRIORITY:010d}.{number:012d}.{entry.job}"

    def leave(self, name: str) -> None:
        """As if it had never entered."""
        (self.folder / WAITING / name).unlink(missing_ok=True)
        for part in (ALIVE, WAKE):
            (self.folder / part / job_of(name)).unlink(missing_ok=True)

    def start(self, name: str) -> QueueEntry | None:
        """Called by a waiting job's own process: None if it cannot run yet, or its entry is gone.
        After an OSError it still waits."""
        with self._locked():
            waiting = self.folder / WAITING / name
            names = queue_names(str(self.folder))
            if not names or names[0] != name:
                return None
            try:
                entry = _read(waiting)
            except UnreadableEntry:
                self._end(waiting, job_of(name), "failed", UNREADABLE)
                return None
            gpus = allocate(entry.resources, entry.capacity, self._allocations(entry.capacity))
            if gpus is None:
                return None
            running = self.folder / RUNNING / entry.job
            started = replace(entry, gpus=gpus, pid=os.getpid(), born=start_time(os.getpid()))
            waiting.rename(running)
            try:
                self._write(running, started)
            except OSError:
                running.rename(waiting)
                raise
            (self.folder / WAKE / entry.job).unlink(missing_ok=True)
            self._wake_first()
        return started

    def end(self, job: str, exit_code: int) -> None:
        """Called by a job's own process when its wrapper has ended."""
        with self._locked():
            running = self.folder / RUNNING / job
            if not running.exists():
                return
            if exit_code == 0:
                self._end(running, job, "completed", "")
            elif self.was_canceled(job):
                self._end(running, job, "canceled", "")
            else:
                reason = f"the wrapper ended with exit code {exit_code}"
                self._end(running, job, "failed", reason)
            self._wake_first()

    def end_surely(self, job: str, exit_code: int) -> None:
        """The same, retried for a while: another process may hold the lock, or the disk be full."""
        try:
            retry(
                lambda: self.end(job, exit_code),
                (OSError, QueueBusy),
                _END_PATIENCE_S,
                unless=lambda error: isinstance(error, FileNotFoundError),
            )
        except (OSError, QueueBusy) as error:
            sys.stderr.write(f"the end of this job could not be noted: {error}\n")

    def remove_dead(self, job: str) -> None:
        """Take a dead job out of the queue."""
        snapshot = self.snapshot()
        with self._locked():
            if not self.is_alive(job):
                if job in snapshot.waiting:
                    file = self.folder / WAITING / snapshot.waiting[job]
                    self._end(file, job, "failed", ENDED_WAITING)
                self._end_dead(job)
                self._wake_first()

    def cancel(self, jobs: Sequence[str]) -> list[QueueEntry]:
        """Cancels those that wait. Returns those that run, which must be signaled."""
        running = []
        with self._locked():
            snapshot = self.snapshot()
            for job in jobs:
                if job in snapshot.waiting:
                    file = self.folder / WAITING / snapshot.waiting[job]
                    self._end(file, job, "canceled", "canceled while it waited")
                elif job in snapshot.running:
                    entry = self._cancel_running(job)
                    running += [entry] if entry.pid else []
            self._wake_first()
        return running

    def _cancel_running(self, job: str) -> QueueEntry:
        """An entry that cannot be read is left to the mark in the store, which the wrapper sees."""
        file = self.folder / RUNNING / job
        try:
            entry = replace(_read(file), cancel=True)
        except UnreadableEntry:
            entry = replace(_unknown(job), cancel=True)
        self._write(file, entry)
        return entry

    def snapshot(self) -> QueueSnapshot:
        """Read in the order in which a job moves, so that none is missed."""
        waiting = {job_of(name): name for name in self._waiting()}
        return QueueSnapshot(waiting, frozenset(self._names(RUNNING)))

    def scratch(self, job: str) -> Path | None:
        """The folder of a job that runs or ran here."""
        for part in (RUNNING, OVER):
            with contextlib.suppress(FileNotFoundError, UnreadableEntry):
                scratch = _read(self.folder / part / job).scratch
                return Path(scratch) if scratch else None
        return None

    def ended(self, job: str) -> QueueEntry | None:
        """None if it has not ended, or is unknown."""
        try:
            entry = _read(self.folder / OVER / job)
        except FileNotFoundError:
            return None
        except UnreadableEntry:
            entry = _unknown(job)
        return entry if entry.state else replace(entry, state="failed", reason=UNREADABLE)

    def was_canceled(self, job: str) -> bool:
        """Whether a running job was asked to end."""
        try:
            return _read(self.folder / RUNNING / job).cancel
        except (FileNotFoundError, UnreadableEntry):
            return False

    def is_alive(self, job: str) -> bool:
        return is_alive(str(self.folder), job)

    def forget(self, job: str) -> None:
        """Only jobs that are over; a process that has reported its end may still exist."""
        if self.ended(job) is None and self.is_alive(job):
            return
        for part in (RUNNING, OVER, LOGS, ALIVE, WAKE):
            (self.folder / part / job).unlink(missing_ok=True)

    def log(self, job: str) -> Path:
        return self.folder / LOGS / job

    def _allocations(self, capacity: Capacity) -> list[Allocation]:
        """What living jobs hold; dead ones are moved away. A living job whose entry cannot be
        read counts as holding everything until it ends."""
        allocations = []
        for job in self._names(RUNNING):
            if not self.is_alive(job):
                self._end_dead(job)
                continue
            try:
                entry = _read(self.folder / RUNNING / job)
                allocations.append(Allocation(entry.resources, entry.gpus))
            except UnreadableEntry:
                whole = Resources(capacity.cpus, len(capacity.gpus), capacity.memory_bytes)
                allocations.append(Allocation(whole, capacity.gpus))
        return allocations

    def _end_dead(self, job: str) -> None:
        file = self.folder / RUNNING / job
        if not file.is_file():
            return
        if self.was_canceled(job):
            self._end(file, job, "canceled", "")
        else:
            self._end(file, job, "failed", ENDED_RUNNING)

    def _end(self, file: Path, job: str, state: str, reason: str) -> None:
        """Move an entry to `over/`. A full disk has no room for another file, but its entry has
        room for how it ended."""
        try:
            entry = replace(_read(file), state=state, reason=reason)
        except FileNotFoundError:
            return  # another process was faster
        except UnreadableEntry:
            is_lost = state == "failed"
            entry = replace(_unknown(job), state=state, reason=UNREADABLE if is_lost else reason)
        over = self.folder / OVER / job
        try:
            self._write(over, entry)
            file.unlink()
        except OSError:
            with contextlib.suppress(OSError):
                _overwrite(file, to_json(entry))
            file.replace(over)
        self._poke(job)
        (self.folder / WAKE / job).unlink(missing_ok=True)

    def _wake_first(self) -> None:
        for name in queue_names(str(self.folder))[:FIRST_FEW]:
            self._poke(job_of(name))

    def _poke(self, job: str) -> None:
        """Wake the process of a waiting job, if it has a pipe and sleeps on it."""
        with contextlib.suppress(OSError):
            pipe = os.open(self.folder / WAKE / job, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b".")
            finally:
                os.close(pipe)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = wait_for_lock(self.folder / "lock", _LOCK_LIMIT_S, poll_s=_LOCK_POLL_S)
        except LocalFileError as error:
            raise OSError(str(error)) from None
        if lock is None:
            raise QueueBusy
        try:
            yield
        finally:
            os.close(lock)

    def _write(self, file: Path, entry: QueueEntry) -> None:
        """Through a file outside of `waiting/` and `running/`, whose names are all jobs. If there
        is no room for that, over the entry that is there."""
        partial = self.folder / f"{entry.job}.part"
        try:
            with partial.open("wb") as part:
                part.write(to_json(entry))
                part.flush()
                os.fsync(part.fileno())
            partial.replace(file)
        except OSError:
            partial.unlink(missing_ok=True)
            if not file.is_file():
                raise
            _overwrite(file, to_json(entry))

    def _waiting(self) -> list[str]:
        try:
            return queue_names(str(self.folder))
        except FileNotFoundError:  # nothing was ever submitted here
            return []

    def _names(self, part: str) -> list[str]:
        try:
            return os.listdir(self.folder / part)  # noqa: PTH208
        except FileNotFoundError:
            return []


def _read(file: Path) -> QueueEntry:
    """Raises FileNotFoundError or UnreadableEntry."""
    try:
        return from_json(QueueEntry, file.read_bytes())
    except (ValueError, TypeError, KeyError, AttributeError, IsADirectoryError):
        raise UnreadableEntry from None


def _unknown(job: str) -> QueueEntry:
    """In place of an entry that cannot be read."""
    return QueueEntry(job, 0, 0.0, Resources(), Capacity(0.0), "")


def _overwrite(file: Path, content: bytes) -> None:
    """By one write, within the block that the file has: that needs no space. What is left of a
    longer content becomes spaces."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content.ljust(os.fstat(descriptor).st_size), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# What the local compute takes from the environment, what this machine has, and a job's variables.


PYTHON_VARIABLE = "EDGELOOP_PYTHON"
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NVIDIA_SMI_LIMIT_S = 20


def job_environment(
    additions: Mapping[str, str], threads: int = 0, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """A local job has the variables of its submitter, and runs the Python of the same environment.
    `threads` limits numerical libraries, unless the submitter has set their variables."""
    limits = dict.fromkeys(THREAD_VARIABLES, str(threads)) if threads else {}
    return {**limits, **environ, PYTHON_VARIABLE: str(interpreter(environ)), **additions}


def interpreter(environ: Mapping[str, str] = os.environ) -> Path:
    """The Python of the active environment, which may not be the one Edgeloop is installed in."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        python = Path(environ.get(name, "")) / "bin/python"
        if environ.get(name) and python.is_file():
            return python
    return Path(sys.executable)


def gpu_names(folder: Path, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs that the submitter may use. nvidia-smi is slow, so its answer is kept in `folder`
    until the machine restarts."""
    if GPUS_VARIABLE in environ:
        return tuple(part.strip() for part in environ[GPUS_VARIABLE].split(",") if part.strip())
    import shutil

    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    cached = folder / f"gpus.{boot}"
    try:
        count = int(cached.read_text())
    except (OSError, ValueError):
        count = _count_gpus(program)
        with contextlib.suppress(OSError):  # a full disk: it is asked again
            cached.write_text(str(count))
    return tuple(str(number) for number in range(count))


def _count_gpus(program: str) -> int:
    import subprocess

    try:
        listing = subprocess.run(  # noqa: S603
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0  # a driver that does not respond has no usable GPU
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def show_gpus(gpus: Sequence[str]) -> None:
    """Limit this process and its children to these GPUs."""
    os.environ[GPUS_VARIABLE] = ",".join(gpus)


# What a job requires of a machine, and what a machine has. Needs only the standard library: the
# process of a waiting job uses it too.


_TINY = 1e-9  # sums of tenths


@dataclass(frozen=True)
class Capacity:
    """What one machine has. GPUs have names, because each job gets certain ones."""

    cpus: float
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Allocation:
    """What a running job holds."""

    resources: Resources
    gpus: tuple[str, ...]


def missing(requested: Resources, totals: Mapping[str, float]) -> list[str]:
    """Phrases for what exceeds the most that one machine has."""
    phrases = []
    for name, amount in _amounts(requested).items():
        there = totals.get(name, 1.0 if name == "nodes" else 0.0)
        if amount > there + _TINY:
            phrases.append(f"{name} {shown(name, amount)} (the most is {shown(name, there)})")
    return phrases


def listed(totals: Mapping[str, float]) -> str:
    """`cpus 8, gpus 0, memory 24.1 GB, snapdragon888 1`."""
    return ", ".join(f"{name} {shown(name, amount)}" for name, amount in totals.items())


def totals_of(capacity: Capacity) -> dict[str, float]:
    memory = float(capacity.memory_bytes)
    amounts = {"cpus": capacity.cpus, "gpus": float(len(capacity.gpus)), "memory": memory}
    return amounts | dict(capacity.custom)


def allocate(
    requested: Resources, capacity: Capacity, allocations: Iterable[Allocation]
) -> tuple[str, ...] | None:
    """The GPUs this job gets now, perhaps none; None if it has to wait."""
    others = list(allocations)
    free = totals_of(capacity)
    for other in others:
        for name, amount in _amounts(other.resources).items():
            free[name] = free.get(name, 0.0) - amount
    if missing(requested, free):
        return None
    return _choose_gpus(requested.gpus, capacity.gpus, others)


def shown(name: str, amount: float) -> str:
    return f"{amount / 1e9:.1f} GB" if name == "memory" else f"{amount:g}"


def _choose_gpus(
    amount: float, gpus: tuple[str, ...], others: list[Allocation]
) -> tuple[str, ...] | None:
    """Whole GPUs are exclusive. A fraction goes to the fullest GPU with enough left."""
    used = dict.fromkeys(gpus, 0.0)
    for other in others:
        for gpu in other.gpus:
            used[gpu] = used.get(gpu, 0.0) + min(1.0, other.resources.gpus)
    if amount <= 0:
        return ()
    if amount < 1:
        room = [gpu for gpu in gpus if used[gpu] + amount <= 1 + _TINY]
        return (max(room, key=lambda gpu: used[gpu]),) if room else None
    idle = [gpu for gpu in gpus if used[gpu] < _TINY]
    return tuple(idle[: int(amount)]) if len(idle) >= amount else None


def _amounts(resources: Resources) -> dict[str, float]:
    amounts = {"cpus": resources.cpus, "gpus": resources.gpus}
    if resources.nodes != 1:
        amounts["nodes"] = float(resources.nodes)
    return amounts | {"memory": float(resources.memory_bytes)} | dict(resources.custom)
