"""Work in threads, with results in order and a bound on what is in flight."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, ahead: int
) -> Generator[Result, None, None]:
    """`map` in threads. At most `ahead` items are started and not yet consumed: memory is bounded.

    Leaving the iterator early cancels what has not started and waits for the rest. Close it
    (`contextlib.closing`) where an interrupt may come between two results and work must have ended
    before anything is undone. Such iterators may feed each other.
    """
    pool = ThreadPoolExecutor(workers)
    pending: deque[Future[Result]] = deque()
    tasks = _Tasks(work)
    try:
        for item in items:
            pending.append(pool.submit(tasks.run, item))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        tasks.end()
        pool.shutdown(wait=True)


class _Tasks(Generic[Item, Result]):
    """Counts what runs. An executor joins only the threads that it has noted, and an interrupt can
    come after one was started and before it is noted."""

    def __init__(self, work: Callable[[Item], Result]) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._running = 0
        self._is_over = False

    def run(self, item: Item) -> Result:
        with self._changed:
            if self._is_over:
                raise CancelledError
            self._running += 1
        try:
            return self._work(item)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.wait_for(lambda: self._running == 0)
