"""Rows that another tool, a newer version or a wrong clock wrote: nobody stops, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeloop.cli import models as commands
from edgeloop.cli.status import in_order, known_columns, model_table
from edgeloop.cli.terminal import Screen
from edgeloop.errors import BadInput
from edgeloop.models.catalog import Catalog
from edgeloop.models.columns import LARGEST_PRIORITY, check_priority, column_named
from edgeloop.models.plan import StageRecord, default_plan, records_of, with_records
from edgeloop.models.queue import Queue
from edgeloop.models.upload import UploadOptions
from edgeloop.operate.fleet.demand import stage_work
from edgeloop.runner.machines import held_stages
from edgeloop.store import Value
from edgeloop.testing import MemoryStore
from edgeloop.view.portal.feed import read_row
from tests.models.test_leases import EVERYTHING, Farm, farm, quick_farm, result
from tests.nets import save_tiny

__all__ = ["farm", "quick_farm"]

YEAR_S = 365 * 86_400.0

ODD_RECORDS = {
    "no JSON": "no json",
    "cut off": '{"convert": {"token": "t"',
    "a list": "[1, 2]",
    "a number": "5",
    "deep": "[" * 100_000,
    "a record that is a number": '{"convert": 3, "benchmark": null, "f1_onnx": []}',
    "texts for numbers": '{"convert": {"token": "t", "expires": "x", "attempts": "many"}}',
    "numbers for texts": '{"convert": {"token": 5, "owner": 6, "committed": 7, "files": 8}}',
    "lists": '{"convert": {"token": ["t"], "owner": [], "expires": [1], "since": {}}}',
    "booleans": '{"convert": {"token": true, "attempts": true, "expires": true, "queued": 1}}',
    "no numbers": '{"convert": {"token": "t", "expires": NaN, "attempts": Infinity}}',
    "too large": '{"convert": {"token": "t", "expires": 1e300, "attempts": 1e300, "since": 1e300}}',
    "too small": '{"convert": {"token": "t", "expires": -1e300, "attempts": -5, "silent": -1}}',
    "nulls": '{"convert": {"token": null, "expires": null, "attempts": null, "files": null}}',
    "odd tokens": '{"convert": {"committed": [1, null, "t"], "files": {"a": 1, "b": "c"}}}',
    "an unknown stage": '{"dance": {"token": "t", "owner": "o", "expires": "x"}}',
    "an empty key": '{"": {"": {"": ""}}}',
}
ODD_CELLS: dict[str, Value] = {
    "status": 5,
    "node": 7,
    "model_date": 20260101,
    "mean": "fast",
    "total_inference_avg": '[NaN, "x", 1e400]',
    "priority": "soon",
    "benchmark_only": "perhaps",
    "since": 3.5,
    "error": 9,
    "device": 12,
    "tags": "{",
    "macs": "many",
    "quantized": "no",
}


@pytest.mark.parametrize("stages", ODD_RECORDS.values(), ids=ODD_RECORDS)
def test_records_that_another_tool_wrote_stop_nobody(quick_farm: Farm, stages: str) -> None:
    """Every reader of rows meets them, and the models beside and behind them are done."""
    quick_farm.add("odd", stages=stages)
    quick_farm.add("sound")
    _everybody_reads(quick_farm)
    leases = quick_farm.leases()
    done = set()
    while lease := leases.claim(EVERYTHING, "here"):
        done.add(lease.model)
        leases.commit(lease, result(lease))
    assert done == {"odd", "sound"}
    quick_farm.catalog.unlock("odd")  # from whoever holds a stage that we do not know
    assert {row.values["status"] for row in quick_farm.models.query()} == {"complete"}


@pytest.mark.parametrize("column", ODD_CELLS)
def test_a_cell_of_another_type_stops_nobody(quick_farm: Farm, column: str) -> None:
    quick_farm.add("odd", **{column: ODD_CELLS[column]})
    quick_farm.add("sound")
    _everybody_reads(quick_farm)
    leases = quick_farm.leases()
    found = set()
    while lease := leases.claim(EVERYTHING, "here"):
        found.add(lease.model)
        leases.commit(lease, result(lease))
    assert "sound" in found
    quick_farm.catalog.reset("sound")


def _everybody_reads(farm: Farm) -> None:
    rows = [row.values for row in farm.models.query()]
    assert "sound" in model_table(in_order(rows, "state"), Screen())
    assert "sound" in model_table(in_order(rows, "mean:desc"), Screen(80, 24, has_colour=True))
    columns = known_columns(rows)
    assert "sound" in model_table(rows, Screen(), ["name", *map(column_named, columns)])
    assert all(len(in_order(rows, column)) == len(rows) for column in columns)
    assert len(held_stages(rows)) <= 1
    for row in farm.models.query():
        list(stage_work(row.values, farm.plan, 5.0, 3))
        read_row(row, farm.plan, 5.0, 3)
        farm.catalog.unlock(row.key, "a-machine-that-holds-nothing")
    farm.leases().sweep()
    assert farm.catalog.held_by("nobody") == []


def test_what_a_newer_version_wrote_is_kept(farm: Farm) -> None:
    newer = {
        "format": 2,
        "convert": {"attempts": 1, "energy_j": [1, 2], "since": 5.0},
        "dance": {"token": "t", "owner": "o", "expires": 1.5, "partner": {"name": "x"}},
    }
    farm.add("otter", stages=json.dumps(newer), node="o")
    leases = farm.leases()
    lease = leases.claim(["quantize"], "here")
    assert lease is not None
    leases.commit(leases.renew(lease), result(lease))
    written = json.loads(str(farm.row("otter")["stages"]))
    assert written["format"] == 2
    assert written["dance"] == newer["dance"]
    assert written["convert"]["energy_j"] == [1, 2]
    assert records_of(farm.row("otter"))["convert"].attempts == 0


def test_a_record_is_read_as_it_was_written() -> None:
    record = StageRecord(
        *("token", "owner", 12.5, 1.0, 2, 3.0, ["a", "b"], {"x": "y"}, True, 4, {"newer": [1]})
    )
    assert records_of(with_records({"convert": record})) == {"convert": record}


@pytest.mark.parametrize("odd", ["x", True, float("nan"), ""])
def test_hints_and_notes_that_another_tool_wrote_stop_nobody(farm: Farm, odd: Value) -> None:
    farm.add("otter")
    leases = farm.leases()
    leases.sweep()
    for hint in list(farm.hints.query()):
        farm.hints.update(hint, {"until": odd})
    farm.hints.insert("quantize|a|b|c|d", {"until": odd})
    farm.hints.insert("!swept", {"at": odd, "rest_s": odd})
    leases = farm.leases()
    lease = leases.claim(["quantize"], "here")
    assert lease is not None and lease.model == "otter"
    leases.release(lease)
    assert leases.claim(["onnx"], "here") is not None


# A hint that a wrong clock hid


@pytest.mark.parametrize("mend", ["sweep", "unlock", "reset", "an idle runner"])
def test_a_hint_that_a_wrong_clock_hid_is_shown_again(farm: Farm, mend: str) -> None:
    """A machine whose clock is a year ahead hid the hint and was killed before its claim."""
    farm.add("otter")
    farm.leases().sweep()
    queue = Queue(farm.hints, farm.plan, 5.0)

    def visible() -> list[str]:
        return [hint.stage for hint in queue.open(["quantize"], farm.clock(), farm.models)]

    for hint in queue.open(EVERYTHING, farm.clock(), farm.models):
        assert queue.hide(hint, farm.clock() + YEAR_S + 10) is not None
    assert visible() == []
    if mend == "sweep":
        farm.leases().sweep()
    elif mend == "unlock":
        assert farm.catalog.unlock("otter") == []
    elif mend == "reset":
        farm.catalog.reset("otter")
    else:
        lease = farm.leases().claim(["quantize"], "here")
        assert lease is not None and lease.stage == "convert"
        return
    assert visible() == ["convert"]


def test_a_note_about_sweeps_holds_up_no_sweep_for_ever(farm: Farm) -> None:
    farm.hints.insert("!swept", {"at": farm.clock() + YEAR_S, "rest_s": 1e300})
    farm.add("otter")  # no hint speaks of it before a sweep
    lease = farm.leases().claim(["quantize"], "here")
    assert lease is not None
    farm.leases().commit(lease, result(lease))
    farm.hints.put("!swept", {"at": farm.clock(), "rest_s": 1e300})
    farm.add("adder")
    assert farm.leases().claim(["quantize"], "here") is None
    farm.clock.now += 3_601
    lease = farm.leases().claim(["quantize"], "here")
    assert lease is not None and lease.model == "adder"


def test_a_sweep_leaves_what_is_held_hidden(farm: Farm) -> None:
    farm.add("otter")
    leases = farm.leases()
    leases.sweep()
    lease = leases.claim(["quantize"], "here")
    before = {hint.key: hint.values for hint in farm.hints.query()}
    farm.leases().sweep()
    assert {hint.key: hint.values for hint in farm.hints.query()} == before
    assert lease is not None and farm.leases().claim(["quantize"], "there") is None


# Priorities


def test_priorities_of_any_size_sort_as_numbers(farm: Farm) -> None:
    """Written by hand into the table: the largest possible one counts for what is above it."""
    given: dict[str, Value] = {
        "a-huge": 10**12,
        "b-large": 2 * 10**8,
        "c-largest": LARGEST_PRIORITY,
        "d-text": "70000000",
        "e-middle": 6_000_000,
        "f-float": 5.5,
        "g-five": 5,
        "h-negative": -3,
    }
    for name, priority in given.items():
        farm.add(name, priority=priority)
    leases = farm.leases()
    leases.sweep()
    order = []
    while lease := leases.claim(["quantize"], "here"):
        order.append(lease.model)
    last = ["a-huge", "b-large", "c-largest"]
    assert order == ["h-negative", "g-five", "f-float", "e-middle", "d-text", *last]


@pytest.mark.parametrize("priority", [-1, LARGEST_PRIORITY + 1, 10**30, True, 1.0, "1", "", [1]])
def test_a_priority_out_of_bounds_is_refused(quick_farm: Farm, priority: int) -> None:
    quick_farm.add("otter")
    expected = f"a priority is a whole number from 0 to {LARGEST_PRIORITY}, not "
    with pytest.raises(BadInput, match=expected):
        quick_farm.catalog.set_priority("otter", priority)
    assert "priority" not in quick_farm.row("otter")


def test_an_upload_with_a_bad_priority_stores_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    catalog = Catalog(store, "farm", default_plan(), node="here")
    with pytest.raises(BadInput, match="a priority is a whole number"):
        catalog.upload(
            save_tiny(tmp_path / "net.onnx"), options=UploadOptions(priority=-1, check=False)
        )
    assert list(store.models("farm").query()) == [] and list(store.blobs.list("")) == []


def test_the_largest_priority_is_one_number_everywhere() -> None:
    from edgeloop.view.portal.api import Priority

    assert commands.LARGEST_PRIORITY == LARGEST_PRIORITY == check_priority(LARGEST_PRIORITY)
    assert Priority(priority=LARGEST_PRIORITY).priority == LARGEST_PRIORITY
    with pytest.raises(ValueError):
        Priority(priority=LARGEST_PRIORITY + 1)
