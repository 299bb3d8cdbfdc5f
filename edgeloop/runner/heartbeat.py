"""Renews a lease while its stage runs, and notices when it is lost."""

from __future__ import annotations

import threading
from types import TracebackType

from edgeloop.errors import EdgeloopError, LeaseLost
from edgeloop.models import Lease, Leases


class Heartbeat:
    """A context manager around the work; `lease` is the current lease.

    An unreachable store is no reason to stop: the lease may still hold when it is back.
    """

    def __init__(self, leases: Leases, lease: Lease, interval_s: float) -> None:
        self._leases = leases
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.lease = lease
        self.lost = threading.Event()

    def begin(self) -> None:
        """What was claimed ahead begins now; raises LeaseLost when an idle runner has taken it."""
        if self.lease.queued:
            self.lease = self._leases.begin(self.lease)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._done.wait(self._interval_s):
            try:
                self.lease = self._leases.renew(self.lease)
            except LeaseLost:
                self.lost.set()
                return
            except EdgeloopError:
                continue
