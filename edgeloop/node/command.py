"""The command and all of its processes: started so that they cannot outlive the supervisor, ended
with a grace period.

A daemon leaves its group and its parent, but it keeps its environment, which has the job's id, and
the supervisor becomes its new parent (a "subreaper"). One of the two finds it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edgeloop._util.system import (
    descendants,
    dies_with_parent,
    is_alive,
    prctl,
    process_fields,
    process_numbers,
)
from edgeloop.errors import BadInput
from edgeloop.node.events import Events

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
    reap_adopted(own=0)
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
    found = set()
    for pid in process_numbers() - {os.getpid(), os.getppid()}:
        with contextlib.suppress(OSError):
            content = Path(f"/proc/{pid}/environ").read_bytes()
            if marks <= set(content.split(b"\0")) and is_alive(process_fields(pid)):
                found.add(pid)
    return found


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


def reap_adopted(own: int) -> None:
    """Reap adopted processes that ended; `own` is left to whoever waits for it."""
    while hasattr(os, "waitid"):  # without it nothing is adopted either
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == own:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)
