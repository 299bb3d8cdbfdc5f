"""What the runner's code uses of `threading`, `time` and `concurrent.futures`, in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, tzinfo
from types import SimpleNamespace, TracebackType
from typing import Any

from bench.fleet_sim.kernel import Kernel, Task


class VirtualEvent:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._is_set = kernel, False
        self._waiters: list[tuple[Task, int]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._kernel.wake(waiter)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            waiter = self._kernel.pause(timeout)
            self._waiters.append(waiter)
            self._kernel.suspend()
            if not self._is_set and waiter in self._waiters:
                self._waiters.remove(waiter)
        return self._is_set


class VirtualLock:
    """Reentrant, whatever the code asked for: no task waits for itself in what is simulated."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._owner: Task | None = None
        self._depth = 0
        self._waiters: deque[tuple[Task, int]] = deque()

    def acquire(self) -> bool:
        task = self._kernel.task
        while self._owner is not None and self._owner is not task:
            self._waiters.append(self._kernel.pause(None))
            self._kernel.suspend()
        self._owner, self._depth = task, self._depth + 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiters:
                self._kernel.wake(self._waiters.popleft())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class VirtualCondition(VirtualLock):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._asleep: list[tuple[Task, int]] = []

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        kernel = self._kernel
        deadline = None if timeout is None else kernel.now + timeout
        while not predicate():
            left = None if deadline is None else deadline - kernel.now
            if left is not None and left <= 0:
                return bool(predicate())
            waiter = kernel.pause(left)
            self._asleep.append(waiter)
            depth, self._depth = self._depth, 1
            self.release()
            kernel.suspend()
            if waiter in self._asleep:
                self._asleep.remove(waiter)
            self.acquire()
            self._depth = depth
        return True

    def notify_all(self) -> None:
        asleep, self._asleep = self._asleep, []
        for waiter in asleep:
            self._kernel.wake(waiter)


class VirtualThread:
    def __init__(
        self,
        kernel: Kernel,
        target: Callable[..., object],
        name: str = "",
        args: Iterable[Any] = (),
        daemon: bool = False,
    ) -> None:
        self._kernel, self._call = kernel, lambda: target(*args)
        self._over = VirtualEvent(kernel)

    def start(self) -> None:
        self._kernel.spawn(self._run)

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        return not self._over.is_set()

    def _run(self) -> None:
        try:
            self._call()
        finally:
            self._over.set()


class VirtualFuture:
    def __init__(self, kernel: Kernel) -> None:
        self._over = VirtualEvent(kernel)
        self._value: object = None
        self._error: Exception | None = None

    def done(self) -> bool:
        return self._over.is_set()

    def exception(self) -> Exception | None:
        self._over.wait()
        return self._error

    def result(self) -> Any:
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def run(self, call: Callable[[], object]) -> None:
        try:
            self._value = call()
        except Exception as error:
            self._error = error
        self._over.set()


class VirtualExecutor:
    """One thread, which runs what it is given in order."""

    def __init__(self, kernel: Kernel, workers: int = 1, name: str = "") -> None:
        self._kernel = kernel
        self._last: VirtualFuture | None = None

    def submit(self, call: Callable[[], object]) -> VirtualFuture:
        before, future = self._last, VirtualFuture(self._kernel)
        self._last = future

        def run() -> None:
            if before is not None:
                before.exception()
            future.run(call)

        self._kernel.spawn(run)
        return future

    def __enter__(self) -> VirtualExecutor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._last is not None:
            self._last.exception()


def virtual_threading(kernel: Kernel) -> SimpleNamespace:
    def made(kind: Callable[..., object]) -> Callable[..., object]:
        return lambda *args, **more: kind(kernel, *args, **more)

    return SimpleNamespace(
        Event=made(VirtualEvent),
        Lock=made(VirtualLock),
        RLock=made(VirtualLock),
        Condition=made(VirtualCondition),
        Thread=made(VirtualThread),
    )


def virtual_time(kernel: Kernel) -> SimpleNamespace:
    def clock() -> float:
        return kernel.now + kernel.node.skew_s

    def uptime() -> float:
        return kernel.now

    return SimpleNamespace(time=clock, monotonic=uptime, perf_counter=uptime, sleep=kernel.sleep)


def virtual_datetime(kernel: Kernel) -> type[datetime]:
    class VirtualDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(kernel.now + kernel.node.skew_s, tz)

    return VirtualDatetime
