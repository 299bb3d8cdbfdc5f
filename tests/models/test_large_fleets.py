"""What a thousand runners may not do to a store: each thing here was found by `bench fleet-sim`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from edgeloop.models.leases import Leases
from edgeloop.models.plan import default_plan
from edgeloop.models.queue import Queue
from edgeloop.operate.fleet.demand import DemandReader
from edgeloop.runner import coordinator
from edgeloop.store import Record, Values
from edgeloop.testing import MemoryTable

MINUTE = 60.0


class Time:
    """A clock for queue and leases; scans of a table take as long as it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.scan_s = 1_000_000.0, 0.0
        fake = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        for module in ("queue", "leases"):
            monkeypatch.setattr(f"edgeloop.models.{module}.time", fake)


class SlowTable(MemoryTable):
    """A table without transactions or indexes that counts its calls."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self._time, self.calls = time, Counter[str]()

    def insert(self, key: str, values: Values) -> Record:
        self.calls["insert"] += 1
        return super().insert(key, values)

    def query(self, prefix: str = "", **more: object) -> Iterator[Record]:
        if not prefix:
            self.calls["scan"] += 1
            self._time.now += self._time.scan_s
        return super().query(prefix, **more)  # type: ignore[arg-type]


class Fleet:
    def __init__(self, time: Time) -> None:
        self.time, self.models, self.hints = time, SlowTable(time), SlowTable(time)

    def add(self, count: int) -> None:
        for number in range(count):
            name = f"m{number:04d}"
            self.models.insert(name, {"name": name, "status": "new"})

    def runner(self) -> Leases:
        return Leases(self.models, self.hints, default_plan(), clock=lambda: self.time.now)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


@pytest.fixture
def fleet(time: Time) -> Fleet:
    return Fleet(time)


def test_a_sweep_writes_only_the_hints_that_are_missing(fleet: Fleet):
    fleet.add(50)
    fleet.runner().sweep()
    lost = next(iter(fleet.hints.query("quantize|")))
    fleet.hints.delete(lost)
    fleet.hints.calls.clear()
    fleet.runner().sweep()
    assert fleet.hints.calls["insert"] == 1
    assert fleet.hints.get(lost.key) is not None


def test_only_one_of_several_runners_hides_a_hint(fleet: Fleet, time: Time):
    fleet.add(1)
    queue = Queue(fleet.hints, default_plan(), margin_s=15.0)
    queue.sweep(fleet.models, time.now)
    seen = [next(queue.open(["quantize"], time.now, fleet.models)) for _ in range(3)]
    hidden = [queue.hide(hint, time.now + MINUTE) for hint in seen]
    assert hidden[0] is not None and hidden[1:] == [None, None]


def test_a_sweep_that_takes_long_is_made_less_often_by_all_runners(fleet: Fleet):
    fleet.add(3)
    assert fleet.runner().sweep_if_due(10.0)
    fleet.time.now += 11
    assert fleet.runner().sweep_if_due(10.0)  # it was quick: every ten seconds
    fleet.time.now += 11
    fleet.time.scan_s = 15.0
    assert fleet.runner().sweep_if_due(10.0)  # two scans: half a minute
    fleet.time.now += 5 * MINUTE
    assert not fleet.runner().sweep_if_due(10.0)
    fleet.time.now += 6 * MINUTE
    fleet.time.scan_s = 0.0
    assert fleet.runner().sweep_if_due(10.0)
    fleet.time.now += 11
    assert fleet.runner().sweep_if_due(10.0)  # and it is quick again


def test_one_runner_looks_for_edited_priorities_where_that_takes_long(fleet: Fleet):
    fleet.add(40)
    fleet.runner().sweep()
    runners = [fleet.runner() for _ in range(10)]
    fleet.time.scan_s = 1.0
    for runner in runners:  # each finds out how long it takes
        assert runner.claim(["quantize"], "node") is not None
    fleet.models.calls.clear()
    fleet.time.now += MINUTE
    fleet.time.scan_s = 0.4
    for runner in runners:
        assert runner.claim(["quantize"], "node") is not None
    assert fleet.models.calls["scan"] == 1
    urgent = fleet.models.get("m0039")
    assert urgent is not None
    fleet.models.update(urgent, {"priority": 0})
    fleet.time.now += MINUTE
    claimed = [lease.model for runner in runners if (lease := runner.claim(["quantize"], "node"))]
    assert "m0039" in claimed


def test_idle_workers_look_every_second_then_less_often():
    waits = [coordinator._idle_s(number) for number in range(1, 200)]
    assert waits[:30] == [1.0] * 30
    assert max(waits) <= 1.2 * coordinator.LONGEST_IDLE_S
    assert min(waits[100:]) >= 0.8 * coordinator.LONGEST_IDLE_S
    assert len(set(waits[100:])) > 50  # not all of a fleet at once


def test_little_demand_is_counted_at_every_look_and_much_seldom(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    from edgeloop.operate.fleet import demand
    from edgeloop.operate.fleet.demand import Demand

    looks: list[int] = []
    waiting = {"linux": Demand(3, 2), "device": Demand()}
    monkeypatch.setattr(demand, "quick_demand", lambda _, most: (looks.append(most), waiting)[1])
    place = SimpleNamespace(experiment="one")
    reader = DemandReader(lambda: fleet.time.now)
    for _ in range(3):
        assert reader(place, 100)["linux"].ready == 3  # type: ignore[arg-type]
        fleet.time.now += 1
    assert len(looks) == 3
    waiting["linux"] = Demand(1_000, 2_000)
    for _ in range(30):
        assert reader(place, 100)["linux"].running == 2_000  # type: ignore[arg-type]
        fleet.time.now += 1
    assert len(looks) == 4
    reader(place, 100)  # type: ignore[arg-type]
    assert len(looks) == 5
