"""Leases on every store: who may write, and what becomes of those who may not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from azure.data.tables import UpdateMode

from edgeloop.errors import BadInput, LeaseLost, StoreUnavailable
from edgeloop.models.catalog import Catalog
from edgeloop.models.columns import runs_of
from edgeloop.models.leases import Lease, Leases, Outcome
from edgeloop.models.plan import REMEMBERED, SILENT_ATTEMPTS, default_plan, records_of
from edgeloop.store import Changes, Record, Store, Table, Values
from edgeloop.store.azure import AzureTable
from edgeloop.store.location import unversioned, unversioned_table
from edgeloop.store.sql import SqlTable
from edgeloop.testing import MemoryStore, MemoryTable
from tests.conftest import StoreUnderTest

EVERYTHING = ("quantize", "onnx", "device", "device-accuracy", "device-float")
CONVERTED = {
    "quantized": True,
    "macs": 1,
    "params": 1,
    "shape": "[1]",
    "output_shape": "[1]",
    "toolchain": "qnn",
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Farm:
    """One experiment with a clock that tests set."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = Clock()
        self.plan = default_plan(benchmark_runs=2)
        self.models = store.models("farm")
        self.hints = store.queue("farm")
        self.catalog = Catalog(
            store, "farm", self.plan, node="here", margin_s=5.0, clock=self.clock
        )

    def leases(self, **settings: float) -> Leases:
        return Leases(
            self.models,
            self.hints,
            self.plan,
            **{"lease_s": 60.0, "margin_s": 5.0, "max_attempts": 3, **settings},
            clock=self.clock,
        )

    def add(self, name: str, **columns: object) -> None:
        row = {"name": name, "status": "new", "model_date": "2026-01-01", **columns}
        self.models.insert(name, row)

    def row(self, name: str) -> Values:
        row = self.models.get(name)
        assert row is not None
        return row.values


@pytest.fixture
def farm(store: Store) -> Farm:
    return Farm(store)


@pytest.fixture
def quick_farm() -> Farm:
    return Farm(MemoryStore())


def claim(leases: Leases, node: str) -> Lease:
    lease = leases.claim(["quantize"], node)
    assert lease is not None
    return lease


def result(lease: Lease) -> Outcome:
    if lease.stage == "convert":
        return Outcome(CONVERTED)
    if lease.stage == "benchmark":
        runs = [*runs_of(lease.row.values), 0.002]
        return Outcome({"total_inference_avg": json.dumps(runs), "mean": 0.002, "stdev": 1.5})
    return Outcome({lease.stage: 0.5})


def test_a_model_walks_through_all_its_stages_in_order_of_priority(farm: Farm) -> None:
    farm.add("otter")
    leases = farm.leases()
    walked = []

    while lease := leases.claim(EVERYTHING, "bench-1"):
        walked.append(lease.stage)
        leases.commit(lease, result(lease))

    assert walked == ["convert", "benchmark", "benchmark", "f1_onnx", "f1_1k", "f1_1k_f", "f1_10k"]
    row = farm.row("otter")
    assert row["status"] == "complete"
    assert row["node"] == ""
    assert row["completed"] == "1970-01-12T13:46:40+00:00"
    assert [hint.key for hint in farm.hints.query()] == ["!swept"]


def test_while_it_is_held_a_row_says_who_does_what_since_when(farm: Farm) -> None:
    farm.add("otter")
    lease = farm.leases().claim(EVERYTHING, "bench-1")
    assert lease is not None

    row = farm.row("otter")

    assert (row["status"], row["node"]) == ("running convert", "bench-1")
    assert row["since"] == "1970-01-12T13:46:40+00:00"
    record = records_of(row)["convert"]
    assert (record.owner, record.token, record.attempts) == ("bench-1", lease.token, 1)
    assert record.expires == farm.clock() + 60.0


def test_a_held_stage_is_not_given_to_another_but_a_different_stage_is(farm: Farm) -> None:
    farm.add("otter")
    first = farm.leases().claim(EVERYTHING, "bench-1")
    second = farm.leases().claim(EVERYTHING, "bench-2")
    third = farm.leases().claim(EVERYTHING, "bench-3")

    assert first is not None and second is not None
    assert (first.stage, second.stage, third) == ("convert", "f1_onnx", None)
    assert farm.row("otter")["node"] == "bench-1, bench-2"
    assert farm.row("otter")["status"] == "running convert, f1_onnx"
    farm.leases().commit(first, result(first))
    farm.leases().commit(second, result(second))
    assert farm.row("otter")["f1_onnx"] == 0.5
    assert farm.row("otter")["quantized"] is True


def test_a_silent_holder_is_replaced_after_expiry_and_margin_and_can_write_nothing(
    farm: Farm,
) -> None:
    farm.add("otter")
    leases = farm.leases()
    old = claim(leases, "sleeper")
    farm.clock.now += 64.9
    assert leases.claim(["quantize"], "other") is None
    farm.clock.now += 0.2
    new = leases.claim(["quantize"], "other")
    assert new is not None and new.token != old.token and new.attempt == 2

    for late in (
        lambda: leases.commit(old, result(old)),
        lambda: leases.fail(old, "late"),
        lambda: leases.release(old),
        lambda: leases.renew(old),
    ):
        with pytest.raises(LeaseLost):
            late()

    assert "quantized" not in farm.row("otter")
    assert records_of(farm.row("otter"))["convert"].token == new.token
    leases.commit(new, result(new))
    assert farm.row("otter")["quantized"] is True


def test_a_short_lease_is_taken_over_as_soon_as_it_is_over(farm: Farm) -> None:
    """The hint of what a dead machine held is not hidden for longer than its lease."""
    farm.add("otter")
    leases = farm.leases(lease_s=2.0, margin_s=0.5)
    assert leases.claim(["quantize"], "dead") is not None
    farm.clock.now += 2.6
    taken = leases.claim(["quantize"], "other")
    assert taken is not None and taken.attempt == 2


def test_a_holder_that_renews_keeps_its_lease(farm: Farm) -> None:
    farm.add("otter")
    leases = farm.leases()
    lease = claim(leases, "bench-1")
    for _ in range(5):
        farm.clock.now += 50
        lease = leases.renew(lease)
        assert farm.leases().claim(["quantize"], "other") is None
    leases.commit(lease, result(lease))
    assert farm.row("otter")["quantized"] is True


def test_a_lease_that_expired_but_was_not_taken_may_still_commit(farm: Farm) -> None:
    farm.add("otter")
    lease = claim(farm.leases(), "bench-1")
    farm.clock.now += 10_000
    farm.leases().commit(lease, result(lease))
    assert farm.row("otter")["quantized"] is True


def test_after_three_failures_the_model_rests_in_error_until_reset(farm: Farm) -> None:
    farm.add("otter")
    leases = farm.leases()
    for attempt in (1, 2, 3):
        lease = leases.claim(["quantize"], "bench-1")
        assert lease is not None and lease.attempt == attempt
        leases.fail(lease, "unsupported operator Foo")
    row = farm.row("otter")
    assert (row["status"], row["error"]) == ("error", "convert: unsupported operator Foo")
    assert farm.leases().claim(EVERYTHING, "bench-1") is None

    farm.catalog.reset("otter")

    assert "error" not in farm.row("otter")
    again = farm.leases().claim(["quantize"], "bench-1")
    assert again is not None and again.attempt == 1


def test_a_hopeless_model_rests_after_one_attempt(farm: Farm) -> None:
    farm.add("otter")
    lease = claim(farm.leases(), "bench-1")
    farm.leases().fail(lease, "two inputs", is_final=True)
    assert farm.row("otter")["status"] == "error"
    assert farm.leases().claim(EVERYTHING, "bench-1") is None


def test_one_failure_is_forgotten_once_the_stage_succeeds(farm: Farm) -> None:
    farm.add("otter")
    leases = farm.leases()
    first = claim(leases, "bench-1")
    leases.fail(first, "flaky")
    assert farm.row("otter")["error"] == "convert: flaky"
    second = claim(leases, "bench-1")
    leases.commit(second, result(second))
    assert "error" not in farm.row("otter")


def test_a_model_that_kills_every_runner_rests_in_error_and_says_so(farm: Farm) -> None:
    farm.add("killer")
    leases = farm.leases()
    for _ in range(10):
        assert leases.claim(["quantize"], "victim") is not None
        farm.clock.now += 1_000
    assert leases.claim(["quantize"], "victim") is None
    row = farm.row("killer")
    assert row["status"] == "error"
    assert "gave up after 10 attempts" in str(row["error"])
    assert "victim" in str(row["error"])


def test_machines_that_vanish_use_up_no_attempt_and_failures_still_count(farm: Farm) -> None:
    """A spot fleet loses nodes all the time; that says nothing of the model."""
    farm.add("otter")
    leases = farm.leases()
    for number in range(1, 10):
        lease = leases.claim(["quantize"], f"spot-{number}")
        assert lease is not None and lease.attempt == number
        if number in (3, 6):
            leases.fail(lease, "flaky")
        farm.clock.now += 1_000
    last = claim(leases, "spot-10")
    leases.fail(last, "flaky")
    assert farm.row("otter")["status"] == "error"
    assert farm.row("otter")["error"] == "convert: flaky"


def test_a_model_that_every_machine_passes_on_rests_in_error(quick_farm: Farm) -> None:
    quick_farm.add("otter")
    leases = quick_farm.leases()
    for _ in range(SILENT_ATTEMPTS):
        assert quick_farm.row("otter")["status"] == "new"
        lease = claim(leases, "bench-1")
        leases.pass_on(lease, "too large for this machine")
    row = quick_farm.row("otter")
    assert (row["status"], row["error"]) == ("error", "convert: too large for this machine")
    assert leases.claim(["quantize"], "bench-2") is None


def test_work_given_back_uses_up_no_attempt_and_can_wait(farm: Farm) -> None:
    farm.add("otter")
    leases = farm.leases()
    for _ in range(5):
        lease = leases.claim(["quantize"], "bench-1")
        assert lease is not None and lease.attempt == 1
        leases.release(lease)
    lease = claim(leases, "bench-1")
    leases.release(lease, delay_s=30)
    assert leases.claim(["quantize"], "bench-1") is None
    farm.clock.now += 31
    assert leases.claim(["quantize"], "bench-1") is not None


def test_the_reasons_of_tools_are_made_readable(quick_farm: Farm) -> None:
    quick_farm.add("otter")
    leases = quick_farm.leases()
    lease = claim(leases, "bench-1")
    leases.fail(lease, "\x1b[31mbad\x00\x07" + "x" * 5_000)
    error = str(quick_farm.row("otter")["error"])
    assert error.startswith("convert: [31mbad")
    assert len(error) < 2_100


def test_a_claim_that_somebody_unlocks_uses_up_no_attempt(farm: Farm) -> None:
    """A dead machine is not the model's fault, however often a person helps."""
    farm.add("otter")
    leases = farm.leases(max_attempts=2)
    for _ in range(4):
        lease = leases.claim(["quantize"], "here")
        assert lease is not None and lease.attempt == 1
        assert farm.catalog.unlock("otter") == ["convert"]
    lease = claim(leases, "here")
    leases.fail(lease, "once")
    assert farm.row("otter")["status"] == "new"


@pytest.mark.parametrize("change", ["reset", "delete", "unlock"])
def test_a_holder_finds_its_lease_gone_after(farm: Farm, change: str) -> None:
    farm.add("otter")
    lease = claim(farm.leases(), "bench-1")

    getattr(farm.catalog, change)("otter")

    with pytest.raises(LeaseLost):
        farm.leases().commit(lease, result(lease))
    if change == "delete":
        assert farm.models.get("otter") is None
    else:
        assert "quantized" not in farm.row("otter")


def test_a_name_used_again_gives_old_holders_nothing(farm: Farm) -> None:
    farm.add("otter")
    lease = claim(farm.leases(), "bench-1")
    farm.catalog.delete("otter")
    farm.add("otter")
    farm.leases().sweep()
    assert farm.leases().claim(["quantize"], "bench-2") is not None
    with pytest.raises(LeaseLost):
        farm.leases().commit(lease, result(lease))


def test_a_commit_said_twice_is_recorded_once(farm: Farm) -> None:
    farm.add("otter", **CONVERTED)
    leases = farm.leases()
    lease = leases.claim(["device"], "bench-1")
    assert lease is not None and lease.stage == "benchmark"
    leases.commit(lease, result(lease))
    leases.commit(lease, result(lease))
    assert runs_of(farm.row("otter")) == [0.002]
    second = leases.claim(["device"], "bench-2")
    assert second is not None
    leases.commit(second, result(second))
    leases.commit(lease, result(lease))
    assert runs_of(farm.row("otter")) == [0.002, 0.002]


def test_the_latest_of_many_commits_can_still_be_repeated(quick_farm: Farm) -> None:
    """A row remembers only the last few tokens."""
    quick_farm.add("otter")
    leases = quick_farm.leases()
    for _ in range(2 * REMEMBERED):
        lease = claim(leases, "bench-1")
        leases.release(lease)
    lease = claim(leases, "bench-1")
    for _ in range(2):
        leases.commit(lease, result(lease))
    assert len(records_of(quick_farm.row("otter"))["convert"].committed) == REMEMBERED


def test_a_result_that_does_not_fill_its_columns_is_refused(quick_farm: Farm) -> None:
    quick_farm.add("otter")
    lease = claim(quick_farm.leases(), "bench-1")
    with pytest.raises(BadInput, match="does not fill its columns"):
        quick_farm.leases().commit(lease, Outcome({"macs": 1}))
    assert "macs" not in quick_farm.row("otter")


def test_a_row_of_its_own_priority_goes_first_and_zero_before_all(farm: Farm) -> None:
    farm.add("first")
    farm.add("second", priority=10)
    farm.add("urgent", priority=0)
    leases = farm.leases()
    claimed = [leases.claim(["quantize"], "bench-1") for _ in range(3)]
    assert [lease.model for lease in claimed if lease] == ["urgent", "second", "first"]


def test_a_changed_priority_moves_waiting_work(farm: Farm) -> None:
    for name in ("a-model", "b-model", "c-model"):
        farm.add(name)
    leases = farm.leases()
    leases.sweep()
    farm.catalog.set_priority("c-model", 0)
    lease = leases.claim(["quantize"], "bench-1")
    assert lease is not None and lease.model == "c-model"
    farm.catalog.set_priority("b-model", 5)
    farm.catalog.set_priority("b-model", None)
    farm.catalog.set_priority("a-model", 500)
    lease = leases.claim(["quantize"], "bench-1")
    assert lease is not None and lease.model == "b-model"


def edit_by_hand(models: Table, key: str, priority: object) -> None:
    """As with a tool that shows the table: it knows nothing of versions, hints or leases."""
    models = unversioned_table(models)
    if isinstance(models, SqlTable):
        row = models.get(key)
        assert row is not None
        values = {**row.values, "priority": priority}
        data = json.dumps({name: value for name, value in values.items() if value is not None})
        here = {"space": models._space, "key": key, "data": data}
        is_sqlite = models._database.dialect == "sqlite"
        mark = (lambda name: f":{name}") if is_sqlite else (lambda name: f"%({name})s")
        text = f"UPDATE edgeloop_rows SET data = {mark('data')} WHERE space = {mark('space')}"
        models._database.run(lambda c: c.execute(f"{text} AND key = {mark('key')}", here))
    elif isinstance(models, AzureTable):
        entity = models._client.get_entity("main", key)
        entity["priority"] = priority
        kept = {name: value for name, value in entity.items() if value is not None}
        models._client.update_entity(kept, mode=UpdateMode.REPLACE)
    else:
        row = models.get(key)
        assert row is not None
        models.update(row, {"priority": priority})


def test_a_priority_edited_by_hand_is_honoured_at_the_next_claim(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers and texts, whole ones and others, lowered, raised and removed."""
    # A slow machine looks less often.
    monkeypatch.setattr("edgeloop.models.queue.QUICK_LOOK_S", 60.0)
    names = [f"m{number:03d}" for number in range(30)]
    farm.models.insert_many((name, {"name": name, "status": "new"}) for name in names)
    farm.leases().sweep()
    leases = farm.leases()
    written = (0, "0", 5, "5", 3.5, " 4.25 ", 19, "19.9", -1, "1e1")
    for number in range(20):
        chosen = names[-1 - number]
        edit_by_hand(farm.models, chosen, written[number % len(written)])
        lease = leases.claim(["quantize"], "bench-1")
        assert lease is not None and lease.model == chosen

    edit_by_hand(farm.models, "m000", 700)
    edit_by_hand(farm.models, "m001", 25)
    edit_by_hand(farm.models, "m001", None)
    edit_by_hand(farm.models, "m002", "soon")  # not a number: as if nothing were there
    claimed = [leases.claim(["quantize"], "bench-1") for _ in range(10)]
    order = [lease.model for lease in claimed if lease]
    assert (order[0], order[1], order[-1]) == ("m001", "m002", "m000")


def test_of_edited_priorities_the_best_one_that_the_runner_can_do_comes_first(
    farm: Farm,
) -> None:
    for name in ("a", "b", "c", "d", "held", "done", "other"):
        farm.add(name)
    leases = farm.leases()
    leases.sweep()
    held = leases.claim(["quantize"], "bench-2", only=lambda name: name == "held")
    assert held is not None
    edit_by_hand(farm.models, "held", 1)
    edit_by_hand(farm.models, "b", 9)
    edit_by_hand(farm.models, "d", "8")
    edit_by_hand(farm.models, "other", 0)
    edit_by_hand(farm.models, "done", 0)
    done = farm.models.get("done")
    assert done is not None
    farm.models.update(done, {"status": "complete"})

    claimed = [
        leases.claim(["quantize"], "bench-1", only=lambda name: name != "other") for _ in range(3)
    ]

    assert [lease.model for lease in claimed if lease] == ["d", "b", "a"]


def test_stages_keep_their_natural_order_under_a_priority_of_their_own(quick_farm: Farm) -> None:
    quick_farm.add("plain")
    quick_farm.add("urgent", priority=0)
    leases = quick_farm.leases()
    order = []
    while lease := leases.claim(EVERYTHING, "bench-1"):
        order.append((lease.model, lease.stage))
        leases.commit(lease, result(lease))
    stages = ["convert", "benchmark", "benchmark", "f1_onnx", "f1_1k", "f1_1k_f", "f1_10k"]
    assert order == [("urgent", stage) for stage in stages] + [("plain", s) for s in stages]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_store_of_an_older_version_gets_the_index_of_priorities(
    kind: str,
    make_place: Callable[[str], StoreUnderTest],
    make_store: Callable[[StoreUnderTest], Store],
) -> None:
    """And a claim uses it: it reads no row that has no priority of its own."""
    farm = Farm(unversioned(make_store(make_place(kind))))
    assert isinstance(farm.models, SqlTable)
    farm.models.insert_many((f"m{n}", {"name": f"m{n}", "status": "new"}) for n in range(500))
    database = farm.models._database
    database.run(lambda c: c.execute("DROP INDEX IF EXISTS edgeloop_priorities"))
    database._has_index = False
    leases = farm.leases()
    leases.sweep()
    assert leases.claim(["quantize"], "bench-1") is not None
    if database.dialect == "postgresql":
        database.run(lambda c: c.execute("ANALYZE edgeloop_rows"))
    explain = "EXPLAIN QUERY PLAN " if database.dialect == "sqlite" else "EXPLAIN "
    query = explain + database.text("prioritized")
    values = {"space": farm.models._space, "below": 20.0}
    plan = str(database.run(lambda c: c.execute(query, values).fetchall()))
    assert "edgeloop_priorities" in plan, plan


def test_what_is_claimed_ahead_is_queued_until_it_begins(farm: Farm) -> None:
    for name in ("a", "b", "c"):
        farm.add(name)
    busy = farm.leases()
    busy.sweep()
    ahead = busy.claim_ahead(["quantize"], "bench-1")
    assert ahead is not None and ahead.queued
    assert farm.row("a")["status"] == "queued on bench-1"
    assert farm.row("a")["node"] == "bench-1"

    busy.renew(ahead)
    assert farm.row("a")["status"] == "queued on bench-1"
    begun = busy.begin(ahead)

    assert farm.row("a")["status"] == "running convert"
    assert busy.begin(begun).token == ahead.token, "said twice"
    busy.commit(begun, result(begun))
    assert farm.row("a")["quantized"] is True


def test_nothing_is_claimed_ahead_that_an_idle_runner_could_take(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.add("a")
    farm.add("b")
    busy = farm.leases()
    busy.sweep()
    assert busy.claim(["quantize"], "bench-1") is not None
    assert busy.claim_ahead(["quantize"], "bench-1") is None, "b is the last one"
    farm.add("c")
    busy.sweep()
    more = busy.claim_ahead(["quantize"], "bench-1")
    assert more is not None and more.model == "b", "c is left for others"
    assert busy.claim_ahead(["quantize"], "bench-1") is None
    monkeypatch.setattr("edgeloop.models.leases.SETTLE_SECONDS", 0.0)
    last = busy.claim_ahead(["quantize"], "bench-1")
    assert last is not None and last.model == "c", "nobody wanted it for long enough"


def test_an_idle_runner_takes_what_another_has_only_queued(farm: Farm) -> None:
    farm.add("a")
    farm.add("b")
    farm.add("c")
    busy, idle = farm.leases(), farm.leases()
    busy.sweep()
    running = busy.claim(["quantize"], "bench-1")
    ahead = busy.claim_ahead(["quantize"], "bench-1")
    assert running is not None and ahead is not None
    taken = [idle.claim(["quantize"], "bench-2")]
    idle._queued_look_at = 0.0
    taken.append(idle.claim(["quantize"], "bench-2"))
    assert [lease.model for lease in taken if lease] == ["c", "b"], "what is free comes first"

    assert farm.row("b")["status"] == "running convert"
    assert farm.row("b")["node"] == "bench-2"
    with pytest.raises(LeaseLost):
        busy.begin(ahead)
    with pytest.raises(LeaseLost):
        busy.release(ahead)
    assert taken[1] is not None and taken[1].attempt == 1
    idle._queued_look_at = 0.0
    assert idle.claim(["quantize"], "bench-3") is None, "what runs is nobody else's"
    idle.commit(taken[1], result(taken[1]))
    assert records_of(farm.row("b"))["convert"].attempts == 0


def test_what_is_urgent_goes_before_what_was_claimed_ahead(farm: Farm) -> None:
    for name in ("a", "b", "c", "d"):
        farm.add(name)
    leases = farm.leases()
    leases.sweep()
    ahead = leases.claim_ahead(["quantize"], "bench-1")
    assert ahead is not None and ahead.model == "a"
    assert leases.claim_urgent(["quantize"], "bench-1", than=ahead.rank) is None
    farm.catalog.set_priority("c", 7)
    edit_by_hand(farm.models, "d", 5)

    second = leases.claim_ahead(["quantize"], "bench-1", after=ahead.rank)
    filtered = leases.claim_urgent(["quantize"], "x", than=ahead.rank, only=lambda name: name < "c")
    urgent = leases.claim_urgent(["quantize"], "bench-1", than=ahead.rank)

    assert second is not None and second.model == "b", "c and d are for whoever begins next"
    assert filtered is None, "its filter excludes both"
    assert urgent is not None and urgent.model == "d" and not urgent.queued
    assert leases.claim_urgent(["quantize"], "bench-1", than=urgent.rank) is None


def test_the_most_urgent_model_is_claimed_first_in_whatever_order_rows_are_listed(
    quick_farm: Farm,
) -> None:
    quick_farm.add("plain")
    leases = quick_farm.leases()
    plain = claim(leases, "bench-1")
    for name, priority in (("a", 9), ("b", 1), ("c", 5)):
        quick_farm.add(name, priority=priority)
    claimed = [leases.claim_urgent(["quantize"], "bench-1", than=plain.rank) for _ in range(3)]
    assert [lease.model for lease in claimed if lease] == ["b", "c", "a"]


def test_quick_models_come_first_within_f1(quick_farm: Farm) -> None:
    done = {**CONVERTED, "total_inference_avg": "[1, 1]", "f1_onnx": 0.5, "stdev": 0.0}
    quick_farm.add("slow", mean=0.010, **done)
    quick_farm.add("quick", mean=0.001, **done)
    leases = quick_farm.leases()
    order = []
    while lease := leases.claim(EVERYTHING, "bench-1"):
        order.append((lease.model, lease.stage))
        leases.commit(lease, result(lease))
    assert order == [
        ("quick", "f1_1k"),
        ("quick", "f1_1k_f"),
        ("slow", "f1_1k"),
        ("quick", "f1_10k"),
        ("slow", "f1_1k_f"),
        ("slow", "f1_10k"),
    ]


def test_a_benchmark_only_model_is_complete_after_its_runs(quick_farm: Farm) -> None:
    quick_farm.add("otter", benchmark_only=1)
    leases = quick_farm.leases()
    stages = []
    while lease := leases.claim(EVERYTHING, "bench-1"):
        stages.append(lease.stage)
        leases.commit(lease, result(lease))
    assert stages == ["convert", "benchmark", "benchmark"]
    assert quick_farm.row("otter")["status"] == "complete"


def test_only_what_the_capabilities_allow_is_claimed(quick_farm: Farm) -> None:
    quick_farm.add("otter")
    assert (
        quick_farm.leases().claim(["device", "device-accuracy", "device-float"], "bench-1") is None
    )
    lease = quick_farm.leases().claim(["onnx"], "bench-1")
    assert lease is not None and lease.stage == "f1_onnx"


def test_a_subset_narrows_the_choice(quick_farm: Farm) -> None:
    for name in ("a-1", "b-1", "b-2"):
        quick_farm.add(name)
    lease = quick_farm.leases().claim(["onnx"], "n", only=lambda model: model.startswith("b-"))
    assert lease is not None and lease.model == "b-1"


def test_files_of_an_accepted_attempt_are_the_models_files(farm: Farm) -> None:
    farm.add("otter")
    leases = farm.leases()
    for token in ("stale", "good"):
        farm.store.blobs.put(f"farm/otter/.attempts/{token}/otter.dlc", token.encode())
    lease = claim(leases, "bench-1")
    leases.commit(lease, Outcome(CONVERTED, {"otter.dlc": ".attempts/good/otter.dlc"}))

    assert [file.name for file in farm.catalog.files("otter")] == ["otter.dlc"]
    assert farm.store.blobs.read(farm.catalog.files("otter")[0].key) == b"good"

    farm.catalog.reset("otter", ["convert"])
    assert farm.catalog.files("otter") == []


def test_a_stage_of_several_runs_keeps_the_files_of_every_run(quick_farm: Farm) -> None:
    quick_farm.add("otter", **CONVERTED)
    leases = quick_farm.leases()
    for name in ("first.csv", "second.csv"):
        lease = leases.claim(["device"], "bench-1")
        assert lease is not None and lease.stage == "benchmark"
        quick_farm.store.blobs.put(f"farm/otter/{name}", b"1")
        leases.commit(lease, Outcome(result(lease).columns, {name: name}))
    names = [file.name for file in quick_farm.catalog.files("otter")]
    assert sorted(names) == ["first.csv", "second.csv"]
    assert set(records_of(quick_farm.row("otter"))["benchmark"].files) == set(names)


def test_lost_hints_delay_work_but_never_lose_it(farm: Farm) -> None:
    """An idle runner sweeps, but not when another has done so a moment ago."""
    assert farm.leases().claim(["quantize"], "bench-1") is None
    farm.add("otter")
    assert farm.leases().claim(["quantize"], "bench-1") is None
    farm.clock.now += 11
    assert farm.leases().claim(["quantize"], "bench-1") is not None


def test_a_forced_sweep_finds_everything_at_once(farm: Farm) -> None:
    assert farm.leases().claim(["quantize"], "bench-1") is None
    farm.add("otter")
    farm.leases().sweep()
    assert farm.leases().claim(["quantize"], "bench-1") is not None


def test_stale_hints_are_mended_by_whoever_meets_them(farm: Farm) -> None:
    farm.add("gone")
    farm.add("done", status="complete")
    farm.add("here")
    leases = farm.leases()
    leases.sweep()
    gone, done = farm.models.get("gone"), farm.models.get("done")
    assert gone is not None and done is not None
    farm.models.delete(gone)
    done_hint = {"model": "done", "stage": "convert", "until": 0.0}
    farm.hints.insert("quantize|00000001.000|x|done|convert", done_hint)
    unknown_stage = {"model": "here", "stage": "melt", "until": 0.0}
    farm.hints.insert("quantize|00000002.000|x|y|melt", unknown_stage)
    lease = leases.claim(["quantize"], "bench-1")
    assert lease is not None and lease.model == "here"
    assert {str(h.values["model"]) for h in farm.hints.query("quantize|")} == {"here"}


def test_a_claim_reads_no_finished_row() -> None:
    """Counts what a claim reads: the same with 2,000 finished models as with none."""

    class Counting(MemoryTable):
        def __init__(self) -> None:
            super().__init__()
            self.reads = 0

        def get(self, key: str) -> Record | None:
            self.reads += 1
            return super().get(key)

        def query(self, *arguments, **options):
            for record in super().query(*arguments, **options):
                self.reads += 1
                yield record

    def reads(finished: int) -> int:
        models, hints = Counting(), Counting()
        leases = Leases(models, hints, default_plan())
        models.insert_many((f"w{i}", {"name": f"w{i}", "status": "new"}) for i in range(200))
        models.insert_many(
            (f"f{i}", {"name": f"f{i}", "status": "complete"}) for i in range(finished)
        )
        leases.sweep()
        models.reads = hints.reads = 0
        for _ in range(20):
            assert leases.claim(["quantize"], "n") is not None
        return models.reads + hints.reads

    assert reads(finished=2_000) == reads(finished=0)


class Flaky(Table):
    """A table whose answers get lost: the write is done, its writer is told the store is away."""

    def __init__(self, inner: Table) -> None:
        self.inner = inner
        self.lose_next = False

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def get(self, key: str) -> Record | None:
        return self.inner.get(key)

    def insert(self, key: str, values: Values) -> Record:
        return self.inner.insert(key, values)

    def update(self, record: Record, changes: Changes) -> Record:
        after = self.inner.update(record, changes)
        if self.lose_next:
            self.lose_next = False
            raise StoreUnavailable(store="test", reason="the answer got lost")
        return after

    def delete(self, record: Record) -> None:
        self.inner.delete(record)

    def query(self, *arguments, **options):
        return self.inner.query(*arguments, **options)


@pytest.mark.parametrize("word", ["commit", "fail", "release"])
def test_a_word_whose_answer_got_lost_can_be_said_again(word: str) -> None:
    farm = Farm(MemoryStore())
    flaky = Flaky(farm.models)
    farm.add("otter")
    leases = Leases(flaky, farm.hints, farm.plan, clock=farm.clock)
    lease = claim(leases, "bench-1")
    say: dict[str, Callable[[], Record]] = {
        "commit": lambda: leases.commit(lease, result(lease)),
        "fail": lambda: leases.fail(lease, "reason"),
        "release": lambda: leases.release(lease),
    }
    flaky.lose_next = True
    with pytest.raises(StoreUnavailable):
        say[word]()

    say[word]()

    record = records_of(farm.row("otter"))["convert"]
    assert not record.is_held
    assert record.attempts == {"commit": 0, "fail": 1, "release": 0}[word]
