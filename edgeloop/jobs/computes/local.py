"""This machine as a compute: a queue in a folder, without a daemon."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, cast

from edgeloop._util.processes import reaped, signal_process, start_detached
from edgeloop._util.schema import Amount, key
from edgeloop._util.system import available_cpus, physical_memory_bytes
from edgeloop._util.values import BYTES, Reads, number, shown
from edgeloop.errors import BadInput, ComputeRefused, ComputeUnavailable, Infeasible
from edgeloop.jobs.bundle import waiter_file
from edgeloop.jobs.computes.base import (
    Compute,
    ComputeOptions,
    JobOrder,
    ObservedState,
    order_variables,
)
from edgeloop.jobs.computes.queue import (
    ENDED_RUNNING,
    ENDED_WAITING,
    WRAPPERS,
    Capacity,
    JobQueue,
    NoLocks,
    QueueBusy,
    QueueEntry,
    QueueSnapshot,
    gpu_names,
    interpreter,
    job_environment,
    listed,
    missing,
    totals_of,
)
from edgeloop.jobs.computes.waiting import job_of
from edgeloop.node.environment import NodeEnvironment, Scratch, check_job_id
from edgeloop.node.ticket import Resources, State
from edgeloop.store import Blobs
from edgeloop.store.files import open_access

# This machine as a compute: processes that outlive the terminal, and a queue for them.


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
    """Jobs start in the order of priority and submission, as soon as resources are free."""

    kind = "local"
    Options = LocalOptions
    is_per_machine = True

    def __init__(self, name: str, options: LocalOptions, folder: Path) -> None:
        self.name = name
        self._queue = JobQueue(folder)
        self._cpus, self._gpus = options.cpus, options.gpus
        self._memory_bytes, self._custom = options.memory, options.custom
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def note(self) -> str:
        """An active environment that is not Edgeloop's own is named."""
        folder = interpreter().parents[1]
        return "" if folder == Path(sys.executable).parents[1] else f"Python of {folder}"

    def check(self, resources: Resources) -> None:
        if resources.gpus > 1 and resources.gpus != int(resources.gpus):
            raise BadInput(
                reason=f"gpus {resources.gpus:g}: ask for a fraction of one GPU, or for whole ones"
            )
        totals = totals_of(self._capacity())
        lacking = missing(resources, totals)
        if lacking:
            reason = f"{', '.join(lacking)}; this machine has {listed(totals)}"
            raise Infeasible(compute=self.name, reason=reason)

    def submit(self, order: JobOrder) -> None:
        job = check_job_id(order.job)
        if abs(order.priority) > _LARGEST_PRIORITY:
            raise BadInput(reason=f"the priority {order.priority} is too large")
        self.check(order.resources)
        wrapper = self._queue.folder / WRAPPERS / PurePosixPath(order.wrapper).name
        if not _is_whole(wrapper):
            open_access(order.access).get(order.wrapper, wrapper)
        variables = job_environment(order_variables(order), order.threads)
        scratch = str(Scratch.of(NodeEnvironment.current(variables).cache, job).folder)
        capacity = self._capacity()
        entry = QueueEntry(job, order.priority, time.time(), order.resources, capacity, scratch)
        with self._as_compute_errors():
            entered = self._queue.enter(entry)
            if entered is None:
                return
            name, lock = entered
            try:
                self._spawn(name, lock, wrapper, variables)
            except OSError:
                self._queue.leave(name)
                raise
            finally:
                os.close(lock)  # the job's process has it now

    def states(self, jobs: Sequence[str]) -> dict[str, ObservedState]:
        # A long-running program such as the portal is the parent of jobs that ended.
        self._started = reaped(self._started)
        snapshot = self._queue.snapshot()
        return {job: self._observed(job, snapshot) for job in jobs}

    def cancel(self, jobs: Sequence[str]) -> None:
        with self._as_compute_errors():
            self._queue.create()
            running = self._queue.cancel(jobs)
        for entry in running:
            if self._queue.is_alive(entry.job):
                signal_process(entry.pid, entry.born, signal.SIGTERM)

    def logs(self, job: str) -> str:
        try:
            with self._queue.log(check_job_id(job)).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def forget(self, jobs: Sequence[str]) -> None:
        snapshot = self._queue.snapshot()
        with self._as_compute_errors():
            for job in jobs:
                if job in snapshot.waiting:
                    self._queue.remove_dead(job)
                self._queue.forget(check_job_id(job))

    def rescue(self, job: str, blobs: Blobs) -> bool:
        from edgeloop.node.outputs import recover

        folder = self._queue.scratch(check_job_id(job))
        if folder is None or self._queue.is_alive(job) or not folder.is_dir():
            return False
        ended = self._queue.ended(job)
        # A cancel may end the wrapper before it can report that it was canceled.
        if self._queue.was_canceled(job) or (ended is not None and ended.state == "canceled"):
            return recover(folder, blobs, "canceled", state="canceled")
        return recover(folder, blobs, ENDED_RUNNING)

    def _capacity(self) -> Capacity:
        with self._as_compute_errors():
            self._queue.create()
        cpus = float(available_cpus()) if self._cpus is None else self._cpus
        memory = physical_memory_bytes() if self._memory_bytes is None else self._memory_bytes
        gpus = gpu_names(self._queue.folder) if self._gpus is None else self._gpus
        return Capacity(cpus, gpus, memory, self._custom)

    def _spawn(self, name: str, lock: int, wrapper: Path, variables: Mapping[str, str]) -> None:
        """What it prints before the wrapper takes over is kept; the command's own output is stored
        by the wrapper."""
        folder = self._queue.folder
        program = [sys.executable, "-I", "-S", str(waiter_file(folder / WRAPPERS))]
        process = start_detached(
            [*program, str(folder), name, str(wrapper)],
            variables,
            self._queue.log(job_of(name)),
            cwd=folder,
            lock=lock,
            output="none",
        )
        self._started.append(process)

    def _observed(self, job: str, snapshot: QueueSnapshot) -> ObservedState:
        """The end is looked up last: a job may have ended since the snapshot."""
        waits, runs = job in snapshot.waiting, job in snapshot.running
        if (waits or runs) and self._queue.is_alive(job):
            return ObservedState("running" if runs else "queued")
        ended = self._queue.ended(job)
        if ended is not None:
            return ObservedState(cast(State, ended.state), ended.reason)
        if self._queue.was_canceled(job):
            return ObservedState("canceled")
        if runs:
            return ObservedState("failed", ENDED_RUNNING)
        return ObservedState("failed", ENDED_WAITING) if waits else ObservedState(None)

    @contextlib.contextmanager
    def _as_compute_errors(self) -> Iterator[None]:
        try:
            yield
        except NoLocks:
            reason = "this system has no file locks: run the job on a compute on another machine"
            raise ComputeRefused(compute=self.name, reason=reason) from None
        except QueueBusy:
            reason = f"a stopped process holds {self._queue.folder / 'lock'}"
            raise ComputeUnavailable(compute=self.name, reason=reason) from None
        except OSError as error:
            reason = f"{error.strerror or error} ({self._queue.folder})"
            raise ComputeUnavailable(compute=self.name, reason=reason) from None


def _is_whole(wrapper: Path) -> bool:
    """Its name is its hash. A power cut may have left it empty."""
    try:
        return hashlib.sha256(wrapper.read_bytes()).hexdigest() == wrapper.stem
    except OSError:
        return False
