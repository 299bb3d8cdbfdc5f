"""Processes of this machine: jobs, keepers and supervisors, which outlive the one that starts them,
and trainings, which do not.

*Started* in a session of their own, so that a terminal may close. *Alive* for as long as they hold
a lock that their starter passes on: the kernel releases it however they end, even by SIGKILL, and
a successor finds by it which of them are left. *Identified* by number and start time together,
since numbers are reused. *Ended* by SIGTERM and, after a grace period, by SIGKILL to all processes
that they started. `KeptProcess` starts one again when it dies. *Leashed* to the process that
started them by a pipe, if they must not outlive it: the kernel closes the pipe.

Needs only the standard library: Ray's actors import it where nothing else may be installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgeloop._util.redact import redact
from edgeloop._util.system import descendants, dies_with_parent, start_time

if TYPE_CHECKING:
    import subprocess

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
HEALTHY_S = 60.0  # a process that lived so long is started again without delay
_KILL_WAIT_S = 10.0
_TAIL_BYTES, _LINE_LIMIT = 4_096, 300

# waiting: it is about to be started, perhaps again
ProcessState = Literal["waiting", "running", "draining", "ended"]


def start_detached(
    command: Sequence[str],
    environ: Mapping[str, str],
    log: Path | None = None,
    cwd: Path | None = None,
    lock: int | None = None,
    output: Literal["log", "none", "pipe"] = "log",
    ends_with: Literal["thread", "leash"] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own. Its errors are appended to `log`; without a log it
    writes where this process does.

    Args:
        lock: A descriptor that the program inherits; close it here once the program is started.
        output: Whether its standard output is written where its errors are, dropped, or read here.
        ends_with: "thread": the kernel kills it when the thread that started it ends. "leash": its
            standard input is a pipe from here, and it calls `end_with_leash`.
    """
    import subprocess

    with contextlib.ExitStack() as opened:
        errors = opened.enter_context(log.open("ab")) if log else None
        targets = {"log": errors, "none": subprocess.DEVNULL, "pipe": subprocess.PIPE}
        return subprocess.Popen(  # noqa: S603 - a list of arguments, no shell
            list(command),
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.PIPE if ends_with == "leash" else subprocess.DEVNULL,
            stdout=targets[output],
            stderr=errors,
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,
            preexec_fn=dies_with_parent() if ends_with == "thread" else None,  # noqa: PLW1509 - one call
        )


def end_with_leash(leash: int = 0) -> None:
    """For a program that was started on a leash: wait until the process that holds its other end is
    gone, however that ended, and kill the whole process group."""
    while os.read(leash, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def reaped(processes: Sequence[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """Those that still run. A program that lives for long is the parent of many that ended."""
    return [process for process in processes if process.poll() is None]


def signal_process(pid: int, born: str, number: int) -> None:
    """Signal the process with this number and `start_time`; nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError), _opened(pid) as send:
        # It is opened first and checked then, so that its number cannot be reused in between.
        if start_time(pid) == born:
            send(number)


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all below it, also those that left its group."""
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process from `start_detached` and its group: unlike `kill_tree`, also to those
    whose parents have ended, but not to those that left the group. Returns when it has ended."""
    # The group exists until its leader is waited for; afterwards its number may be another's.
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def last_line(log: Path, start: int = 0, limit: int | None = _LINE_LIMIT) -> str:
    """The last line that a program wrote to its log, from byte `start` on, without secrets and cut
    to `limit` characters."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return redact(lines[-1].strip())[:limit] if lines else ""


class KeptProcess:
    """A program that is started again when it dies, with a backoff, until it is told to end.

    Call `poll` about every second, always from the same thread: the kernel kills the program when
    the thread that started it ends. `environ` may hold secrets, and nothing of it is shown or
    written anywhere. With `until_success`, exit code 0 is the end.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        log: Path | None = None,
        cwd: Path | None = None,
        grace_s: float = 30.0,
        until_success: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.note = ""  # why it waits; empty while it runs
        self._command, self._environ, self._log, self._cwd = command, environ, log, cwd
        self._grace_s, self._until_success, self._clock = grace_s, until_success, clock
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
    def state(self) -> ProcessState:
        if self._is_over:
            return "ended"
        if self._kill_at is not None:
            return "draining"
        return "waiting" if self._process is None else "running"

    def poll(self) -> ProcessState:
        """Start it if it is time to, notice its end, and kill it after its grace period."""
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
        """Ask it to end within its grace period, and do not start it again."""
        if self._kill_at is not None or self._is_over:
            return
        self._kill_at = self._clock() + self._grace_s
        if self._process is None:
            self._is_over = True
        else:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and all processes that it started, at once."""
        import subprocess

        process, self._process, self._is_over = self._process, None, True
        if process is None or process.poll() is not None:
            return
        kill_tree(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_WAIT_S)

    def _start(self, now: float) -> None:
        import subprocess

        try:
            self._logged = self._log.stat().st_size if self._log and self._log.exists() else 0
            self._process = start_detached(
                self._command, self._environ, self._log, self._cwd, ends_with="thread"
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._wait(f"cannot be started: {getattr(error, 'strerror', None) or error}", now)
            return
        self._began, self.note = now, ""

    def _ended(self, code: int, now: float) -> None:
        self._process = None
        if self._until_success and code == 0:
            self._is_over = True
        if self._is_over or self._kill_at is not None:
            return
        if now - self._began >= HEALTHY_S:
            self._pause_s = 0.0
        ending = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = last_line(self._log, self._logged) if self._log and code > 0 else ""
        self._wait(f"{ending} ({said})" if said else ending, now)

    def _wait(self, ending: str, now: float) -> None:
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
        self._start_at = now + self._pause_s
        self.note = f"it {ending}, and starts again in {self._pause_s:g} s"


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[Callable[[int], None]]:
    """A function that signals this process. Raises ProcessLookupError if it does not exist."""
    if not hasattr(os, "pidfd_open"):  # not Linux: its start time, checked afterwards, must do
        yield lambda number: os.kill(pid, number)
        return
    handle = os.pidfd_open(pid)
    try:
        yield lambda number: signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)
