"""The command: started so that it cannot outlive its keeper, ended with a grace period.

Was it the system that killed a process because memory ran out?
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edgeloop.errors import BadInput
from edgeloop.jobs.wrapper import processes
from edgeloop.jobs.wrapper.events import Events

_CGROUPS = Path("/sys/fs/cgroup")


def out_of_memory_kills(proc: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> int:
    """How many processes of this cgroup were killed so; 0 where that is not counted."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return 0
    return sum(_count(file) for line in lines for file in _files(line, root))


def _files(line: str, root: Path) -> list[Path]:
    """In a container the path may be that of the host, while the cgroup itself is at the root."""
    _, controllers, path = line.split(":", 2)
    relative = path.strip("/")
    if controllers == "memory":
        places, name = [root / "memory" / relative, root / "memory"], "memory.oom_control"
    elif controllers == "":
        places, name = [root / relative, root], "memory.events"
    else:
        return []
    return [place / name for place in places if (place / name).is_file()][:1]


def _count(file: Path) -> int:
    try:
        pairs = [line.split() for line in file.read_text().splitlines()]
        return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "oom_kill")
    except (OSError, ValueError):
        return 0


TIMED_OUT = 124
_LEFTOVER_GRACE_S = 5.0
_POLL_S = 0.05
_OOM_SCORE = 500  # where memory runs out the command goes before the wrapper, which can tell


@dataclass(frozen=True)
class Call:
    """A command ready to run: arguments, folder, log and variables."""

    job: str
    arguments: Sequence[str]
    folder: Path
    log: Path
    variables: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Ended:
    """How a command ended: by itself, or because it was made to."""

    exit_code: int
    how: Literal["by itself", "canceled", "timeout"]
    out_of_memory: bool

    def reason(self) -> str:
        """One sentence about an end that was no success."""
        if self.exit_code > 128 and self.exit_code - 128 in set(signal.Signals):
            name = signal.Signals(self.exit_code - 128).name
            if self.out_of_memory:
                return f"killed by {name}; the system was out of memory"
            guess = ", perhaps out of memory" if name == "SIGKILL" else ""
            return f"killed by {name}{guess}"
        memory = "; one of its processes was killed, out of memory" if self.out_of_memory else ""
        return f"the command ended with exit code {self.exit_code}{memory}"


def run(
    call: Call,
    events: Events,
    grace_s: float,
    deadline: float | None,
    started: Callable[[int], None],
) -> Ended:
    """Run it to its end, or end it: when canceled, or at the deadline (by the monotonic clock).

    `started` is told the number of its process, which is also that of its group. For the main
    thread: the kernel ends the command when the thread that started it ends.
    """
    kills = out_of_memory_kills()
    process = _start(call)
    try:
        started(process.pid)
        how = _wait(process, events, deadline)
        _end(process, call, grace_s if how != "by itself" else min(grace_s, _LEFTOVER_GRACE_S))
    finally:
        processes.send_group(signal.SIGKILL, process.pid)
        processes.end_all(lambda: _strays(call))
    code = process.wait()
    processes.bury_strangers(own=0)
    return Ended(code if code >= 0 else 128 - code, how, out_of_memory_kills() > kills)


def _start(call: Call) -> subprocess.Popen[bytes]:
    try:
        with call.log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603
                list(call.arguments),
                cwd=call.folder,
                env=dict(call.variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=processes.dies_with_parent(),  # noqa: PLW1509 - one system call
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise BadInput(reason=f"{call.arguments[0]} cannot be started: {said}") from None
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(_OOM_SCORE))
    return process


def _wait(
    process: subprocess.Popen[bytes], events: Events, deadline: float | None
) -> Literal["by itself", "canceled", "timeout"]:
    while True:
        if events.canceled:
            return "canceled"
        processes.bury_strangers(process.pid)
        if process.poll() is not None:
            return "by itself"
        left = 60.0 if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return "timeout"
        events.wait(min(left, 60.0))


def _end(process: subprocess.Popen[bytes], call: Call, grace_s: float) -> None:
    """Ask all that still runs, its whole group first, and wait until nothing does or time is up."""
    if process.poll() is not None and not _strays(call):
        return
    processes.send_group(signal.SIGTERM, process.pid)
    processes.send(signal.SIGTERM, {pid for pid in _strays(call) if _group(pid) != process.pid})
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        processes.bury_strangers(process.pid)
        if process.poll() is not None and not _strays(call):
            return
        time.sleep(_POLL_S)


def _strays(call: Call) -> set[int]:
    """All that the command started and that still runs, itself included."""
    rank = call.variables.get("NODE_RANK", "")
    return processes.descendants(os.getpid()) or processes.belonging_to(call.job, rank)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
