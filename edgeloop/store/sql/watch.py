"""An end to waiting for a server that is no longer heard of.

The server limits how long a statement takes, but a client whose requests or answers are swallowed
on the way, for example by a firewall or a pooler, would wait for ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

LOOK_EVERY_S = 1.0


class ConnectionWatch:
    """Ends sockets over which an answer has been awaited for too long: their users then meet the
    error of a lost connection. One thread serves all, and a forked child starts its own."""

    _thread: threading.Thread | None
    _deadlines: dict[object, tuple[float, int]]

    def __init__(self) -> None:
        self.start_anew()

    @contextlib.contextmanager
    def over(self, descriptor: int, limit_s: float) -> Iterator[None]:
        """The socket is in use meanwhile. It is never ended after this: another may have its number
        by then."""
        use = object()
        with self._lock:
            self._deadlines[use] = time.monotonic() + limit_s, descriptor
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="connections", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._deadlines.pop(use, None)

    def start_anew(self) -> None:
        """Also in a forked child, where the parent's thread is not."""
        self._lock = threading.Lock()
        self._thread = None
        self._deadlines = {}

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            with self._lock:
                now = time.monotonic()
                for deadline, descriptor in self._deadlines.values():
                    if deadline < now:
                        _end(descriptor)


def _end(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)


WATCH = ConnectionWatch()
os.register_at_fork(after_in_child=WATCH.start_anew)
