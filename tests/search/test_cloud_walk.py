"""A search in the cloud from an empty workspace to models that a farm has measured: the laptop, the
nodes of two clusters, the lab with its runner and a colleague share an account and nothing else,
and every command is a process in the environment of its machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edgeloop.testing.faces import make_faces
from tests.jobs.test_azureml import SIZE
from tests.machine import Machine, machine
from tests.peers.azureml import AzureML
from tests.peers.azurite import Azurite
from tests.search.program import SIDE, TINY

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

DATA = "working/faces32"
QUICK = {"steps": 6, "batch": 8, "learning_rate": 1e-2, "device": "cpu"}
CLUSTER = {"kind": "azureml", "size": SIZE, "identity": True}
SETTINGS = {
    "benchmark_runs": 2,
    "computes": {
        "gpu": {**CLUSTER, "cluster": "gpu-cluster", "max_nodes": 2},
        "azure-cpu": {**CLUSTER, "cluster": "cpu-cluster", "max_nodes": 1},
    },
}
SEARCH = {
    "search": {
        "space": "hourglass",
        "options": TINY,
        "size": SIDE,
        "budget": 4,
        "workers": 2,
        "pool": 0,
        "name": "faces",
    },
    "objectives": {
        "chip_latency_ms": {"device": "htp:qcs8550"},
        "val_iou": {"train": {**QUICK, "compute": "gpu", "pipeline": 2, "timeout": "20m"}},
    },
    "data": DATA,
}


@pytest.fixture
def make(
    azureml: AzureML, azure_storage: Azurite, tmp_path: Path
) -> Iterator[Callable[..., Machine]]:
    """Machines by name and extras; all open the same account and are logged in to the workspace."""
    account = azure_storage.connection_string_of(azure_storage.new_account())
    environ = {**azureml.environment(), "MODEL_STORAGE_CONNECTION_STRING": account}
    with ExitStack() as machines:

        def start(name: str, *extras: str) -> Machine:
            folder = tmp_path / name / "project"
            folder.mkdir(parents=True)
            (folder / "edgeloop.yaml").write_text(json.dumps(SETTINGS))
            own = {**environ, "EDGELOOP_NODE": name}
            home = tmp_path / name / "home"
            return machines.enter_context(machine(folder, home, extras, own, limit_s=900))

        yield start


def rows_of(edgeloop: Machine) -> dict[str, dict[str, Any]]:
    rows = json.loads(edgeloop("status", "-e", "faces", "--json"))
    return {row["name"]: row for row in rows}


def steps_of_pipelines(azureml: AzureML) -> list[int]:
    runs = [run for run in azureml.jobs.runs.values() if run.kind == "Pipeline"]
    return sorted(len(azureml.jobs.children(run.name)) for run in runs)


def test_a_search_in_the_cloud_trains_in_pipelines_and_its_front_is_trained_in_full_and_measured(
    make: Callable[..., Machine], azureml: AzureML
):
    laptop = make("laptop", "azureml", "train")
    lab, colleague = make("lab", "azure", "qnn"), make("colleague", "azure")

    # the workspace, the data, and the search as a job that starts its pipelines itself
    made = json.loads(laptop("azure", "setup", "--yes", "--json"))
    assert {row["kind"] for row in made} == {"cluster", "datastore", "environment"}
    make_faces(laptop.folder / "data" / DATA, 48, SIDE, seed=3)
    laptop("data", "push", DATA)
    laptop("experiment", "set", "faces", "--dataset", DATA)
    (laptop.folder / "search.yaml").write_text(json.dumps(SEARCH))
    assert "faces-1 submitted to azure-cpu" in laptop(
        "search", "search.yaml", "--compute", "azure-cpu"
    )
    laptop("job", "wait", "faces-1")
    laptop("job", "results", "faces-1")
    outputs = laptop.folder / "runs/faces-1/outputs"
    front = sorted(path.stem for path in (outputs / "pareto").glob("id_*.json"))
    assert front and steps_of_pipelines(azureml) == [2, 2]
    log = laptop("job", "logs", "faces-1")
    assert "4 candidates · 0 screened out · 4 trained · front: " in log

    # the front is trained in full, in a pipeline of its own
    full = {
        row["arch_id"]: row
        for row in json.loads(
            laptop(
                *("search", "train", "faces-1", "--epochs", 1, "--compute", "gpu"),
                *("--pipeline", 2, "--json"),
            )
        )
    }
    assert sorted(full) == front and not any(row["error"] for row in full.values())
    assert sum(steps_of_pipelines(azureml)) == 4 + len(front)
    [environment] = [row["name"] for row in made if row["kind"] == "environment"]
    used = {run.order.environment for run in azureml.jobs.runs.values() if run.order}
    assert {each.rpartition("/environments/")[2] for each in used} == {
        environment.replace(":", "/versions/")
    }, "the environment that setup registered"

    # a runner that knows only the account and the experiment measures what was published
    lab("runner", "-e", "faces", "--device", "htp:qcs8550", "--drain")
    rows = rows_of(colleague)
    for arch_id in front:
        name = full[arch_id]["name"]
        for kind in ("trained", "full"):
            row = rows[f"{name}.{kind}"]
            assert row["status"] == "complete", row
            assert row["mean"] > 0 and 0 <= row["f1_1k"] <= 1 and row["calibration"] == "dataset"
        assert rows[f"{name}.full"]["final_val_iou"] == full[arch_id]["final_val_iou"]

    # what a colleague downloads recreates the model
    name = f"{full[front[0]]['name']}.full"
    colleague("download", name, "-e", "faces", "-o", "files")
    files = {path.name for path in (colleague.folder / "files").iterdir()}
    assert {"architecture.json", "perf_results_1.csv", "test_results_f1_1k.csv"} <= files
    assert {Path(file).suffix for file in files} >= {".onnx", ".bin", ".csv"}
    architecture = json.loads((colleague.folder / "files/architecture.json").read_text())
    assert architecture == json.loads((outputs / f"pareto/{front[0]}.json").read_text())
