"""Databases that older versions wrote open, are read, and are worked on.

`old_stores/VERSION.db` is SQLite's file, `VERSION.sql` what psql would restore. In both a runner of
that version holds `f1_onnx` of the model `held`, and has committed its `convert`. The stores of two
commits, with models in every state, are by `make_old_store.py`.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from edgeloop.errors import LeaseLost
from edgeloop.models.leases import Leases, Outcome
from edgeloop.models.plan import default_plan, records_of
from edgeloop.models.queue import Queue
from edgeloop.store import Store, open_store, parse_location
from edgeloop.store.location import VERSION_KEY, StoreVersion, read_version, unversioned
from edgeloop.store.upgrades import SCHEMA, upgrade
from tests.conftest import StoreUnderTest
from tests.store import older

OLD = Path(__file__).with_name("old_stores")
CLAIMED_AT = 1_800_000_000.0  # the old runner's clock


@pytest.fixture(params=["sqlite", "postgresql"])
def store(
    request: pytest.FixtureRequest, make_place: Callable[[str], StoreUnderTest], tmp_path: Path
) -> Store:
    if request.param == "sqlite":
        shutil.copy(OLD / "0.1.0.db", tmp_path / "store.db")
        return open_store(parse_location(f"sqlite:{tmp_path}"))
    place = make_place("postgresql")
    with psycopg.connect(place.url.partition("?")[0], autocommit=True) as connection:
        connection.execute((OLD / "0.1.0.sql").read_text())
    return place.open()


def test_its_rows_are_read_as_they_were_written(store: Store):
    assert store.experiments() == ["faces", "second"]
    rows = {row.key: row.values for row in store.models("faces").query()}
    assert sorted(rows) == ["done-0", "done-1", "done-2", "held", "odd", "waiting"]
    assert rows["done-2"] == {
        "name": "done-2",
        "status": "complete",
        "mean": 0.003,
        "macs": 2**40 + 2,
    }
    assert math.isnan(float(rows["odd"]["val_iou"])) and rows["odd"]["training_time"] == math.inf
    assert rows["odd"]["quantized"] is True
    assert rows["odd"]["notes"] == 'Umlaut ä, 漢字 and "quotes"'
    assert [row.values for row in store.usage().query()] == [{"device": "dev", "seconds": 12.5}]
    store.close()


def test_a_lease_of_the_old_version_is_kept_until_it_ends(store: Store):
    models, hints = store.models("faces"), store.queue("faces")
    early = Leases(models, hints, default_plan(2), clock=lambda: CLAIMED_AT + 60)
    lease = early.claim(["onnx"], "new-runner")
    assert lease is not None and lease.model == "waiting"
    assert early.claim(["onnx"], "new-runner") is None
    late = Leases(models, hints, default_plan(2), clock=lambda: CLAIMED_AT + 200)
    lease = late.claim(["onnx"], "new-runner")
    assert lease is not None and (lease.model, lease.stage) == ("held", "f1_onnx")
    late.commit(lease, Outcome({"f1_onnx": 0.9}))
    row = models.get("held")
    assert row is not None and row.values["f1_onnx"] == 0.9
    store.close()


def test_the_work_of_the_old_version_goes_on_where_it_stopped(store: Store):
    leases = Leases(
        store.models("faces"), store.queue("faces"), default_plan(2), clock=lambda: CLAIMED_AT
    )
    lease = leases.claim(["device"], "new-runner")
    assert lease is not None and (lease.model, lease.stage) == ("held", "benchmark")
    leases.release(lease)
    with pytest.raises(LeaseLost):
        leases.renew(lease)
    files = records_of(lease.row.values)["convert"].files
    assert files == {"model.dlc": ".attempts/x/model.dlc"}
    store.close()


# Stores of two commits, on every kind of place.


@pytest.fixture(params=older.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def restored(
    place: StoreUnderTest, make_store: Callable[[StoreUnderTest], Store], version: str
) -> Store:
    """As another process meets it: nothing says which version wrote it."""
    first = make_store(place)
    older.restore(version, first)
    unversioned(first).version().put(VERSION_KEY, None)
    return make_store(place)


def test_rows_and_files_of_older_versions_are_read_and_stay_as_they_are(
    restored: Store, version: str
):
    assert restored.experiments() == ["default", "second"]
    for space, key, values in older.rows_of(version):
        kind, _, experiment = space.partition("/")
        if kind == "models":
            row = restored.models(experiment).get(key)
            assert row is not None and row.values == values
    rows = {row.key: row.values for row in restored.models("default").query()}
    states = {name: str(row["status"]).partition(" ")[0] for name, row in rows.items()}
    assert states == {
        "complete": "complete",
        "failed": "error",
        "fresh": "new",
        "held": "running",
        "partly": "waiting",
    }
    for name, row in rows.items():
        for record in records_of(row).values():
            for key in record.files.values():
                assert restored.blobs.size(f"default/{name}/{key}")
    assert read_version(restored) == StoreVersion(), "reading says nothing"


def test_an_upgrade_leaves_exactly_the_hints_of_this_version(restored: Store, version: str):
    stale = {"d379839": 4, "565575e": 0}  # keys had another form for priorities of a model's own
    assert [step.changed for step in upgrade(restored, is_dry_run=True)] == [stale[version]]
    assert [step.changed for step in upgrade(restored)] == [stale[version]]
    for experiment in restored.experiments():
        models, beside = restored.models(experiment), restored.queue(experiment)
        due = Queue(beside, default_plan(2), 15.0).wanted(models.query())
        hints = {row.key for row in beside.query() if "stage" in row.values}
        assert hints == {key for key, _ in due}
    assert read_version(restored).schema == SCHEMA
    assert list(upgrade(restored)) == []


def test_the_first_change_brings_a_store_up_to_date_and_leaves_leases_alone(restored: Store):
    lease = Leases(restored.models("second"), restored.queue("second"), default_plan(2)).claim(
        ["quantize"], "new-runner"
    )
    assert lease is not None and (lease.model, lease.stage) == ("urgent", "convert")
    assert read_version(restored).schema == SCHEMA
    held = restored.models("default").get("held")
    assert held is not None
    record = records_of(held.values)["convert"]
    assert (record.owner, record.is_held) == ("old-machine:runner", True)
    leases = Leases(restored.models("default"), restored.queue("default"), default_plan(2))
    other = leases.claim(["quantize"], "new-runner")
    assert other is not None and other.model == "fresh"
    assert leases.claim(["quantize"], "new-runner") is None
