"""Databases that older versions wrote open, are read, and are worked on.

`old_stores/VERSION.db` is SQLite's file, `VERSION.sql` what psql would restore. In both a runner of
that version holds `f1_onnx` of the model `held`, and has committed its `convert`.
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
from edgeloop.store import Store, open_store, parse_location
from tests.conftest import StoreUnderTest

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
