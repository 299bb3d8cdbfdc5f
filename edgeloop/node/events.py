"""What the supervisor waits for (a signal, the launcher, the end of a process), and what it does
meanwhile in threads."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Generic, TypeVar

from edgeloop._util.retry import retry
from edgeloop._util.system import ENDING_SIGNALS
from edgeloop.errors import EdgeloopError, StoreFull, StoreRefused, StoreUnavailable

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
