"""Locks between the runners of one machine and one user."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def machine_lock(name: str) -> Iterator[Callable[[], bool]]:
    """Gives a function that tries to take the lock. The system frees it if this process dies."""
    folder = Path(tempfile.gettempdir()) / f"edgeloop-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:

        def try_lock() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        yield try_lock
