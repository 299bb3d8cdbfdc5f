"""What can happen while the keeper waits: a signal, a word from the front, the end of a process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Generic, TypeVar

Result = TypeVar("Result")

CANCEL = b"cancel"
_ASKED = "canceled"
_FRONT_GONE = "canceled: the process that the compute had started was killed"


class Canceled(Exception):
    """Somebody wants the job to end, and what was being prepared is of no use any more."""


class Events:
    """For the main thread alone. `canceled` is a reason once somebody wants the job to end."""

    def __init__(self, lifeline: int) -> None:
        self.canceled = ""
        self._lifeline: int | None = lifeline
        self._wakes, self._waker = os.pipe()
        for end in (self._wakes, self._waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._cancel)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # waiting must be woken, not more

    def wait(self, seconds: float) -> None:
        """Returns when something happened, or after that long."""
        watched = [self._wakes] + ([] if self._lifeline is None else [self._lifeline])
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        if self._lifeline in ready:
            self._listen(self._lifeline)

    def wake(self) -> None:
        """From another thread: there is something to see."""
        with contextlib.suppress(BlockingIOError):  # full of wakes already
            os.write(self._waker, b"\0")

    def _listen(self, lifeline: int) -> None:
        word = os.read(lifeline, 64)
        self.canceled = self.canceled or (_ASKED if word else _FRONT_GONE)
        if not word:
            os.close(lifeline)
            self._lifeline = None

    def _cancel(self, _number: int, _frame: FrameType | None) -> None:
        self.canceled = self.canceled or _ASKED


class Background(Generic[Result]):
    """One thing done beside, which a cancel leaves behind: it ends with the process."""

    def __init__(self, action: Callable[[], Result], events: Events) -> None:
        self._action = action
        self._events = events
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> Result:
        """The action's result or error; Canceled when the job was canceled meanwhile."""
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
        except BaseException as error:  # noqa: BLE001 - it is raised again by whoever waits
            self._error = error
        self._done.set()
        self._events.wake()
