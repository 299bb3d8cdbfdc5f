"""Waiting work as a number: equal to what real claims hand out, on every store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeloop.fleet import waiting_work
from edgeloop.fleet.demand import group_of
from edgeloop.models import Leases, capability_of, default_plan
from edgeloop.store import Store, Value, Values
from edgeloop.testing import MemoryStore
from tests.conftest import StoreUnderTest

NOW = 1_790_000_000.0
MARGIN_S = 15.0
PLAN = default_plan(benchmark_runs=3)
TYPES = ("host", "htp:snapdragon-888", "snapdragon-888", "odd/type|x", "linux")
CONVERTED = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
EVERYTHING = [
    kind + pin
    for kind in ("quantize", "onnx", "device", "device-accuracy", "device-float")
    for pin in ("", *(f"@{name}" for name in (*TYPES, "snpe")))
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
        group = group_of(capability_of(row, PLAN[lease.stage], PLAN))
        found.setdefault(group, Counter())[lease.stage] += 1
    return found


@given(tables)
@settings(max_examples=150, deadline=None)
def test_ready_is_what_claims_hand_out(table: list[dict[str, Value]]) -> None:
    named = {f"model-{number}": row for number, row in enumerate(table)}
    assert counted(named) == claimed(MemoryStore(), "e", named)


def test_on_every_store(place: StoreUnderTest, make_store: Callable[..., Store]) -> None:
    """A table with a bit of everything, the same on each."""
    drawn: list[list[dict[str, Value]]] = []

    @given(st.lists(rows(), min_size=25, max_size=25))
    @settings(max_examples=3, deadline=None, derandomize=True, database=None)
    def draw(table: list[dict[str, Value]]) -> None:
        drawn.append(table)

    draw()
    named = {f"model-{number}": row for number, row in enumerate(drawn[-1])}
    found = counted(named)
    assert sum(count.total() for count in found.values()) > 10
    assert found == claimed(make_store(place), "every", named)
