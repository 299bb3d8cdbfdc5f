"""Waiting work as a number: equal to what real claims hand out, on every store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeloop.models.catalog import register_devices
from edgeloop.models.leases import Leases
from edgeloop.models.plan import DeviceTarget, default_plan
from edgeloop.models.runners import RunnerDevice, RunnerEntry
from edgeloop.operate.fleet.demand import (
    Demand,
    WaitingWork,
    group_of,
    quick_demand,
    restore_hints,
    waiting_work,
)
from edgeloop.settings import Settings
from edgeloop.store import Record, Store, Table, Value, Values
from edgeloop.testing import MemoryStore, MemoryTable
from edgeloop.workspace import Workspace
from tests.conftest import StoreUnderTest

NOW = 1_790_000_000.0
MARGIN_S = 15.0
PLAN = default_plan(benchmark_runs=3)
TYPES = ("host", "htp:snapdragon-888", "snapdragon-888", "odd/type|x", "linux", "convert snpe")
TOOLCHAINS = ("snpe", "qnn", "linux")
REGISTERED = [name for name in TYPES if "/" not in name]  # as runners may register
CONVERTED = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
EVERYTHING = [
    kind + pin
    for kind in ("quantize", "onnx", "device", "device-accuracy", "device-float")
    for pin in ("", *(f"@{name}" for name in (*TYPES, *TOOLCHAINS)))
]
STAGES = [stage.name for stage in PLAN.stages]


def record(draw: st.DrawFn, most_attempts: int) -> dict[str, object]:
    """A stage that waits, waits for a retry, runs, was claimed ahead, or whose runner has died."""
    kind = draw(st.sampled_from(["free", "retry", "retried", "held", "late", "stalled"]))
    if kind in ("free", "retry", "retried"):
        delay = {"free": 0.0, "retry": 60.0, "retried": -60.0}[kind]
        return {"attempts": draw(st.integers(0, 2)), "not_before": delay and NOW + delay}
    left_s = {"held": 60.0, "late": -MARGIN_S / 2, "stalled": -2 * MARGIN_S}[kind]
    return {
        "token": "t",
        "owner": "bench-1:runner",
        "expires": NOW + left_s,
        "since": NOW - 300.0,
        "attempts": draw(st.integers(1, most_attempts)),
        "queued": draw(st.booleans()),
    }


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Value]:
    row: dict[str, Value] = {"status": draw(st.sampled_from(STATUSES))}
    row["since"] = "2026-09-21T10:00:00+00:00"
    if draw(st.booleans()):
        row["priority"] = draw(st.sampled_from([0, 5, "7", "no number", 1000]))
    if draw(st.booleans()):
        row |= {"benchmark_only": 1}
    if draw(st.booleans()):  # by Edgeloop, or without a word about the toolchain: by Archai
        row |= {**CONVERTED, **draw(st.sampled_from([{"toolchain": "qnn"}, {}]))}
        runs = draw(st.integers(0, 3))
        if runs:
            row |= {"total_inference_avg": json.dumps([0.002] * runs), "mean": 0.002, "stdev": 1.0}
        if draw(st.booleans()):
            row["device"] = draw(st.sampled_from(TYPES))
    for column in ("f1_onnx", "f1_1k"):
        if draw(st.booleans()):
            row[column] = 0.8
    if draw(st.booleans()):  # the devices of its experiment, each with the toolchain it takes
        chosen = draw(st.dictionaries(st.sampled_from(REGISTERED), st.sampled_from(TOOLCHAINS)))
        row["targets"] = json.dumps({"primary": next(iter(chosen), ""), "devices": chosen})
    # A stage that is given up takes its model along: which of the others is claimed before is a
    # matter of order. So only models with one stage at a time may have used up their attempts.
    most = 3 if "benchmark_only" in row else 2
    records = {name: record(draw, most) for name in draw(st.sets(st.sampled_from(STAGES)))}
    if draw(st.integers(0, 9)) == 0:
        records["upload"] = {"token": "u", "owner": "laptop:upload", "expires": NOW + 60}
    if draw(st.integers(0, 9)) == 0:
        row["stages"] = draw(st.sampled_from(["{", "[]", '{"convert": 3}']))
        return row
    row["stages"] = json.dumps(records)
    owners = {str(each["owner"]) for each in records.values() if each.get("token")}
    row["node"] = ", ".join(sorted(owners))
    if draw(st.integers(0, 5)) == 0:
        row["node"] = "archai-host"
    if draw(st.integers(0, 9)) == 0:
        del row["status"]
    return row


STATUSES = ["new", "waiting", "running convert", "", "error", "complete", "uploading", "candidate"]
tables = st.lists(rows(), max_size=12)


def counted(rows: Mapping[str, Values]) -> dict[str, Counter[str]]:
    """Ready stages by capability."""
    found = waiting_work(rows.items(), PLAN, (), NOW, MARGIN_S, 3)
    return {line.capability: Counter(line.stages) for line in found if line.ready}


def claimed(store: Store, experiment: str, rows: Mapping[str, Values]) -> dict[str, Counter[str]]:
    """What claims hand out until nothing is left; nothing is committed meanwhile."""
    models, hints = store.models(experiment), store.queue(experiment)
    models.insert_many(rows.items())
    found: dict[str, Counter[str]] = {}

    def leases() -> Leases:  # a new one for each claim does not wait before it looks again
        return Leases(models, hints, PLAN, margin_s=MARGIN_S, max_attempts=3, clock=lambda: NOW)

    leases().sweep()
    while lease := leases().claim(EVERYTHING, "test:runner"):
        row = rows[lease.model]
        group = group_of(PLAN.capability(row, PLAN[lease.stage]))
        found.setdefault(group, Counter())[lease.stage] += 1
    return found


@given(tables)
@settings(max_examples=150, deadline=None)
def test_ready_is_what_claims_hand_out(table: list[dict[str, Value]]) -> None:
    named = {f"model-{number}": row for number, row in enumerate(table)}
    assert counted(named) == claimed(MemoryStore(), "e", named)


def test_an_empty_record_does_not_make_a_conversion_ours() -> None:
    """It is not written back: the model would be another one once a stage of it was claimed."""
    row: dict[str, Value] = {
        **CONVERTED,
        "status": "new",
        "since": "2026-09-21T10:00:00+00:00",
        "targets": json.dumps({"primary": "host", "devices": {"host": "qnn"}}),
        "stages": json.dumps({"convert": {"attempts": 0, "not_before": 0.0}}),
        "node": "",
    }
    bare = {name: value for name, value in row.items() if name != "stages"}
    assert counted({"net": row}) == counted({"net": bare})
    assert counted({"net": row}) == claimed(MemoryStore(), "e", {"net": row})


def opened(store: Store) -> Workspace:
    chosen = Settings.load(experiment="farm")
    return Workspace(replace(chosen, benchmark_runs=3, clock_margin_seconds=MARGIN_S), store)


SERVED = (DeviceTarget("snapdragon-888", "snpe"), DeviceTarget("htp:snapdragon-888", "qnn"))


@given(tables, st.sampled_from([(), SERVED[:1], SERVED]))
@settings(max_examples=50, deadline=None)
def test_fresh_hints_tell_the_same(
    table: list[dict[str, Value]], devices: tuple[DeviceTarget, ...]
) -> None:
    """Where attempts are left: a hint does not say how many were made."""
    workspace = opened(MemoryStore())
    if devices:
        register_devices(workspace.store, "farm", devices)
    rows = [(f"model-{number}", row) for number, row in enumerate(table)]
    workspace.store.models("farm").insert_many(rows)
    assert restore_hints(workspace)
    assert not restore_hints(workspace), "somebody just has"
    found = {
        name: demand.ready
        for name, demand in quick_demand(workspace, 1000, NOW).items()
        if demand.ready
    }
    named = [(row.key, row.values) for row in workspace.store.models("farm").query()]
    lines = waiting_work(named, PLAN, (), NOW, MARGIN_S, max_attempts=1000)
    assert found == {line.capability: line.ready for line in lines if line.ready}


class CountingTable(MemoryTable):
    """Counts the rows that are read."""

    reads = 0

    def query(self, *args: Any, **options: Any) -> Iterator[Record]:
        for record in super().query(*args, **options):
            self.reads += 1
            yield record


class OneQueue(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.hints = CountingTable()

    def queue(self, experiment: str) -> Table:
        return self.hints


def test_hints_are_read_as_far_as_they_matter() -> None:
    """Thousands of ready stages, of several capabilities, behind others that somebody holds."""
    store = OneQueue()
    parts = [("quantize", 3000, 20), ("onnx", 3, 60), ("quantize@snpe", 1000, 20)]
    parts += [("device@snapdragon-888", 2000, 30), ("device@htp:snapdragon-888", 5, 30)]
    for number, (capability, count, rank) in enumerate(parts):
        named = {"quantize": "convert", "onnx": "f1_onnx", "quantize@snpe": "convert snpe"}
        stage = named.get(capability, "benchmark htp:snapdragon-888")
        for index in range(count):
            key = f"{capability}|{rank:012.3f}|2026-01-01|{number}-{index:05}|{stage}"
            until = NOW + 60 if capability == "quantize" and index < 40 else 0.0
            store.hints.insert(key, {"model": "m", "stage": stage, "until": until})
    for index in range(500):
        store.hints.insert(f"content|{index:064x}", {"model": "m"})
    store.hints.insert("quantize|000000005.000|x|m|stage-of-another-version", {"until": 0.0})
    workspace = opened(store)
    assert quick_demand(workspace, 16, NOW) == {
        "linux": Demand(ready=16, running=40),
        "device": Demand(),
        "convert snpe": Demand(ready=16),
        "snapdragon-888": Demand(ready=16),
        "htp:snapdragon-888": Demand(ready=5),
    }
    assert store.hints.reads < 500


def runner(name: str, *devices: RunnerDevice, age_s: float = 0.0) -> RunnerEntry:
    return RunnerEntry(name, name, "farm", toolchain="snpe", devices=devices, age_s=age_s)


def machine(*can: str) -> RunnerDevice:
    return RunnerDevice("", can=can or ("quantize", "onnx"))


def board(serial: str, state: str = "idle") -> RunnerDevice:
    can = tuple(
        kind + pin
        for kind in ("device", "device-accuracy", "device-float")
        for pin in ("", "@snapdragon-888", f"@adb:{serial}", "@snpe")
    )
    return RunnerDevice(f"adb:{serial}", state, chip="snapdragon-888", can=can)


def simulator(chip: str) -> RunnerDevice:
    return RunnerDevice(f"htp:{chip}", can=("device", f"device@htp:{chip}", "device@snpe"))


def lines(*args: Any) -> dict[str, WaitingWork]:
    return {line.capability: line for line in waiting_work(*args, NOW, MARGIN_S)}


def test_runners_that_would_help() -> None:
    pinned = {**CONVERTED, "toolchain": "snpe", "status": "waiting", "benchmark_only": 1}
    rows: dict[str, Values] = {
        **{f"new-{i}": {"status": "new", "benchmark_only": 1} for i in range(5)},
        **{f"board-{i}": {**pinned, "device": "snapdragon-888"} for i in range(7)},
        **{f"htp-{i}": {**pinned, "device": "htp:hexagon-v73"} for i in range(3)},
        "on-one-board": {**pinned, "device": "adb:a"},
    }
    nobody = lines(rows.items(), PLAN, ())
    assert list(nobody) == ["linux", "device", "adb:a", "htp:hexagon-v73", "snapdragon-888"]
    assert nobody["linux"] == WaitingWork("linux", {"convert": 5}, ready=5, runners=5)
    assert nobody["device"] == WaitingWork("device", blocked=5)
    assert nobody["snapdragon-888"].runners == 7, "nobody knows how many boards there are"

    farm = [
        runner("bench", machine(), board("a"), board("b", "busy"), board("c", "unplugged")),
        runner("desk", machine("quantize"), simulator("hexagon-v73")),
        runner("gone", machine(), board("d"), age_s=41.0),
    ]
    found = lines(rows.items(), PLAN, farm)
    assert list(found) == list(nobody), "neither boards nor toolchains are lines of their own"
    assert (found["linux"].runners, found["linux"].have) == (5, 2)
    assert (found["device"].runners, found["device"].have) == (0, 3)
    assert (found["snapdragon-888"].runners, found["snapdragon-888"].have) == (3, 2)
    assert (found["htp:hexagon-v73"].runners, found["htp:hexagon-v73"].have) == (3, 1)
    assert (found["adb:a"].runners, found["adb:a"].have) == (1, 1)
    idle = lines((), PLAN, farm)
    assert list(idle) == ["linux", "device", "htp:hexagon-v73", "snapdragon-888"]


def test_conversion_has_a_line_for_each_toolchain() -> None:
    """What quantizers can do differs: one has the SDK, the other one has not."""
    both = {"snapdragon-888": "snpe:snapdragon-888", "htp:x-elite": "qnn:x-elite"}
    targets = json.dumps({"primary": "snapdragon-888", "devices": both})
    rows: dict[str, Values] = {
        **{f"m-{i}": {"status": "new", "benchmark_only": 1, "targets": targets} for i in range(4)},
        "unasked": {"status": "new", "benchmark_only": 1},
    }
    found = lines(rows.items(), PLAN, ())
    assert list(found)[:4] == ["linux", "device", "convert qnn", "convert snpe"]
    assert dict(found["convert snpe"].stages) == {"convert": 4}
    assert dict(found["convert qnn"].stages) == {"convert qnn": 4}
    assert (found["linux"].ready, found["convert qnn"].have) == (1, 0)
    plain, with_sdk = ("quantize", "quantize@qnn", "onnx"), ("quantize", "quantize@snpe", "onnx")
    farm = [
        runner("image", machine(*plain)),
        runner("sdk", machine(*plain, *with_sdk)),
        runner("rig", machine("onnx"), board("a")),
        runner("gone", machine(*with_sdk), age_s=41.0),
    ]
    served = lines(rows.items(), PLAN, farm)
    assert (served["convert qnn"].have, served["convert snpe"].have) == (2, 1)
    assert (served["convert qnn"].runners, served["convert snpe"].runners) == (4, 4)
    assert served["linux"].have == 3
    assert list(served) == list(found), "toolchains are no types of devices"


def test_a_device_that_is_named_like_a_line_has_one_of_its_own() -> None:
    for name in ("linux", "total", "convert snpe"):
        assert group_of(f"device-accuracy@{name}") == f"device@{name}"
    assert group_of("quantize@linux") == "convert linux"
    assert group_of("quantize@") == group_of("quantize") == group_of("onnx") == "linux"


def test_how_long_the_oldest_has_waited() -> None:
    ago = {s: datetime.fromtimestamp(NOW - s, UTC).isoformat() for s in (10, 50, 900)}
    stalled = {"token": "t", "owner": "n", "expires": NOW - MARGIN_S - 20, "attempts": 1}
    rows: dict[str, Values] = {
        "a": {"status": "new", "benchmark_only": 1, "since": ago[10]},
        "b": {"status": "new", "benchmark_only": 1, "since": ago[50]},
        "archai": {"status": "new", "benchmark_only": 1, "model_date": "spring"},
        "stalled": {
            **{"status": "running f1_onnx", "since": ago[900], "node": "n", **CONVERTED},
            **{"toolchain": "qnn", "stages": json.dumps({"f1_onnx": stalled})},
        },
    }
    assert lines(rows.items(), PLAN, ())["linux"].oldest_s == pytest.approx(50, abs=1)
    only = {name: row for name, row in rows.items() if name == "stalled"}
    found = lines(only.items(), PLAN, ())
    assert found["linux"].oldest_s == pytest.approx(20, abs=1), "since it may be taken over"
    assert found["device"].oldest_s == pytest.approx(900, abs=1)
    assert lines([("archai", rows["archai"])], PLAN, ())["linux"].oldest_s == 0.0


def test_a_model_in_error_has_no_ready_stage_but_may_have_a_running_one() -> None:
    held = {"token": "t", "owner": "n", "expires": NOW + 60, "attempts": 1}
    row = {"status": "error", "node": "n", "stages": json.dumps({"convert": held})}
    assert lines([("m", row)], PLAN, ())["linux"] == WaitingWork("linux", running=1, runners=1)
    assert lines([("m", {"status": "error"})], PLAN, ())["linux"] == WaitingWork("linux")


def test_a_lease_whose_end_cannot_be_read_has_ended() -> None:
    row = {"status": "new", "stages": json.dumps({"convert": {"token": "t", "expires": "soon"}})}
    found = lines([("m", row)], PLAN, ())
    assert (found["linux"].ready, found["linux"].running) == (2, 0)


def test_demand_is_the_same_on_every_store(
    place: StoreUnderTest, make_store: Callable[..., Store]
) -> None:
    """A table with a bit of everything, the same on each."""
    drawn: list[dict[str, Value]] = []

    @given(st.lists(rows(), min_size=8, max_size=8))
    @settings(max_examples=8, deadline=None, derandomize=True, database=None)
    def draw(table: list[dict[str, Value]]) -> None:
        drawn.extend(table)

    draw()
    named = {f"model-{number}": row for number, row in enumerate(drawn)}
    found = counted(named)
    assert found.keys() > {"linux"}
    assert found == claimed(make_store(place), "every", named)
