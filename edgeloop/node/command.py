"""The command and all of its processes, and the events that the supervisor waits for. The
command is started so that it cannot outlive the supervisor, and ended with a grace period.

A daemon leaves its group and its parent, but it keeps its environment, which has the job's id, and
the supervisor becomes its new parent (a "subreaper"). One of the two finds it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Generic, Literal, TypeVar

from edgeloop._util.retry import retry
from edgeloop._util.system import (
    ENDING_SIGNALS,
    descendants,
    dies_with_parent,
    is_alive,
    prctl,
    process_fields,
    process_numbers,
)
from edgeloop.errors import BadInput, EdgeloopError, StoreFull, StoreRefused, StoreUnavailable

# What the supervisor waits for (a signal, the launcher, the end of a process), and what it does
# meanwhile in threads.


Result = TypeVar("Result")

CANCEL = b"cancel"
TRANSIENT = (StoreUnavailable, StoreFull)
STORE_ERRORS = (*TRANSIENT, StoreRefused)
_REQUESTED = "canceled"
_LAUNCHER_GONE = "canceled: the process that the compute had started was killed"
_LONGEST_DELAY_S = 15.0


class Canceled(Exception):
    """The job was canceled, so what was being prepared is no longer needed."""


class Events:
    """For the main thread only. `canceled` is the reason once the job is to end."""

    def __init__(self, lifeline: int) -> None:
        self.canceled = ""
        self._lifeline: int | None = lifeline
        self._wakes, self._waker = os.pipe()
        for end in (self._wakes, self._waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

        def cancel(_number: int, _frame: FrameType | None) -> None:
            self.canceled = self.canceled or _REQUESTED

        for number in ENDING_SIGNALS:
            signal.signal(number, cancel)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only has to wake `wait`

    def wait(self, seconds: float) -> None:
        """Returns when something happened, or after that long."""
        watched = [self._wakes] + ([] if self._lifeline is None else [self._lifeline])
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        if self._lifeline is not None and self._lifeline in ready:
            message = os.read(self._lifeline, 64)
            self.canceled = self.canceled or (_REQUESTED if message else _LAUNCHER_GONE)
            if not message:
                os.close(self._lifeline)
                self._lifeline = None

    def cancel(self) -> None:
        """Asks the job to end, from another thread."""
        self.canceled = self.canceled or _REQUESTED
        self.wake()

    def wake(self) -> None:
        """Ends `wait` from another thread."""
        with contextlib.suppress(BlockingIOError):  # full of wakes already
            os.write(self._waker, b"\0")


class Background(Generic[Result]):
    """One action in a thread, abandoned when the job is canceled: it ends with the process."""

    def __init__(self, action: Callable[[], Result], events: Events) -> None:
        self._action = action
        self._events = events
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> Result:
        """The action's result or error. Raises Canceled if the job is canceled meanwhile."""
        threading.Thread(target=self._work, daemon=True).start()
        while not self._done.is_set() and not self._events.canceled:
            self._events.wait(1.0)
        if self._events.canceled:
            raise Canceled
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _work(self) -> None:
        try:
            self._result.append(self._action())
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            self._error = error
        self._done.set()
        self._events.wake()


class PeriodicTask:
    """A thread that does one thing at an interval, or at once when triggered.

    Store errors make it wait longer each time; other errors are logged, and it continues: nothing
    that happens here may end the job.
    """

    def __init__(
        self, name: str, action: Callable[[], None], every_s: float, log: Callable[[str], None]
    ) -> None:
        self._action = action
        self._every_s = every_s
        self._log = log
        self._triggered = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def trigger(self) -> None:
        self._triggered.set()

    def stop(self) -> None:
        """Returns when the current action has finished."""
        self._stopping.set()
        self._triggered.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        delay = self._every_s
        while not self._stopping.is_set():
            if delay <= self._every_s:
                self._triggered.wait(delay)
            else:  # the store is unavailable: a trigger does not change that
                self._stopping.wait(delay)
            self._triggered.clear()
            if self._stopping.is_set():
                return
            delay = self._every_s if self._once() else min(2 * delay, _LONGEST_DELAY_S)

    def _once(self) -> bool:
        try:
            self._action()
        except STORE_ERRORS:
            return False
        except (EdgeloopError, OSError, ValueError) as error:
            self._log(f"{self._thread.name}: {error}")
        return True


def with_retries(action: Callable[[], Result], patience_s: float) -> Result:
    """Retry while the store is unavailable. A store that refuses is not asked again."""
    return retry(action, TRANSIENT, patience_s, longest_s=_LONGEST_DELAY_S)


JOB_VARIABLE = "EDGELOOP_JOB_ID"
TIMED_OUT = 124
_PR_SET_CHILD_SUBREAPER = 36
_KILL_POLL_S = 0.01
_KILL_LIMIT_S = 30.0
_LEFTOVER_GRACE_S = 5.0
_POLL_S = 0.05
_OOM_SCORE = 500  # when memory runs out, the command is killed before the wrapper, which reports it
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class PreparedCommand:
    """A command ready to run: arguments, folder, log and variables."""

    job: str
    arguments: Sequence[str]
    folder: Path
    log: Path
    variables: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class CommandResult:
    """How a command ended: by itself, or because it was made to."""

    exit_code: int
    how: Literal["by itself", "canceled", "timeout"]
    out_of_memory: bool
    last_line: str = ""  # of its own output: of a script in Python, its error
    python: str = ""  # the interpreter, if the command is a script in Python

    def reason(self) -> str:
        """One sentence about a failure."""
        if self.exit_code > 128 and self.exit_code - 128 in set(signal.Signals):
            name = signal.Signals(self.exit_code - 128).name
            if self.out_of_memory:
                return f"killed by {name}; the system was out of memory"
            guess = ", perhaps out of memory" if name == "SIGKILL" else ""
            return f"killed by {name}{guess}"
        memory = "; one of its processes was killed, out of memory" if self.out_of_memory else ""
        said = f": {self.last_line}" if self.last_line else ""
        if self.python and self.last_line.startswith("ModuleNotFoundError: "):
            said += f"; it ran with {self.python}: install the module there, or list it in a file"
            said += " for --requirements"
        return f"the command ended with exit code {self.exit_code}{memory}{said}"


def run(
    command: PreparedCommand,
    events: Events,
    grace_s: float,
    deadline: float | None,
    started: Callable[[int], None],
) -> CommandResult:
    """Run it to its end, or end it when canceled or at the deadline (by the monotonic clock).

    `started` gets the number of its process, which is also that of its group. Call it from the main
    thread: the kernel kills the command when the thread that started it ends.
    """
    kills = out_of_memory_kills()
    process = _start(command)
    try:
        started(process.pid)
        how = _wait(process, events, deadline)
        _end(process, command, grace_s if how != "by itself" else min(grace_s, _LEFTOVER_GRACE_S))
    finally:
        signal_group(signal.SIGKILL, process.pid)
        kill_all(lambda: _running(command))
    code = process.wait()
    reap_adopted(awaited=0)
    return CommandResult(code if code >= 0 else 128 - code, how, out_of_memory_kills() > kills)


def _start(command: PreparedCommand) -> subprocess.Popen[bytes]:
    try:
        with command.log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603
                list(command.arguments),
                cwd=command.folder,
                env=dict(command.variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=dies_with_parent(),  # noqa: PLW1509 - one system call
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise BadInput(reason=f"{command.arguments[0]} cannot be started: {cause}") from None
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(_OOM_SCORE))
    return process


def _wait(
    process: subprocess.Popen[bytes], events: Events, deadline: float | None
) -> Literal["by itself", "canceled", "timeout"]:
    while True:
        if events.canceled:
            return "canceled"
        reap_adopted(process.pid)
        if process.poll() is not None:
            return "by itself"
        left = 60.0 if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return "timeout"
        events.wait(min(left, 60.0))


def _end(process: subprocess.Popen[bytes], command: PreparedCommand, grace_s: float) -> None:
    """SIGTERM to all that still runs, its whole group first, and wait until it ended or time is
    up."""
    if process.poll() is not None and not _running(command):
        return
    signal_group(signal.SIGTERM, process.pid)
    outside = set()
    for pid in _running(command):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) != process.pid:
                outside.add(pid)
    signal_processes(signal.SIGTERM, outside)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        reap_adopted(process.pid)
        if process.poll() is not None and not _running(command):
            return
        time.sleep(_POLL_S)


def _running(command: PreparedCommand) -> set[int]:
    """The processes of the command that still run."""
    rank = command.variables.get("NODE_RANK", "")
    return descendants(os.getpid()) or processes_of(command.job, rank)


def out_of_memory_kills(proc: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> int:
    """How many processes of this cgroup were killed for lack of memory; 0 if that is not
    counted."""
    kills = 0
    with contextlib.suppress(OSError, ValueError):
        for line in proc.read_text().splitlines():
            for file in _memory_files(line, root):
                pairs = [entry.split() for entry in file.read_text().splitlines()]
                kills += sum(int(p[1]) for p in pairs if len(p) == 2 and p[0] == "oom_kill")
    return kills


def _memory_files(line: str, root: Path) -> list[Path]:
    """In a container the path may be the host's, while the cgroup itself is at the root."""
    _, controllers, path = line.split(":", 2)
    relative = path.strip("/")
    if controllers == "memory":
        folders, name = [root / "memory" / relative, root / "memory"], "memory.oom_control"
    elif controllers == "":
        folders, name = [root / relative, root], "memory.events"
    else:
        return []
    return [folder / name for folder in folders if (folder / name).is_file()][:1]


def adopt_orphans() -> None:
    """From now on, processes below this one whose parent ends become children of this one."""
    call = prctl()
    if call is not None:
        call(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes_of(job: str, rank: str = "") -> set[int]:
    """Every living process of this user with the job's id in its environment, and with that rank:
    several nodes of one job may share a machine."""
    marks = {f"{JOB_VARIABLE}={job}".encode()}
    marks |= {f"NODE_RANK={rank}".encode()} if rank else set()
    pids = set()
    for pid in process_numbers() - {os.getpid(), os.getppid()}:
        with contextlib.suppress(OSError):
            content = Path(f"/proc/{pid}/environ").read_bytes()
            if marks <= set(content.split(b"\0")) and is_alive(process_fields(pid)):
                pids.add(pid)
    return pids


def signal_processes(number: int, pids: Collection[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def signal_group(number: int, group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_all(find: Callable[[], set[int]]) -> None:
    """SIGKILL until none is found: one may have forked between being found and being killed."""
    deadline = time.monotonic() + _KILL_LIMIT_S
    while (pids := find()) and time.monotonic() < deadline:
        signal_processes(signal.SIGKILL, pids)
        time.sleep(_KILL_POLL_S)


def reap_adopted(awaited: int) -> None:
    """Reap adopted processes that ended; `awaited` is left to its waiter."""
    while hasattr(os, "waitid"):  # without it nothing is adopted either
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == awaited:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)
