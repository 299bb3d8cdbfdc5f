"""Locks between the processes of one machine. The system releases them when a process dies.

Where there is no `fcntl` (Windows), and on network folders that do not support locks, nothing is
locked: the callers' writes are safe without, only less economical.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from edgeloop.errors import Conflict, LocalFileError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

_POLL_S = 0.05


@contextlib.contextmanager
def file_lock(
    path: Path | None, shared: bool = False, timeout_s: float = 3_600.0
) -> Iterator[None]:
    """Waits for the lock on `path`; raises Conflict after `timeout_s`. None locks nothing.

    A folder is locked as itself, without a file in it; any other path is created as an empty file.
    """
    if path is None:
        yield
        return
    deadline = time.monotonic() + timeout_s
    while (descriptor := try_lock(path, shared)) is None:
        if time.monotonic() > deadline:
            reason = f"{path} has been in use by another process for {timeout_s:g} s: is it stuck?"
            raise Conflict(reason=reason)
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path, shared: bool = False) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process holds it."""
    try:
        if path.is_dir():
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
    if fcntl is None:
        return descriptor
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # a network folder without locks
        return descriptor
    return descriptor
