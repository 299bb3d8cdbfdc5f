"""A guard per test process: when that process has ended, however it ended, nothing of it is left.

A test process marks its environment, which everything that it starts inherits, detached
supervisors and servers of servers too. The guard is a process of its own, run by path. It waits for
the end of the test process, kills what still has the mark, and removes the folders of its servers.
After an ordinary end or Ctrl-C, fixtures have stopped their servers in order and it finds nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARK = "TEST_PROCESS_MARK"
_LIMIT_S = 20.0


def start() -> None:
    """Before the process starts anything else. A test process may be started by another one: what
    it starts from now on has its own mark."""
    if not hasattr(os, "pidfd_open"):  # not Linux
        return
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    os.environ[MARK] = os.urandom(3).hex()
    subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), os.environ[MARK]],
        env=unmarked,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def mark() -> dict[str, str]:
    """The mark as an environment, for a process that does not inherit ours."""
    return {MARK: os.environ[MARK]} if MARK in os.environ else {}


def folder_prefix(name: str) -> str:
    """Of a temporary folder that is removed with the processes, if not before. It is short: servers
    make sockets in their folders, whose paths have at most 107 characters."""
    return f"edgeloop-{name}-{os.environ.get(MARK, '')}"


def processes_of(mark: str) -> list[int]:
    entry = f"{MARK}={mark}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
        if entry in environ.split(b"\0"):
            found.append(int(process.name))
    return found


def folders_of(mark: str) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"edgeloop-*-{mark}*"))


def _main(process: int, mark: str) -> None:
    try:
        ended = os.pidfd_open(process)
    except ProcessLookupError:  # already
        ended = None
    if os.fork():  # the test process has no child to wait for, and now it may go on
        return
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if ended is not None:
        select.select([ended], [], [])
    _clean_up(mark)


def _clean_up(mark: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while (left := processes_of(mark)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    for folder in folders_of(mark):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
