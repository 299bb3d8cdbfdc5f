"""The launcher: the process that a compute started. It shows the log, forwards signals, and waits.

On the other nodes of a job with several, `Follower` lays out the same code and data and runs the
same command, with the variables that the compute set for this node (RANK, MASTER_ADDR, …). Only the
first node reports for the job: a follower writes nothing to the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from edgeloop._util.redact import redact
from edgeloop._util.system import ENDING_SIGNALS, descendants
from edgeloop.errors import EdgeloopError, LocalFileError
from edgeloop.node import command
from edgeloop.node.blobs import open_from_job
from edgeloop.node.command import CANCEL, Canceled, Events, PeriodicTask, with_retries
from edgeloop.node.environment import (
    JobLog,
    JobSecrets,
    MaskedTail,
    NodeEnvironment,
    Scratch,
    read_order,
)
from edgeloop.node.layout import JobFolders
from edgeloop.node.outputs import (
    FAILED,
    KILLED,
    JobOutcome,
    StateWriter,
    recover,
    stored_progress,
)
from edgeloop.node.supervisor import Supervisor, supervise
from edgeloop.node.ticket import FINAL_STATES, JobProgress, WrapperOrder

_POLL_S = 0.2
_BLOCKED_S = 10.0
_CHUNK = 1 << 16
_SUPERVISOR_KILLED = "the job's supervisor process was killed"


def main(arguments: Sequence[str] = ()) -> int:
    try:
        order = read_order()
        if arguments[:1] == ["recover"]:
            return 0 if _recover(order, Path(arguments[1])) else FAILED
        return _run(order)
    except EdgeloopError as error:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"edgeloop: {redact(str(error))}\n")
        return FAILED


def _run(order: WrapperOrder) -> int:
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a pipe of ours must not become a child's standard output
    os.close(number)
    folder = order.access.options.get("folder", "")
    if order.access.make == "LocalStore" and not Path(folder).is_dir():  # do not create it here
        reason = "this store's folder is not on this machine: use one in the cloud, or share it"
        raise LocalFileError(path=folder, reason=reason)
    here = NodeEnvironment.current()
    if order.nodes == 1:
        here = replace(here, rank=0)  # the variable has another meaning
    scratch = Scratch.of(here.cache, order.job, here.rank)
    try:
        scratch.create()
    except OSError as error:
        problem = LocalFileError(path=scratch.folder, reason=error.strerror)
        _report_failure(order, here, problem)
        raise problem from None
    forwarder = LogForwarder(scratch)
    lifeline, result = _start_supervisor(order, scratch, here)
    _forward_signals(lifeline)
    forwarder.start()
    code = _result(result)
    if code is None:
        if not here.rank:
            try:
                _recover(order, scratch.folder)
            except (LocalFileError, OSError) as error:
                _report_failure(order, here, error)
        code = KILLED
    forwarder.finish()
    return code


def _start_supervisor(
    order: WrapperOrder, scratch: Scratch, here: NodeEnvironment
) -> tuple[int, int]:
    """A grandchild, so that it is not among the launcher's children. Forking is safe here: no
    thread has been started yet. Returns the lifeline to write to and the result to read from."""
    listens, lifeline = os.pipe()
    result, reports = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.setsid()
        if os.fork() == 0:
            os.close(lifeline)
            os.close(result)
            _become_supervisor(order, scratch, here, listens, reports)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(listens)
    os.close(reports)
    return lifeline, result


def _become_supervisor(
    order: WrapperOrder, scratch: Scratch, here: NodeEnvironment, lifeline: int, reports: int
) -> None:
    """Never returns. Its own output goes to the log; it keeps none of the launcher's streams.

    A container is ended by signals to all its processes: the launcher forwards that, so the
    supervisor survives it. With a handler, since an ignored signal would be ignored by the command
    too.
    """
    try:
        for number in ENDING_SIGNALS:
            signal.signal(number, lambda *_: None)
        with Path(os.devnull).open("rb") as nothing, scratch.log.open("ab") as log:
            for source, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(source.fileno(), target)
        code = (follow if here.rank else supervise)(order, scratch, here, lifeline)
        os.write(reports, json.dumps(code).encode())
    except Exception as error:  # noqa: BLE001 - the launcher must hear of it, whatever it is
        reason = f"the wrapper itself failed: {type(error).__name__}: {error}"
        JobLog(scratch.log, JobSecrets(scratch)).write(reason)
    finally:
        os._exit(0)


def _result(pipe: int) -> int | None:
    """The exit code, or None if the supervisor ended without reporting one."""
    content = b""
    while True:
        select.select([pipe], [], [])  # signals are handled in between
        part = os.read(pipe, 64)
        if not part:
            return int(json.loads(content)) if content else None
        content += part


def _forward_signals(lifeline: int) -> None:
    def cancel(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(lifeline, CANCEL)

    for number in ENDING_SIGNALS:
        signal.signal(number, cancel)


def _recover(order: WrapperOrder, folder: Path) -> bool:
    return recover(folder, open_from_job(order.access), _SUPERVISOR_KILLED, order.pace.patience_s)


def _report_failure(order: WrapperOrder, here: NodeEnvironment, error: Exception) -> None:
    """The state of a job whose folder on this node cannot be used, for example on a full disk."""
    if here.rank:
        return
    blobs, now = open_from_job(order.access), time.time()
    progress = with_retries(lambda: stored_progress(blobs, order.job), order.pace.patience_s)
    if progress is not None and progress.state in FINAL_STATES:
        return
    progress = progress or JobProgress("failed", 1, here.node, now)
    reason = f"{here.node} cannot keep the job's files: {error}"
    ended = replace(progress, state="failed", reason=redact(reason), ended=now)
    secrets = JobSecrets(Scratch.of(here.cache, order.job, here.rank))
    writer = StateWriter(blobs, order.job, ended, secrets)
    with_retries(writer.put, order.pace.patience_s)


class LogForwarder:
    """A thread that copies the log to standard output: a blocked one delays nothing else."""

    def __init__(self, scratch: Scratch) -> None:
        secrets = JobSecrets(scratch)
        secrets.open()
        self._tail = MaskedTail(scratch.log, secrets)
        self._over = threading.Event()
        self._moved = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Wait for the rest, unless it is blocked."""
        self._over.set()
        self._moved = time.monotonic()
        while self._thread.is_alive() and time.monotonic() - self._moved < _BLOCKED_S:
            self._thread.join(_POLL_S)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                last = self._over.is_set()
                while content := self._tail.read(_CHUNK, is_over=last):
                    while content:
                        content = content[os.write(1, content) :]
                        self._moved = time.monotonic()
                if last:
                    return
                self._over.wait(_POLL_S)


def follow(order: WrapperOrder, scratch: Scratch, here: NodeEnvironment, lifeline: int) -> int:
    """Run this node's part to its end; returns the exit code for the compute."""
    command.adopt_orphans()
    return Follower(order, scratch, here, Events(lifeline)).run()


class Follower(Supervisor):
    def run(self) -> int:
        try:
            outcome = self._work(self._ticket(None), None)
        except Canceled:
            outcome = self._canceled(None)
        except EdgeloopError as error:
            outcome = JobOutcome("failed", FAILED, str(error))
        return self._finish(outcome)

    def _make_tasks(self) -> dict[str, PeriodicTask]:
        return {}

    def _report_state(self) -> None:
        pass

    def _publish(self, ticket: object, folders: JobFolders) -> JobOutcome:
        return JobOutcome("completed", 0, exit_code=0)

    def _deliver(self, ticket: object, folders: JobFolders, outcome: JobOutcome) -> JobOutcome:
        return outcome

    def _finish(self, outcome: JobOutcome) -> int:
        command.kill_all(lambda: descendants(os.getpid()))
        if outcome.reason:
            self._log.write(outcome.reason)
        shutil.rmtree(self._scratch.folder, ignore_errors=True)
        return outcome.code
