"""Processes of a command, all of them: children, their children, and those that went astray.

A daemon leaves its group and its parent, but it keeps its environment, where the job's id stands,
and the keeper is its new parent (a "subreaper"). One of the two finds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

JOB_VARIABLE = "EDGELOOP_JOB_ID"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.01
_KILL_LIMIT_S = 30.0


def adopt_orphans() -> None:
    """From now on, processes below this one whose parent ends become children of this one."""
    prctl = _prctl()
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dies_with_parent() -> Callable[[], None] | None:
    """To be run in a new process before its program: the kernel kills it when its starter ends."""
    prctl, parent = _prctl(), os.getpid()
    if prctl is None:
        return None

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _prctl() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    return ctypes.CDLL(None).prctl


def born(pid: int) -> str:
    """When a process began, in the kernel's own count; empty where there is none."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def descendants(root: int) -> set[int]:
    """Every living process below `root`, which is not among them."""
    parents = {pid: int(fields[1]) for pid in _all() if (fields := _stat(pid)) and _alive(fields)}
    found: set[int] = set()
    fresh = {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found - {root}
        found |= fresh
    return found


def belonging_to(job: str, rank: str = "") -> set[int]:
    """Every living process of this user that was started with the job's id in its environment, and
    with that rank: nodes of one job may be one machine."""
    marks = {f"{JOB_VARIABLE}={job}".encode()}
    marks |= {f"NODE_RANK={rank}".encode()} if rank else set()
    found = set()
    for pid in _all() - {os.getpid(), os.getppid()}:
        with contextlib.suppress(OSError):
            content = Path(f"/proc/{pid}/environ").read_bytes()
            if marks <= set(content.split(b"\0")) and _alive(_stat(pid)):
                found.add(pid)
    return found


def send(signal_number: int, processes: Collection[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_number)


def send_group(signal_number: int, group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal_number)


def end_all(find: Callable[[], set[int]]) -> None:
    """SIGKILL until none is found: one may have forked between being found and being killed."""
    deadline = time.monotonic() + _KILL_LIMIT_S
    while (found := find()) and time.monotonic() < deadline:
        send(signal.SIGKILL, found)
        time.sleep(_POLL_S)


def bury_strangers(own: int) -> None:
    """Adopted processes that ended; the end of `own` is left for whoever waits for it."""
    while hasattr(os, "waitid"):  # without it nothing is adopted either
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == own:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)


def _all() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
    except OSError:  # not Linux: the command's group is all that can be reached
        return set()


def _stat(pid: int) -> list[str]:
    """The fields after the program's name, which may itself hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _alive(fields: list[str]) -> bool:
    return bool(fields) and fields[0] not in ("Z", "X")
