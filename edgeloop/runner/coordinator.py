"""What the workers of one runner share: whose turn it is to look for work, which models this
machine takes, backoff, and work for idle moments."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from edgeloop.errors import DatasetUnavailable, DeviceUnavailable, MissingExtra, StoreDamaged
from edgeloop.models.leases import Lease

LONGEST_LOOK_S = 30.0
IDLE_S = 1.0
QUICK_LOOKS = 30  # after that many in vain, idle workers look less and less often,
LONGEST_IDLE_S = 5.0  # down to this: a thousand that look every second are a load
IDLE_WORK_S = 300.0
DECLINED_S = 600.0
LONGEST_DELAY_S = 60.0
LONGEST_DEVICE_DELAY_S = 10.0  # a board may be plugged in again at any moment
PATIENCE = 7
DATASET_PATIENCE = 2  # a look at it may take minutes
DEVICE_PATIENCE_S = 900.0


class ModelFilter:
    """Which models a runner takes: those that were asked for, without those that this machine
    turned out to be unable to do. These are tried again after a while: the machine may have been
    set up differently."""

    def __init__(self, only: Callable[[str], bool] = lambda model: True) -> None:
        self._only = only
        self._declined: dict[str, float] = {}

    def __call__(self, model: str) -> bool:
        return time.monotonic() >= self._declined.get(model, 0.0) and self._only(model)

    def decline(self, model: str) -> None:
        now = time.monotonic()
        self._declined = {name: until for name, until in self._declined.items() if until > now}
        self._declined[model] = now + DECLINED_S


class Backoff:
    """Exponential backoff after failures of the infrastructure (store unreachable, disk full, board
    gone), shared by all workers of a device."""

    def __init__(self, device_patience_s: float = DEVICE_PATIENCE_S) -> None:
        self._lock = threading.Lock()
        self._device_patience_s = device_patience_s
        self._retry_at = 0.0
        self._times = 0
        self._since = 0.0
        self.delay_s = 0.0
        self.error: Exception | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the next attempt."""
        return self._retry_at - time.monotonic()

    @property
    def is_of_device(self) -> bool:
        return isinstance(self.error, DeviceUnavailable)

    @property
    def is_too_much(self) -> bool:
        """Whether a drain should report the error instead of waiting any longer."""
        with self._lock:
            if isinstance(self.error, (MissingExtra, StoreDamaged, ImportError)):
                return True
            if isinstance(self.error, DeviceUnavailable):
                return time.monotonic() - self._since > self._device_patience_s
            is_of_data = isinstance(self.error, DatasetUnavailable)
            return self._times > (DATASET_PATIENCE if is_of_data else PATIENCE)

    def add(self, error: Exception) -> float:
        """Returns how long to wait. Failures of several workers at the same time count as one."""
        with self._lock:
            now = time.monotonic()
            if self.error is None:
                self._since = now
            self.error = error
            if now >= self._retry_at:
                on_device = isinstance(error, DeviceUnavailable)
                longest = LONGEST_DEVICE_DELAY_S if on_device else LONGEST_DELAY_S
                self.delay_s = min(max(0.25, 2 * self.delay_s), longest)
                self._times += 1
                self._retry_at = now + self.delay_s
            return self._retry_at - now

    def found_nothing(self) -> None:
        """A successful look: earlier failures no longer count."""
        with self._lock:
            self._times, self.error = 0, None

    def clear(self) -> None:
        """Work was done: the next failure starts with a short delay again."""
        with self._lock:
            self._times, self.delay_s, self.error = 0, 0.0, None


class DeviceSessions:
    """What the workers of one device know of each other: which ones have work, what has not begun,
    and the device's backoff.

    A worker holds `choosing` while it chooses its next stage, so that only one does at a time.
    """

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.choosing = threading.RLock()
        self.backoff = backoff or Backoff()
        self._claimed: dict[object, Lease] = {}

    def has_others(self, worker: object) -> bool:
        """Whether the device is busy: what this worker claims now is claimed ahead."""
        return any(other != worker for other in list(self._claimed))

    @property
    def last_rank(self) -> str:
        """The rank of the least urgent stage that has not begun."""
        return max(
            (lease.rank for lease in list(self._claimed.values()) if lease.queued), default=""
        )

    def claimed(self, worker: object, lease: Lease) -> None:
        self._claimed[worker] = lease

    def ended(self, worker: object) -> None:
        self._claimed.pop(worker, None)


class IdleWork:
    """A chore for when a runner has nothing to do, such as collecting orphaned files: at most once
    per interval, and in a thread of its own, so that new work does not wait for it. Runners that
    were started together do not all do it at the same time.

    An error is reported, once if it repeats, and never ends the runner.
    """

    def __init__(
        self,
        work: Callable[[], None] | None,
        report: Callable[[str], None],
        interval_s: float = IDLE_WORK_S,
    ) -> None:
        self._work, self._report, self._interval_s = work, report, interval_s
        self._due_at = time.monotonic() + random.uniform(0, interval_s)
        self._thread: threading.Thread | None = None
        self._last_error = ""

    def offer(self) -> None:
        """The runner is idle."""
        if self._work is None or time.monotonic() < self._due_at:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._due_at = time.monotonic() + random.uniform(0.8, 1.2) * self._interval_s
        self._thread = threading.Thread(target=self._run, name="idle-work", daemon=True)
        self._thread.start()

    def end(self, patience_s: float) -> None:
        """Wait a while for the chore to finish; it can be interrupted at any point."""
        if self._thread is not None:
            self._thread.join(patience_s)

    def _run(self) -> None:
        assert self._work is not None
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - a chore; work continues without it
            text = str(error) or type(error).__name__
            if text != self._last_error:
                self._report(text)
            self._last_error = text
        else:
            self._last_error = ""


class Coordinator:
    """A stage finished by one worker may be what another waits for, so idle ones wake at once."""

    def __init__(
        self,
        workers: int,
        first: Mapping[object, Collection[object]] | None = None,
        idle_s: float | None = None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """`first`: the workers that look before a given one. `idle_s`: how long all may be without
        work before they end; None: they never end, or, on a drain, at once. `on_idle` is called
        whenever no worker found any work."""
        self._workers = workers
        self._first = first or {}
        self._looking: set[object] = {other for many in self._first.values() for other in many}
        self._idle: set[object] = set()
        self._looked: dict[object, int] = {}
        self._in_vain: Counter[object] = Counter()
        self._changed = threading.Condition()
        self._over = False
        self._idle_s = idle_s
        self._on_idle = on_idle
        self._quiet_since = time.monotonic()
        self.news = 0

    def look(self, worker: object) -> int:
        """Called before looking for work; returns the current news counter.

        Waits until the workers that go first have looked: the second worker of one board must not
        take what another, idle board could do at once. The wait is limited, since they may hang."""
        with self._changed:
            others = self._first.get(worker, ())
            self._changed.wait_for(lambda: not self._looking.intersection(others), LONGEST_LOOK_S)
            self._idle.discard(worker)
            self._looking.add(worker)
            return self.news

    def disturbed(self) -> None:
        """A look failed, so whether there is work is unknown: that is not an idle moment."""
        with self._changed:
            self._quiet_since = time.monotonic()

    def looked(self, worker: object) -> None:
        """The worker has finished looking, or ends: no other waits for it."""
        with self._changed:
            self._looking.discard(worker)
            self._idle.discard(worker)
            self._changed.notify_all()

    def tell(self) -> None:
        """A stage ended: what depended on it may be ready, so idle workers look again."""
        with self._changed:
            self._quiet_since = time.monotonic()
            self._in_vain.clear()
            self.news += 1
            self._looking |= self._idle  # they wake and look
            self._changed.notify_all()

    def leave(self) -> None:
        """A worker that cannot continue; the others finish without it."""
        with self._changed:
            self._workers -= 1
            self._changed.notify_all()

    def wait(self, worker: object, news: int, drain: bool) -> bool:
        """Waits for news since `news`, for a second at most, or for a few after half a minute
        without work. Returns False when all is over: every worker has looked since the last news
        and found nothing, and on a drain or after `idle_s` that is the end."""
        with self._changed:
            if self.news != news:
                return True
            self._in_vain[worker] += 1
            self._looked[worker] = news
            idle = [looked for looked in self._looked.values() if looked == self.news]
            quiet_s = time.monotonic() - self._quiet_since
            is_end = drain if self._idle_s is None else quiet_s >= self._idle_s
            if len(idle) >= self._workers:
                if is_end:
                    self._over = True
                    self._changed.notify_all()
                else:
                    self._on_idle()
            if not self._over:
                self._idle.add(worker)
                idle_s = _idle_s(self._in_vain[worker])
                self._changed.wait_for(lambda: self._over or self.news != news, idle_s)
            self._looked.pop(worker)
            return not self._over


def _idle_s(in_vain: int) -> float:
    """How long to wait after so many looks in a row that found nothing."""
    if in_vain <= QUICK_LOOKS:
        return IDLE_S
    return random.uniform(0.8, 1.2) * min(IDLE_S + 0.1 * (in_vain - QUICK_LOOKS), LONGEST_IDLE_S)
