"""What the workers of one runner know of each other: who is busy, and that there is news."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

LONGEST_LOOK_S = 5.0
IDLE_S = 1.0


class Shift:
    """A stage that one of them finished may be what another waits for, so idle workers wake at
    once."""

    def __init__(
        self, workers: int, first: Mapping[object, Collection[object]] | None = None
    ) -> None:
        self._workers = workers
        self._first = first or {}
        self._looking: set[object] = {other for many in self._first.values() for other in many}
        self._idle: set[object] = set()
        self._looked: dict[object, int] = {}
        self._changed = threading.Condition()
        self._over = False
        self.news = 0

    def look(self, worker: object) -> int:
        """Before looking for work: the news so far. Whoever has others that go first waits until
        those have looked: the second hand of one board must not take what another board, which
        has nothing, could do at once. Not for ever: they may hang."""
        with self._changed:
            others = self._first.get(worker, ())
            self._changed.wait_for(lambda: not self._looking.intersection(others), LONGEST_LOOK_S)
            self._idle.discard(worker)
            self._looking.add(worker)
            return self.news

    def looked(self, worker: object) -> None:
        """It has found something or nothing, or it ends: nobody waits for it."""
        with self._changed:
            self._looking.discard(worker)
            self._idle.discard(worker)
            self._changed.notify_all()

    def tell(self) -> None:
        with self._changed:
            self.news += 1
            self._looking |= self._idle  # they wake now, and look
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
                self._idle.add(worker)
                self._changed.wait_for(lambda: self._over or self.news != news, IDLE_S)
            self._looked.pop(worker)
            return not self._over
