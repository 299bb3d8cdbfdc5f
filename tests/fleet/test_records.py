"""The record of a fleet: changed by compare-and-set, and its supervisor fenced by a token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from edgeloop.errors import Conflict, NotFound, SupervisorReplaced
from edgeloop.operate.fleet.records import Bounds, FleetObservation, Fleets, FleetSpec
from tests.store.passing import ClockedStore

SPEC = FleetSpec(runners=Bounds(0, 3), compute="local")


@pytest.fixture
def store() -> ClockedStore:
    return ClockedStore()


def test_a_fleet_is_wanted_changed_and_forgotten(store: ClockedStore):
    fleets = Fleets(store)
    record, before = fleets.declare(SPEC, "local", "here", {"task": "tensors"})
    assert (record.generation, record.state, before) == (1, "up", None)
    assert record.settings == {"task": "tensors"} and record.bounds == Bounds(0, 3)
    again, before = fleets.declare(SPEC, "local", "here")
    assert again.generation == 2 and before == record
    assert fleets.scale("fleet", Bounds(4, 32)).bounds == Bounds(4, 32)
    assert fleets.end("fleet", now=False).state == "draining"
    assert fleets.end("fleet", now=True).state == "ending"
    assert fleets.end("fleet", now=False).state == "ending"
    assert not fleets.remove(record), "somebody changed it since"
    assert fleets.remove(fleets.named("fleet"))
    with pytest.raises(NotFound, match="no fleet 'fleet'; start one"):
        fleets.named("fleet")


def test_a_fleet_stays_where_it_is(store: ClockedStore):
    fleets = Fleets(store)
    fleets.declare(SPEC, "local", "here")
    with pytest.raises(Conflict, match="is on here: end it there"):
        fleets.declare(SPEC, "local", "there")


def test_of_two_supervisors_one_lives(store: ClockedStore):
    fleets = Fleets(store)
    fleets.declare(SPEC, "local", "here")

    def claim(number: int) -> bool:
        try:
            return bool(Fleets(store).claim("fleet", f"process {number}").supervisor)
        except Conflict:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(8))) == 1


def test_a_silent_supervisor_is_replaced_and_cannot_report(store: ClockedStore):
    fleets = Fleets(store)
    fleets.declare(SPEC, "local", "here")
    first = fleets.claim("fleet", "first")
    store.time_s += 19
    with pytest.raises(Conflict, match="has a supervisor already: first"):
        fleets.claim("fleet", "second")
    store.time_s += 2
    second = fleets.claim("fleet", "second")
    with pytest.raises(SupervisorReplaced):
        fleets.report(first, FleetObservation(running=7))
    fleets.release(first)  # does nothing to the other
    reported = fleets.report(second, FleetObservation(running=2, note="x" * 900))
    assert (reported.observed.running, len(reported.observed.note)) == (2, 500)
    fleets.release(reported)
    assert fleets.claim("fleet", "third").is_supervised


def test_a_report_keeps_what_people_wanted_meanwhile(store: ClockedStore):
    fleets = Fleets(store)
    fleets.declare(SPEC, "local", "here")
    mine = fleets.claim("fleet", "mine")
    fleets.scale("fleet", Bounds(1, 9))
    after = fleets.report(mine, FleetObservation(wanted=3))
    assert after.bounds == Bounds(1, 9) and after.observed.wanted == 3
    assert (after.seen, after.generation) == (1, 2), "it has not obeyed the second yet"


def test_what_a_newer_version_wrote_can_be_read(store: ClockedStore):
    fleets = Fleets(store)
    record, _ = fleets.declare(SPEC, "local", "here")
    assert record.row is not None
    changes = {"observed": '{"running": 1, "sparkle": 2}', "spec": '{"cpus": 3, "sparkle": 1}'}
    store.fleets().update(record.row, {**changes, "more": 1})
    read = fleets.named("fleet")
    assert (read.observed.running, read.spec.cpus) == (1, 3)
