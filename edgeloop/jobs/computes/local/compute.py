"""This machine as a compute: processes that outlive the terminal, and a line they stand in.

What this machine has, where its settings do not say.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from socket import gethostname
from typing import Annotated, cast

from edgeloop._util.schema import key
from edgeloop._util.values import BYTES, Amount, Reads, number, shown
from edgeloop.errors import BadInput, BadName, ComputeUnavailable, Infeasible
from edgeloop.jobs.computes.base import Compute, Order, Resources, Seen
from edgeloop.jobs.computes.local.environment import job_environment, visible_gpus
from edgeloop.jobs.computes.local.queue import (
    ENDED_RUNNING,
    ENDED_WAITING,
    WRAPPERS,
    Entry,
    Glance,
    Queue,
    QueueBusy,
    born,
)
from edgeloop.jobs.computes.local.turn import job_of
from edgeloop.jobs.computes.local.waiter import waiter_file
from edgeloop.jobs.computes.options import ComputeOptions
from edgeloop.jobs.protocol.handover import hand_over
from edgeloop.jobs.protocol.resources import Capacity, listed, missing, totals_of
from edgeloop.jobs.protocol.ticket import State
from edgeloop.jobs.wrapper.environment import Surroundings
from edgeloop.jobs.wrapper.scratch import Scratch
from edgeloop.settings import state_folder
from edgeloop.store import Blobs, open_access

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LOG_TAIL_BYTES = 64 * 1024
_LARGEST_PRIORITY = 10**9 - 1


def _gpu_names(value: object) -> tuple[str, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return tuple(str(number) for number in range(value))
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value)
    raise ValueError(f"must be a whole number or a list, not {shown(value)}")


class LocalOptions(ComputeOptions):
    """This machine. What is not given is found out."""

    cpus: Annotated[float | None, number()] = key(None, "CPU cores for jobs.")
    memory: Annotated[int | None, BYTES] = key(None, "Main memory for jobs.")
    gpus: Annotated[tuple[str, ...] | None, Reads(_gpu_names, {"type": ["integer", "array"]})] = (
        key(None, "GPUs for jobs: how many, or a list of which ones.")
    )
    custom: dict[str, Amount] = key(dict, "Other things that jobs may ask for: `{board: 1}`.")


class LocalCompute(Compute):
    """Jobs start in the order of priority and submission, as soon as there is room."""

    kind = "local"
    Options = LocalOptions

    def __init__(self, name: str, options: LocalOptions, folder: Path | None = None) -> None:
        self.name = name
        self._queue = Queue((folder or _usual_folder()).absolute())
        self._cpus, self._gpus = options.cpus, options.gpus
        self._memory_bytes, self._custom = options.memory, options.custom
        self._started: list[subprocess.Popen[bytes]] = []

    def check(self, resources: Resources) -> None:
        if resources.gpus > 1 and resources.gpus != int(resources.gpus):
            raise BadInput(reason=f"gpus {resources.gpus:g}: a part of a GPU, or whole ones")
        totals = totals_of(self._capacity())
        lacking = missing(resources, totals)
        if lacking:
            reason = f"{', '.join(lacking)}; this machine has {listed(totals)}"
            raise Infeasible(compute=self.name, reason=reason)

    def submit(self, order: Order) -> None:
        job = _checked(order.job)
        if abs(order.priority) > _LARGEST_PRIORITY:
            raise BadInput(reason=f"priority {order.priority} is too large a number")
        self.check(order.resources)
        wrapper = self._wrapper(order)
        variables = job_environment(hand_over(order))
        scratch = str(Scratch.of(Surroundings.here(variables).cache, job).folder)
        needs, there = order.resources, self._capacity()
        entry = Entry(job, order.priority, time.time(), needs, there, scratch)
        with self._our_errors():
            place = self._queue.enter(entry)
            if place is None:
                return
            name, lock = place
            try:
                self._spawn(name, lock, wrapper, variables)
            except OSError:
                self._queue.leave(name)
                raise
            finally:
                os.close(lock)  # the job's process has it now

    def states(self, jobs: Sequence[str]) -> dict[str, Seen]:
        self._reap()
        glance = self._queue.glance()
        return {job: self._seen(job, glance) for job in jobs}

    def cancel(self, jobs: Sequence[str]) -> None:
        with self._our_errors():
            self._queue.make()
            running = self._queue.cancel(jobs)
        for entry in running:
            self._tell(entry)

    def logs(self, job: str) -> str:
        try:
            with self._queue.log(_checked(job)).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def forget(self, jobs: Sequence[str]) -> None:
        glance = self._queue.glance()
        with self._our_errors():
            for job in jobs:
                if job in glance.waiting:
                    self._queue.bury(job)
                self._queue.forget(_checked(job))

    def rescue(self, job: str, blobs: Blobs) -> bool:
        from edgeloop.jobs.wrapper.ending import salvage

        folder = self._queue.scratch(_checked(job))
        if folder is None or self._queue.is_alive(job) or not folder.is_dir():
            return False
        return salvage(folder, blobs, ENDED_RUNNING)

    def _capacity(self) -> Capacity:
        with self._our_errors():
            self._queue.make()
        cpus = cpu_count() if self._cpus is None else self._cpus
        memory = memory_bytes() if self._memory_bytes is None else self._memory_bytes
        gpus = gpu_names(self._queue.folder) if self._gpus is None else self._gpus
        return Capacity(cpus, gpus, memory, self._custom)

    def _wrapper(self, order: Order) -> Path:
        """Its name is its hash: whoever has it need not fetch it again."""
        file = self._queue.folder / WRAPPERS / PurePosixPath(order.wrapper).name
        if not file.is_file():
            open_access(order.access).get(order.wrapper, file)
        return file

    def _spawn(self, name: str, lock: int, wrapper: Path, variables: Mapping[str, str]) -> None:
        """In a session of its own: the terminal may close. What it prints before the wrapper takes
        over is kept; the command's own output is not, because the wrapper stores that."""
        begin = [sys.executable, "-I", "-S", str(waiter_file(self._queue.folder / WRAPPERS))]
        with self._queue.log(job_of(name)).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603
                [*begin, str(self._queue.folder), name, str(wrapper)],
                cwd=self._queue.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
        self._started.append(process)

    def _seen(self, job: str, glance: Glance) -> Seen:
        """The end is looked up last: a job may have come to it since the glance."""
        waits, runs = job in glance.waiting, job in glance.running
        if (waits or runs) and self._queue.is_alive(job):
            return Seen("running" if runs else "queued")
        ended = self._queue.outcome(job)
        if ended is not None:
            return Seen(_state(ended[0]), ended[1])
        if self._queue.was_canceled(job):
            return Seen("canceled")
        if runs:
            return Seen("failed", ENDED_RUNNING)
        return Seen("failed", ENDED_WAITING) if waits else Seen(None)

    def _tell(self, entry: Entry) -> None:
        """SIGTERM to the wrapper. The process is held fast first and then looked at, so that its
        number cannot have become somebody else's."""
        with contextlib.suppress(ProcessLookupError), _process(entry.pid) as send:
            if self._queue.is_alive(entry.job) and born(entry.pid) == entry.born:
                send(signal.SIGTERM)

    def _reap(self) -> None:
        """A program that stays, as the portal does, is the parent of jobs that ended."""
        self._started = [process for process in self._started if process.poll() is None]

    @contextlib.contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except QueueBusy:
            reason = f"a stopped process holds {self._queue.folder / 'lock'}"
            raise ComputeUnavailable(compute=self.name, reason=reason) from None
        except OSError as error:
            reason = f"{error.strerror or error} ({self._queue.folder})"
            raise ComputeUnavailable(compute=self.name, reason=reason) from None


def _usual_folder() -> Path:
    """One line of waiting jobs a user and machine: homes are shared between machines, CPUs not."""
    return state_folder() / "local" / gethostname()


@contextlib.contextmanager
def _process(pid: int) -> Iterator[Callable[[int], None]]:
    """A way to signal this very process. Raises ProcessLookupError where there is none."""
    if not hasattr(os, "pidfd_open"):  # not Linux: its start, looked at afterwards, must do
        yield lambda number: os.kill(pid, number)
        return
    handle = os.pidfd_open(pid)
    try:
        yield lambda number: signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _checked(job: str) -> str:
    if not _ID.fullmatch(job):
        raise BadName(what="job", name=job, reason="it must be letters, digits and ._-")
    return job


def _state(text: str) -> State:
    return cast(State, text)


_NVIDIA_SMI_LIMIT_S = 20


def cpu_count() -> float:
    return float(os.cpu_count() or 1)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gpu_names(folder: Path) -> tuple[str, ...]:
    """The GPUs the submitter may use, by number. NVIDIA's program is slow, so what it said is
    kept until the machine starts anew."""
    said = visible_gpus()
    if said is not None:
        return said
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    kept = folder / f"gpus.{_boot()}"
    try:
        count = int(kept.read_text())
    except (OSError, ValueError):
        count = _count_gpus(program)
        kept.write_text(str(count))
    return tuple(str(number) for number in range(count))


def _count_gpus(program: str) -> int:
    try:
        answer = subprocess.run(  # noqa: S603
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0  # a driver that does not answer has no GPU to give
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
