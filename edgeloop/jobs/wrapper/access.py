"""Newer access to the store for a job that runs for longer than its first one is valid.

A signature ends by itself. Whoever looks at a job that runs for days, with a command or the portal,
leaves a newer one beside its ticket, and the job takes it before its own ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from edgeloop.errors import EdgeloopError
from edgeloop.jobs.protocol.codec import from_json
from edgeloop.jobs.protocol.ticket import access_key, expires_at
from edgeloop.store import Access, Blobs

MARGIN_S = 3 * 24 * 3600.0  # before its end, an access is worth replacing
LOOK_S = 600.0


class AccessRenewal:
    def __init__(
        self, blobs: Blobs, access: Access, job: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._blobs = blobs
        self._key = access_key(job)
        self._ends = expires_at(access)
        self._clock = clock
        self._looked = float("-inf")

    def look(self) -> None:
        """Called at each heartbeat; now and then it reads one small file, if that is worth it."""
        now = self._clock()
        if self._ends is None or now < self._ends - MARGIN_S or now - self._looked < LOOK_S:
            return
        self._looked = now
        renew = getattr(self._blobs, "renew", None)
        if renew is None:
            return
        with suppress(EdgeloopError, ValueError, TypeError, KeyError, AttributeError):
            access = from_json(Access, self._blobs.read_document(self._key))
            ends = expires_at(access)
            if ends is not None and ends > self._ends:
                renew(access)
                self._ends = ends
