"""What a runner renews while it works: the lease of a stage, and its own health file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from edgeloop.errors import EdgeloopError, LeaseLost, LocalFileError
from edgeloop.models.leases import Lease, Leases
from edgeloop.models.runners import CurrentStage
from edgeloop.runner.health import BEAT_S, write_health


class Watched(Protocol):
    """A worker, as its health is judged."""

    served_device: str
    progressed_s: float  # when, by the monotonic clock

    @property
    def doing(self) -> CurrentStage | None: ...


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


class HealthBeat:
    """A context manager around a runner: keeps its health file. Without a file it does nothing.

    A worker is stuck when nothing of its device has shown progress for `stuck_s`: long stages show
    it piece by piece, and so does whatever waits with a limit, be it for a store that is away.
    """

    def __init__(self, file: Path | None, stuck_s: float) -> None:
        self._file = file
        self._stuck_s = stuck_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._workers: Sequence[Watched] = ()
        self._not_ready: Callable[[], str] = lambda: "it is starting"

    def watch(self, workers: Sequence[Watched], not_ready: Callable[[], str]) -> None:
        """From now on these must show progress; `not_ready` says why no work is taken, if so."""
        self._workers, self._not_ready = workers, not_ready

    def __enter__(self) -> HealthBeat:
        if self._file is not None:
            write_health(self._file, "", self._not_ready())  # a file that cannot be: said at once
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is None:
            return
        self._done.set()
        self._thread.join(BEAT_S)
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _run(self) -> None:
        assert self._file is not None
        while not self._done.wait(BEAT_S):
            with suppress(LocalFileError):  # a full disk: the probe notices if it lasts
                write_health(self._file, self._stuck(), self._not_ready())

    def _stuck(self) -> str:
        """Sessions of one device wait for each other, so any of them speaks for all."""
        newest: dict[str, Watched] = {}
        for worker in self._workers:
            other = newest.setdefault(worker.served_device, worker)
            if worker.progressed_s > other.progressed_s:
                newest[worker.served_device] = worker
        for name, worker in newest.items():
            silent_s = time.monotonic() - worker.progressed_s
            if silent_s > self._stuck_s:
                what = f"{worker.doing.stage} {worker.doing.model}" if worker.doing else "no stage"
                where = name or "the machine itself"
                return f"{where} has made no progress for {silent_s:.0f} s ({what})"
        return ""
