"""A process that reads models, forked instead of started: it costs milliseconds.

It is apart from the command as the real one is. What is left out is the start of an interpreter,
which tests/isolation is about.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import Any

from edgeloop._util import isolation
from edgeloop._util.isolation import serve
from edgeloop.cli import main
from edgeloop.graph import worker  # noqa: F401 - loaded before the fork

MOST_BYTES = 8 * 2**30  # of address space: a bomb ends here, and not with this machine


def begin(forks_worker: bool) -> None:
    """Be the command, within bounds."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, hard))
    if forks_worker:
        lend_forked_worker()
    main()


class ForkedWorker:
    """As `Popen` shows a process. To be made while this process has no other thread."""

    def __init__(self) -> None:
        calls, given_calls = os.pipe()
        taken_answers, answers = os.pipe()
        order, start = os.pipe()
        self.stdin = os.fdopen(given_calls, "wb", buffering=0)
        self.stdout = os.fdopen(taken_answers, "rb", buffering=0)
        self._start = os.fdopen(start, "w")
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            for stream in (self.stdin, self.stdout, self._start):
                stream.close()
            with suppress(BaseException):
                _read_models(order, calls, answers)
            os._exit(0)
        for end in (order, calls, answers):
            os.close(end)

    def start(self, folder: str, temporary: str) -> ForkedWorker:
        with self._start:
            self._start.write(json.dumps([folder, temporary]))
        return self

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float | None = None) -> int | None:
        if self.poll() is None:
            watch = os.pidfd_open(self.pid)
            ready, _, _ = select.select([watch], [], [], timeout)
            os.close(watch)
            if not ready:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self.poll()

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def lend_forked_worker() -> None:
    """The first process that this one wants for reading models is a fork; further ones, such as
    those after a crash, are started."""
    ready = [ForkedWorker()]

    class Popen(subprocess.Popen[bytes]):
        def __new__(cls, command: list[str], **options: Any) -> Any:
            if ready and isolation._PROGRAM in command:
                return ready.pop().start(command[-1], options["env"]["TMPDIR"])
            return super().__new__(cls)

    isolation.subprocess.Popen = Popen  # type: ignore[misc]


def _read_models(order: int, calls: int, answers: int) -> None:
    """Waits until it is wanted, or until the command has ended without it."""
    with os.fdopen(order) as given:
        text = given.read()
    if not text:
        return
    folder, os.environ["TMPDIR"] = json.loads(text)
    tempfile.tempdir = None
    os.setsid()
    os.dup2(calls, 0)
    os.dup2(answers, 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.closerange(3, 64)
    serve(folder)
