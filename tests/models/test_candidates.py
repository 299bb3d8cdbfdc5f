"""Architectures that a search found, as rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgeloop.errors import BadInput, StoreError
from edgeloop.models.catalog import Candidates, Catalog
from edgeloop.models.leases import Leases
from edgeloop.models.plan import default_plan
from edgeloop.store import Store
from tests.nets import save_tiny

ID = "id_0123456789abcdef"


@pytest.fixture
def candidates(store: Store) -> Candidates:
    return Candidates(store.models("nets"), "nets")


@pytest.fixture
def catalog(store: Store) -> Catalog:
    return Catalog(store, "nets", default_plan(), node="here")


def test_results_are_found_again_under_their_conditions_only(candidates: Candidates):
    candidates.note(ID, "{}", "chip a", {"latency_ms": 1.5}, {"params": 1000})
    candidates.note(ID, "{}", "chip b", {"latency_ms": 2.5})
    candidates.note(ID, "{}", "chip a", {"macs": 7.0})
    assert candidates.results(ID, "chip a") == {"latency_ms": 1.5, "macs": 7.0}
    assert candidates.results(ID, "chip b") == {"latency_ms": 2.5}
    assert candidates.results(ID, "chip c") == {}
    assert candidates.results("id_other", "chip a") == {}


def test_a_name_follows_from_the_id_and_is_unique_in_the_experiment(
    candidates: Candidates, catalog: Catalog, store: Store, tmp_path: Path
):
    """A search that is resumed on another machine finds the same row."""
    first = candidates.name_of(ID)
    assert re.fullmatch(r"[a-z]+-[a-z]+", first)
    catalog.upload(save_tiny(tmp_path / "net.onnx"), first)
    name = candidates.name_of(ID)
    assert name != first
    candidates.note(ID, "{}", "chip", {"latency_ms": 1.0})
    row = catalog.get(name).values
    assert (row["name"], row["architecture"]) == (name, ID)
    catalog.delete(first)
    again = Candidates(store.models("nets"), "nets")
    again.note(ID, "{}", "chip", {"latency_ms": 2.0})
    assert again.results(ID, "chip") == {"latency_ms": 2.0}


def test_a_row_of_an_older_version_is_called_as_its_id_and_goes_on(
    candidates: Candidates, store: Store
):
    models = store.models("nets")
    known = '{"chip": {"latency_ms": 1.5}}'
    models.insert(ID, {"name": ID, "status": "candidate", "arch": "{}", "results": known})
    assert candidates.name_of(ID) == ID
    candidates.note(ID, "{}", "chip", {"params": 7.0})
    assert candidates.results(ID, "chip") == {"latency_ms": 1.5, "params": 7.0}
    assert [row.key for row in models.query()] == [ID], "no second row"


def test_no_runner_ever_takes_a_candidate(candidates: Candidates, store: Store):
    candidates.note(ID, "{}", "chip", {"latency_ms": 1.0})
    plan = default_plan()
    leases = Leases(store.models("nets"), store.queue("nets"), plan)
    leases.sweep()
    assert leases.claim({"quantize", "onnx", "device"}, "runner") is None


def test_an_upload_under_its_name_makes_it_a_model_and_keeps_its_results(
    candidates: Candidates, catalog: Catalog, tmp_path: Path
):
    candidates.note(ID, '{"a": 1}', "chip", {"latency_ms": 1.0}, {"val_iou": 0.5})
    catalog.upload(save_tiny(tmp_path / "net.onnx"), candidates.name_of(ID))
    row = catalog.get(candidates.name_of(ID)).values
    assert (row["status"], row["val_iou"], row["arch"]) == ("new", 0.5, '{"a": 1}')
    assert candidates.results(ID, "chip") == {"latency_ms": 1.0}
    candidates.note(ID, '{"a": 1}', "farm", {"latency_ms": 3.0})
    assert catalog.get(candidates.name_of(ID)).values["status"] == "new"


def test_an_estimate_replaces_an_estimate_and_never_a_measurement(
    candidates: Candidates, catalog: Catalog, store: Store, tmp_path: Path
):
    for mean in (0.1, 0.2):
        columns = {"mean": mean, "latency_kind": "estimate"}
        candidates.note(ID, "{}", "chip", {"latency_ms": 1_000 * mean}, columns)
    assert catalog.get(candidates.name_of(ID)).values["mean"] == 0.2
    catalog.upload(save_tiny(tmp_path / "net.onnx"), candidates.name_of(ID))
    measured = {"total_inference_avg": "[0.3]", "mean": 0.3, "latency_kind": "measured"}
    store.models("nets").update(catalog.get(candidates.name_of(ID)), measured)
    candidates.note(ID, "{}", "chip", {"latency_ms": 400.0}, {**columns, "val_iou": 0.5})
    row = catalog.get(candidates.name_of(ID)).values
    assert (row["mean"], row["latency_kind"], row["val_iou"]) == (0.3, "measured", 0.5)


def test_an_upload_that_fails_leaves_the_candidate_with_its_results(
    candidates: Candidates, catalog: Catalog, store: Store, tmp_path: Path, monkeypatch
):
    candidates.note(ID, "{}", "chip", {"latency_ms": 1.0})

    def refuse(*_: object) -> None:
        raise StoreError(store="x", reason="no")

    monkeypatch.setattr(type(store.blobs), "put_hashed", refuse)
    with pytest.raises(StoreError):
        catalog.upload(save_tiny(tmp_path / "net.onnx"), candidates.name_of(ID))
    assert catalog.get(candidates.name_of(ID)).values["status"] == "candidate"
    assert candidates.results(ID, "chip") == {"latency_ms": 1.0}
    monkeypatch.undo()
    assert catalog.upload(save_tiny(tmp_path / "net.onnx"), candidates.name_of(ID)).is_new


def test_a_candidate_cannot_be_reset_but_deleted(candidates: Candidates, catalog: Catalog):
    candidates.note(ID, "{}", "chip", {"latency_ms": 1.0})
    with pytest.raises(BadInput, match="no model yet"):
        catalog.reset(candidates.name_of(ID))
    catalog.delete(candidates.name_of(ID))
    assert candidates.results(ID, "chip") == {}


def test_results_that_cannot_be_read_are_not_known(candidates: Candidates, store: Store):
    candidates.note(ID, "{}", "chip", {"latency_ms": 1.0})
    row = store.models("nets").get(candidates.name_of(ID))
    assert row is not None
    store.models("nets").update(row, {"results": "[1, 2"})
    assert candidates.results(ID, "chip") == {}
