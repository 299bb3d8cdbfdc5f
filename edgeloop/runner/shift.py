"""What the workers of one runner know of each other: who is busy, and that there is news."""

from __future__ import annotations

import threading


class Shift:
    """A stage that one of them finished may be what another waits for, so idle workers wake at
    once."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._looked: dict[object, int] = {}
        self._changed = threading.Condition()
        self._over = False
        self.news = 0

    def tell(self) -> None:
        with self._changed:
            self.news += 1
            self._changed.notify_all()

    def leave(self) -> None:
        """A worker that cannot go on; the others end without it."""
        with self._changed:
            self._workers -= 1
            self._changed.notify_all()

    def wait(self, worker: object, news: int, drain: bool) -> bool:
        """Until there is news since `news`, or for a second; False when the shift is over: when
        every worker has looked since the last news, and found nothing."""
        with self._changed:
            if self.news != news:
                return True
            self._looked[worker] = news
            idle = [looked for looked in self._looked.values() if looked == self.news]
            if drain and len(idle) >= self._workers:
                self._over = True
                self._changed.notify_all()
            if not self._over:
                self._changed.wait(1.0)
            self._looked.pop(worker)
            return not self._over
