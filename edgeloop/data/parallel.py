"""Work in threads with a bound on what is under way, and locks between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from edgeloop.errors import Conflict, LocalFileError

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCK_LIMIT_S = 3_600.0
_POLL_S = 0.05


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, ahead: int
) -> Iterator[Result]:
    """The results in the order of the items. No more than `ahead` items are begun and not taken,
    so memory is bounded by that; such iterators may feed each other."""
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def locked(path: Path | None, shared: bool = False) -> Iterator[None]:
    """Alone with `path` among the processes of this machine. A folder is locked as itself, with no
    file in it; any other path is made as an empty file. The lock ends with its process."""
    if path is None:
        yield
        return
    try:
        if not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        else:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
    try:
        _wait(descriptor, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int, path: Path, kind: int) -> None:
    deadline = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                reason = f"{path} has been in use by another process for an hour: is it stuck?"
                raise Conflict(reason=reason) from None
            time.sleep(_POLL_S)
        except OSError:  # a network folder that knows no locks: then there is none to wait for
            return
        else:
            return
