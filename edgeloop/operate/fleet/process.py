"""One runner as a process of this machine: started again when it dies, ended with a grace period.

The engines share this: the local launcher's keeper and Ray's actor hold one each. It needs only the
standard library, because an actor imports it where nothing else may be installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edgeloop._util.redact import redact
from edgeloop._util.system import descendants, dies_with_parent, python_module
from edgeloop.operate.fleet.launcher import RunnerOrder, RunnerState

NODE_VARIABLE = "EDGELOOP_NODE"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
GOOD_S = 60.0  # a runner that lived so long is started again without delay
GRACE_S, AFTER_GRACE_S = 30.0, 30.0
_KILL_WAIT_S = 10.0
_TAIL_BYTES, _LINE_LIMIT = 4_096, 300


class RunnerProcess:
    """Call `poll` about every second, always from the same thread: the kernel kills the runner
    when the thread that started it ends.

    `environ` has the store's secret, and nothing of it is shown or written anywhere. Without a
    `log` the runner writes where this process does. A `command` is kept alive instead of the
    runner, until it ends with exit code 0.
    """

    def __init__(
        self,
        order: RunnerOrder,
        environ: Mapping[str, str],
        log: Path | None = None,
        python: str = sys.executable,
        cwd: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        command: Sequence[str] = (),
    ) -> None:
        self.order = order
        self.note = ""  # why it waits; empty while it runs
        self._environ = {**environ, NODE_VARIABLE: order.id}
        self.python = python
        self._log, self._cwd, self._clock = log, cwd, clock
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._pause_s = 0.0
        self._start_at = clock()
        self._kill_at: float | None = None  # set when it is to end
        self._is_over = False
        self._logged = 0  # bytes that earlier ones wrote

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> RunnerState:
        if self._is_over:
            return "ended"
        if self._kill_at is not None:
            return "draining"
        return "waiting" if self._process is None else "running"

    def poll(self) -> RunnerState:
        """Look after the process: start it if it is time to, notice its end, insist on it."""
        now = self._clock()
        if self._process is not None and self._process.poll() is not None:
            self._ended(self._process.returncode, now)
        if self._process is None:
            if self._kill_at is not None:
                self._is_over = True
            elif not self._is_over and now >= self._start_at:
                self._start(now)
        elif self._kill_at is not None and now >= self._kill_at:
            self.kill()
        return self.state

    def drain(self) -> None:
        """Let it finish its stage, then end. It ends itself after its grace period."""
        if self._kill_at is not None or self._is_over:
            return
        self._kill_at = self._clock() + _grace_s(self.order) + AFTER_GRACE_S
        if self._process is None:
            self._is_over = True
        else:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and all processes that it started, at once."""
        process, self._process, self._is_over = self._process, None, True
        if process is None or process.poll() is not None:
            return
        for pid in (process.pid, *descendants(process.pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_WAIT_S)

    def _start(self, now: float) -> None:
        start = "edgeloop.operate.fleet.start"
        runner = python_module(start, *self.order.arguments, python=self.python)
        try:
            with contextlib.ExitStack() as opened:
                output = opened.enter_context(self._log.open("ab")) if self._log else None
                self._logged = output.tell() if output else 0
                self._process = subprocess.Popen(  # noqa: S603 - a list of arguments, no shell
                    self._command or runner,
                    cwd=self._cwd,
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=dies_with_parent(),  # noqa: PLW1509 - one system call
                )
        except (OSError, subprocess.SubprocessError) as error:
            self._wait(f"cannot be started: {getattr(error, 'strerror', None) or error}", now)
            return
        self._began, self.note = now, ""

    def _ended(self, code: int, now: float) -> None:
        self._process = None
        if self._command and code == 0:
            self._is_over = True
        if self._is_over or self._kill_at is not None:
            return
        if now - self._began >= GOOD_S:
            self._pause_s = 0.0
        ending = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = last_line(self._log, self._logged) if self._log and code > 0 else ""
        self._wait(f"{ending} ({said})" if said else ending, now)

    def _wait(self, ending: str, now: float) -> None:
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
        self._start_at = now + self._pause_s
        self.note = f"it {ending}, and starts again in {self._pause_s:g} s"


def last_line(log: Path, start: int = 0) -> str:
    """What a program said last, from this byte of its log on."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return redact(lines[-1].strip())[:_LINE_LIMIT] if lines else ""


def _grace_s(order: RunnerOrder) -> float:
    words = order.words
    with contextlib.suppress(ValueError, IndexError):
        return float(words[words.index("--grace") + 1])
    return GRACE_S
