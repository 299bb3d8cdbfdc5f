"""An account that Microsoft Archai's face-segmentation tools filled opens as it is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from azure.data.tables import EdmType, EntityProperty, TableClient, TableServiceClient
from azure.storage.blob import ContainerClient

from edgeloop import Workspace
from tests.cli.conftest import Edgeloop
from tests.conftest import StoreUnderTest
from tests.nets import save_tiny

pytestmark = pytest.mark.server

OLD = json.loads((Path(__file__).parents[1] / "models/old_table.json").read_text())
EXPERIMENT = OLD["experiment"]
ROWS = {row["RowKey"]: row for row in OLD["rows"]}
EVERYTHING = ("quantize", "onnx", "device", "device-accuracy", "device-float")
LISTS = ("shape", "output_shape", "total_inference_avg")
ON_SNPE = (*EVERYTHING, "device@snpe")


@pytest.fixture
def account(
    make_place: Callable[[str], StoreUnderTest], monkeypatch: pytest.MonkeyPatch, project: Path
) -> str:
    """A storage account with the old table, written with Microsoft's own SDK."""
    place = make_place("azure")
    with TableServiceClient.from_connection_string(place.url) as service:
        for name, rows in ((EXPERIMENT, OLD["rows"]), ("usage", OLD["usage"])):
            table = service.create_table(name)
            for row in rows:
                table.create_entity({"PartitionKey": "main", **typed(row)})
    with ContainerClient.from_connection_string(place.url, "models") as container:
        container.create_container()
        for model, files in OLD["files"].items():
            for file in files:
                container.upload_blob(f"{EXPERIMENT}/{model}/{file}", content(model, file))
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", place.url)
    monkeypatch.setenv("EDGELOOP_EXPERIMENT", EXPERIMENT)
    return place.url


@pytest.fixture
def table(account: str) -> Iterator[TableClient]:
    with TableClient.from_connection_string(account, EXPERIMENT) as client:
        yield client


def typed(row: dict[str, Any]) -> dict[str, Any]:
    makers: dict[str, Callable[[Any], Any]] = {
        "Edm.Int64": lambda value: EntityProperty(value, EdmType.INT64),
        "Edm.DateTime": datetime.fromisoformat,
        "Edm.Guid": uuid.UUID,
    }
    return {
        name: makers[value["type"]](value["value"]) if isinstance(value, dict) else value
        for name, value in row.items()
    }


def content(model: str, file: str) -> bytes:
    return f"{file} of {model}\n".encode() * 50


def raw(table: TableClient, name: str) -> dict[str, tuple[type, Any]]:
    """Every column with its value and the type the service has it in."""
    entity = table.get_entity("main", name)
    return {
        column: (value.edm_type, value.value)
        if isinstance(value, EntityProperty)
        else (type(value), value)
        for column, value in entity.items()
    }


def blobs(account: str, model: str) -> dict[str, bytes]:
    with ContainerClient.from_connection_string(account, "models") as container:
        prefix = f"{EXPERIMENT}/{model}/"
        return {
            blob.name.removeprefix(prefix): container.download_blob(blob.name).readall()
            for blob in container.list_blobs(name_starts_with=prefix)
        }


def test_status_shows_every_row_with_its_meaning(account: str, edgeloop: Edgeloop):
    said = {row["name"]: row for row in edgeloop("status", "--json").json}
    assert set(said) == set(ROWS)
    for name, row in ROWS.items():
        plain = {k: v["value"] if isinstance(v, dict) else v for k, v in row.items()}
        for column in set(plain) - {"RowKey", "reviewed", "run"}:
            is_list = column in LISTS and plain[column]
            expected = json.loads(plain[column]) if is_list else plain[column]
            assert said[name][column] == expected, (name, column)
    assert said["wonderful-beagle"]["reviewed"].startswith("2023-03-05T08:00:00")


def test_the_table_shows_seconds_as_milliseconds_and_keeps_not_applicable(
    account: str, edgeloop: Edgeloop
):
    lines = {line.split()[0]: line.split() for line in edgeloop("status").out.splitlines()}
    assert lines["wonderful-beagle"] == [
        *("wonderful-beagle", "2.93G", "12.3", ".801", ".846"),
        *(".921", ".903", ".919", ".904", "complete"),
    ]
    assert lines["lazy-gecko"][2:9] == ["4.12", ".710", ".000", ".873", ".851", "n/a", ".850"]
    assert lines["dusty-walrus"][2] == "10.2"  # from the runs: the mean is not there yet
    assert lines["dusty-walrus"][-3:] == ["running", "benchmark", "SNPE-RACK-07"]
    assert "unsupported op 'GridSample'" in edgeloop("status", "grumpy-newt").out


def test_reading_changes_nothing(account: str, table: TableClient, edgeloop: Edgeloop):
    before = {name: (raw(table, name), table.get_entity("main", name).metadata) for name in ROWS}
    edgeloop("status")
    edgeloop("download", "--list")
    edgeloop("download", "lazy-gecko", "--output", "out")
    after = {name: (raw(table, name), table.get_entity("main", name).metadata) for name in ROWS}
    assert after == before


def test_the_experiment_is_listed_and_the_usage_table_is_not(account: str, edgeloop: Edgeloop):
    assert edgeloop("experiment", "list", "--json").json == [
        {"name": EXPERIMENT, "models": len(ROWS)}
    ]


def test_list_and_download_give_the_files(account: str, edgeloop: Edgeloop, project: Path):
    listed = edgeloop("download", "--list", "--json").json
    found: dict[str, list[str]] = {}
    for item in listed:
        found.setdefault(item["name"], []).append(item["file"])
    assert {model: sorted(files) for model, files in found.items()} == {
        model: sorted(files) for model, files in OLD["files"].items()
    }
    assert found["wonderful-beagle"][:2] == ["model.quant.dlc", "model.dlc"], "to deploy: first"
    assert edgeloop("download", "wonderful-beagle", "--output", "out").code == 0
    assert {path.name: path.read_bytes() for path in (project / "out").iterdir()} == {
        file: content("wonderful-beagle", file) for file in OLD["files"]["wonderful-beagle"]
    }


def test_priority_keeps_every_other_column_with_its_type(
    account: str, table: TableClient, edgeloop: Edgeloop
):
    for name in ROWS:
        before = raw(table, name)
        assert edgeloop("priority", name, "7").code == 0
        assert raw(table, name) == {**before, "priority": (int, 7)}
        assert edgeloop("priority", name, "auto").code == 0
        assert raw(table, name) == {k: v for k, v in before.items() if k != "priority"}


def test_reset_of_one_stage_keeps_every_other_column_with_its_type(
    account: str, table: TableClient, edgeloop: Edgeloop
):
    before = raw(table, "wonderful-beagle")
    assert edgeloop("reset", "wonderful-beagle", "--stage", "f1_1k").code == 0
    after = raw(table, "wonderful-beagle")
    ours = {"status", "node", "since", "stages"}
    gone = {"f1_1k", "completed", "error"}
    assert not gone & set(after)
    assert {k: v for k, v in after.items() if k not in ours} == {
        k: v for k, v in before.items() if k not in ours | gone
    }
    assert after["macs"] == (EdmType.INT64, 2934867968)
    assert after["reviewed"][0] is before["reviewed"][0] and after["run"][0] is uuid.UUID
    assert after["status"] == (str, "waiting")
    left = set(OLD["files"]["wonderful-beagle"]) - {"test_results_f1_1k.csv"}
    assert set(blobs(account, "wonderful-beagle")) == left


def test_reset_of_all_removes_results_and_their_files_and_keeps_the_model(
    account: str, table: TableClient, edgeloop: Edgeloop
):
    before = raw(table, "wonderful-beagle")
    assert edgeloop("reset", "wonderful-beagle").code == 0
    after = raw(table, "wonderful-beagle")
    results = {"quantized", "macs", "params", "shape", "output_shape", "total_inference_avg"}
    results |= {"mean", "stdev", "f1_onnx", "f1_1k", "f1_1k_f", "f1_10k", "completed", "error"}
    assert not results & set(after)
    kept = {"name", "model_date", "model_name", "epochs", "iteration", "val_iou", "pipeline_id"}
    kept |= {"final_val_iou", "training_time", "onnx_latency", "use_pillow", "reviewed", "run"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after["status"] == (str, "new")
    assert blobs(account, "wonderful-beagle") == {
        "model.onnx": content("wonderful-beagle", "model.onnx")
    }


@pytest.mark.parametrize("capabilities", [EVERYTHING, ON_SNPE], ids=["other devices", "snpe"])
def test_finished_models_and_those_of_other_machines_are_not_claimed(
    account: str, capabilities: tuple[str, ...]
):
    """Models that were converted for SNPE go to devices that run such files."""
    claimed = set()
    with Workspace.open() as workspace:
        leases = workspace.leases()
        while lease := leases.claim(capabilities, "here"):
            claimed.add((lease.model, lease.stage))
    on_device = {("humble-finch", "benchmark")} if capabilities == ON_SNPE else set()
    assert claimed == on_device | {
        ("humble-finch", "f1_onnx"),
        ("id_5f3e9a1c", "convert"),
        ("id_5f3e9a1c", "f1_onnx"),
    }


@pytest.mark.parametrize("by", [["dusty-walrus"], ["--node", "SNPE-RACK-07"]], ids=" ".join)
def test_a_model_of_another_tool_can_be_claimed_after_unlock(
    account: str, table: TableClient, edgeloop: Edgeloop, by: list[str]
):
    before = raw(table, "dusty-walrus")
    assert edgeloop("unlock", *by, "--json").json == [
        {"name": "dusty-walrus", "unlocked": ["a claim of another tool"]}
    ]
    after = raw(table, "dusty-walrus")
    assert after["node"] == (str, "") and after["status"] == (str, "waiting")
    ours = {"status", "node", "since", "stages"}
    assert {k: v for k, v in after.items() if k not in ours} == {
        k: v for k, v in before.items() if k not in ours
    }
    with Workspace.open() as workspace:
        lease = workspace.leases().claim(ON_SNPE, "here", only=lambda n: n == "dusty-walrus")
    assert lease is not None and lease.stage == "benchmark"


def test_of_several_models_only_those_that_another_tool_holds_are_not_deleted(
    account: str, table: TableClient, edgeloop: Edgeloop
):
    before = raw(table, "dusty-walrus")
    done = edgeloop("delete", "dusty-walrus", "humble-finch", "--yes")
    assert (done.code, done.out) == (1, "humble-finch: deleted\n")
    assert "SNPE-RACK-07" in done.err and "edgeloop unlock dusty-walrus" in done.err
    assert raw(table, "dusty-walrus") == before
    assert edgeloop("delete", "dusty-walrus", "--yes").code == 1


def test_unlock_of_another_machine_leaves_it_alone(
    account: str, table: TableClient, edgeloop: Edgeloop
):
    before = raw(table, "dusty-walrus")
    assert edgeloop("unlock", "dusty-walrus", "--node", "SNPE-RACK-08").code == 0
    assert raw(table, "dusty-walrus") == before


def test_a_model_in_error_can_be_tried_again_after_reset(account: str, edgeloop: Edgeloop):
    assert edgeloop("reset", "grumpy-newt").code == 0
    with Workspace.open() as workspace:
        lease = workspace.leases().claim(["quantize"], "here", only=lambda n: n == "grumpy-newt")
    assert lease is not None and lease.stage == "convert"


def test_new_models_join_the_old_ones(
    account: str, table: TableClient, edgeloop: Edgeloop, project: Path
):
    path = save_tiny(project / "net.onnx")
    assert edgeloop("upload", path, "--name", "fresh").code == 0
    assert "is taken" in edgeloop("upload", path, "--name", "lazy-gecko").sentence
    entity = table.get_entity("main", "fresh")
    assert (entity["name"], entity["status"], entity["experiment"]) == ("fresh", "new", EXPERIMENT)
    assert blobs(account, "fresh") == {"net.onnx": path.read_bytes()}


def test_delete_takes_the_row_and_the_files(account: str, table: TableClient, edgeloop: Edgeloop):
    assert edgeloop("delete", "lazy-gecko", "--purge", "--yes").code == 0
    assert blobs(account, "lazy-gecko") == {}
    assert "lazy-gecko" not in {row["RowKey"] for row in table.list_entities()}
    assert len(blobs(account, "wonderful-beagle")) == 6
