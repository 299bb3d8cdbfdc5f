"""What a call to a store costs in time, and what it is counted against: PostgreSQL and Azure."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bench.fleet_sim.kernel import EPOCH, Kernel
from edgeloop._util.retry import PATIENCE_S, RateLimit
from edgeloop.errors import StoreLimited, StoreUnavailable

PAGE_ENTITIES = 1_000  # Azure answers with at most this many


@dataclass
class Meter:
    """All requests, by what they were, by second, and by what they are limited by."""

    requests: Counter[str] = field(default_factory=Counter)
    by_second: Counter[int] = field(default_factory=Counter)
    entities: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    throttled: Counter[str] = field(default_factory=Counter)
    busy_s: float = 0.0  # of the server's processors
    queued_s: float = 0.0  # waited for them
    refused: int = 0  # during outages

    def count(self, what: str, second: int, requests: int) -> None:
        self.requests[what] += requests
        self.by_second[second] += requests


@dataclass(frozen=True)
class Outage:
    """The store is away for `length_s`, from `begins_s` after the start."""

    begins_s: float
    length_s: float

    def covers(self, now: float) -> bool:
        return self.begins_s <= now - EPOCH < self.begins_s + self.length_s

    def cuts(self, begin: float, end: float) -> bool:
        """Whether it begins while an answer is under way."""
        return begin - EPOCH < self.begins_s <= end - EPOCH


class Backend(ABC):
    """A call in three steps: `enter` (the store may be away, or refuse), the effect, `leave` (the
    answer takes its time, and may never arrive)."""

    name: str
    is_atomic: bool

    def __init__(
        self, kernel: Kernel, profile: Mapping[str, Any], outages: Sequence[Outage], random: Random
    ) -> None:
        self.kernel, self.profile, self.meter = kernel, profile, Meter()
        self.outages, self.random = outages, random
        self.round_trip_s = profile["round_trip_ms"] / 1000
        self.spread = float(profile["spread"])
        self._in_flight: Counter[int] = Counter()
        self.connections: dict[int, int] = {}
        self.most_connections = 0

    def enter(self, what: str, partition: str, requests: int = 1, entities: int = 1) -> None:
        self.kernel.check_alive()
        self._check_outage()

    @abstractmethod
    def leave(
        self, rows: int = 0, scanned: int = 0, requests: int = 1, writes: bool = False
    ) -> None:
        """The call costs its time."""

    def forget(self, node: int) -> None:
        """A machine is gone, and its connections with it."""
        self.connections.pop(node, None)
        self._in_flight.pop(node, None)

    def _check_outage(self) -> None:
        if any(outage.covers(self.kernel.now) for outage in self.outages):
            self.meter.refused += 1
            self.kernel.sleep(self.profile["timeout_s"])
            raise self._away()

    def _answer(self, latency_s: float) -> None:
        began = self.kernel.now
        self.kernel.sleep(latency_s)
        if self.outages and any(o.cuts(began, self.kernel.now) for o in self.outages):
            self.meter.refused += 1
            raise self._away()

    def _trip_s(self) -> float:
        return self.round_trip_s * math.exp(self.random.gauss(0.0, self.spread))

    def _away(self) -> StoreUnavailable:
        return StoreUnavailable(store=f"simulated {self.name}", reason="it is away")


class PostgresBackend(Backend):
    """One server: a statement waits for a free core. Runners keep their connections open."""

    name, is_atomic = "postgres", True

    def __init__(
        self, kernel: Kernel, profile: Mapping[str, Any], outages: Sequence[Outage], random: Random
    ) -> None:
        super().__init__(kernel, profile, outages, random)
        self._free_at = [0.0] * int(profile["limits"]["cores"])
        self._statement_s = profile["statement_cpu_ms"] / 1000
        self._row_s = profile["row_cpu_us"] / 1e6
        self._commit_s = profile["commit_ms"] / 1000
        self._open = 0

    def enter(self, what: str, partition: str, requests: int = 1, entities: int = 1) -> None:
        super().enter(what, partition)
        self.meter.count(what, int(self.kernel.now - EPOCH), requests)
        self._connect(id(self.kernel.node))

    def leave(
        self, rows: int = 0, scanned: int = 0, requests: int = 1, writes: bool = False
    ) -> None:
        node, now = id(self.kernel.node), self.kernel.now
        work_s = requests * self._statement_s + (rows + scanned) * self._row_s
        begin = max(now, heapq.heappop(self._free_at))
        heapq.heappush(self._free_at, begin + work_s)
        self.meter.busy_s += work_s
        self.meter.queued_s += begin - now
        took_s = (begin - now) + work_s + (self._commit_s if writes else 0.0)
        try:
            self._answer(took_s + requests * self._trip_s())
        finally:
            self._in_flight[node] -= 1

    def _connect(self, node: int) -> None:
        """A pool keeps what was in use at once."""
        self._in_flight[node] += 1
        before = self.connections.get(node, 0)
        if self._in_flight[node] > before:
            self.connections[node] = before + 1
            self._open += 1
            self.most_connections = max(self.most_connections, self._open)

    def forget(self, node: int) -> None:
        self._open -= self.connections.get(node, 0)
        super().forget(node)


class AzureBackend(Backend):
    """A storage account. What is above its limits is answered with 503."""

    name, is_atomic = "azure", False

    def __init__(
        self, kernel: Kernel, profile: Mapping[str, Any], outages: Sequence[Outage], random: Random
    ) -> None:
        super().__init__(kernel, profile, outages, random)
        limits = profile["limits"]
        self._requests_per_s, self._entities_per_s = (
            limits["requests_per_s"],
            limits["entities_per_s"],
        )
        self._entity_s = profile["entity_us"] / 1e6
        self._scanned_s = profile["scanned_us"] / 1e6
        self._limits: dict[int, RateLimit] = {}

    def enter(self, what: str, partition: str, requests: int = 1, entities: int = 1) -> None:
        """A call of several requests is counted where it begins; its pages are paced by `leave`.
        The product's own `RateLimit`, one for each machine, decides how long to wait."""
        super().enter(what, partition)
        meter, node = self.meter, id(self.kernel.node)
        used = meter.entities[partition] if partition else None

        def send() -> bool:
            second = int(self.kernel.now - EPOCH)
            meter.count(what, second, requests)
            is_over = meter.by_second[second] > self._requests_per_s
            if is_over or (used is not None and used[second] >= self._entities_per_s):
                meter.throttled["account" if is_over else partition] += 1
                self.kernel.sleep(self._trip_s())
                return False
            if used is not None:
                used[second] += entities
            return True

        if node not in self._limits:
            self._limits[node] = RateLimit(lambda: self.kernel.now, self.kernel.sleep)
        if not self._limits[node].keep(send, lambda is_taken: None if is_taken else 0.0):
            raise StoreLimited(store="simulated azure", reason="503", seconds=PATIENCE_S)

    def forget(self, node: int) -> None:
        super().forget(node)
        self._limits.pop(node, None)

    def leave(
        self, rows: int = 0, scanned: int = 0, requests: int = 1, writes: bool = False
    ) -> None:
        took_s = rows * self._entity_s + scanned * self._scanned_s
        self._answer(took_s + sum(self._trip_s() for _ in range(requests)))


BACKENDS: Mapping[str, type[Backend]] = {"postgres": PostgresBackend, "azure": AzureBackend}
