"""Searches on Azure ML: trainings as steps of pipelines, and a whole search as a job there."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.ai.ml.entities import Environment

from edgeloop.jobs.client import Jobs
from edgeloop.search.evaluators import PartialTraining
from edgeloop.search.nets.plan import TrainingPlan
from edgeloop.settings import Settings
from edgeloop.store import AzureLocation, open_blobs, parse_location
from edgeloop.testing.contracts.evaluator import collect_all
from tests.jobs.test_azureml import SIZE
from tests.jobs.waiting import end_all
from tests.peers.azureml import AzureML
from tests.peers.azurite import Azurite
from tests.search.conftest import SPACE, net
from tests.search.program import DATA, Program

QUICK = {"steps": 6, "batch": 8, "learning_rate": 1e-2, "device": "cpu"}
LAPTOP = {"chip_latency_ms": {"device": "htp:qcs8550"}, "val_iou": {"train": QUICK}}
CPU = {"kind": "azureml", "cluster": "cpu", "size": SIZE, "max_nodes": 1, "identity": True}
GPU = {**CPU, "cluster": "gpu", "max_nodes": 2}
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def program(
    azureml: AzureML,
    azure_storage: Azurite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Program]:
    account = azure_storage.new_account()
    connection = azure_storage.connection_string_of(account)
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", connection)
    program = Program(tmp_path, monkeypatch, capfd)
    program.settings(benchmark_runs=1, computes={"azure-gpu": GPU, "azure-cpu": CPU})
    yield program
    end_all(Jobs(Settings.load(program.folder)))


def pipelines(azureml: AzureML) -> list[int]:
    """How many steps each had."""
    runs = [run for run in azureml.jobs.runs.values() if run.kind == "Pipeline"]
    return [len(azureml.jobs.children(run.name)) for run in runs]


@pytest.mark.usefixtures("quick")
def test_trainings_that_are_ready_together_are_one_pipeline_and_rungs_continue_there(
    program: Program, azureml: AzureML, closing: Callable[..., PartialTraining]
):
    (program.folder / "nets.py").write_text(SPACE)
    plan = TrainingPlan(epochs=2, batch=8, device="cpu")
    options = {"search": "tiny", "compute": "azure-gpu", "steps": 3, "retries": 0}
    variables = {"PYTHONPATH": str(REPOSITORY)}  # the nodes find the quick trainer
    jobs = Jobs(Settings.load(program.folder))
    training = closing(PartialTraining(jobs, DATA, plan, variables=variables, **options))
    archs = [net(width=8), net("killed"), net("nan")]
    training.pause(archs[0], 1)
    for arch in archs:
        training.send(arch)
    answers = collect_all(training, 3)
    assert pipelines(azureml) == [3]
    killed = answers[archs[1].id]
    assert " failed: killed by SIGKILL" in killed.error and not killed.is_final
    assert "diverged" in answers[archs[2].id].error and answers[archs[2].id].is_final
    assert {run.record.kind for run in jobs.select(()).runs} == {"azureml"}
    first = answers[archs[0].id]
    training.pause(archs[0], 2)  # the next rung continues there from its checkpoint
    training.send(archs[0])
    second = collect_all(training, 1)[archs[0].id]
    assert (first.paused_at, second.paused_at, second.error) == (1, 0, "")
    before, after = (one.files["metrics.jsonl"].read_text().splitlines() for one in (first, second))
    assert len(after) == 2 and after[:1] == before


@pytest.mark.soak
def test_a_laptop_s_search_trains_on_azure_and_so_does_train_pareto(
    program: Program, azureml: AzureML
):
    file = program.write("laptop", LAPTOP, workers=3, budget=3)
    there = [f"objectives.val_iou.train.{word}" for word in ("compute=azure-gpu", "pipeline=3")]
    done = program("search", file, *there)
    assert done.code == 0, done.err
    found = program.table("laptop")
    assert [row["state"] for row in found] == ["complete"] * 3
    assert pipelines(azureml) == [3]
    front = [row["name"] for row in found if row["is_pareto"] == "1"]
    rows = program.status("laptop")
    assert front and all(rows[f"{name}.trained"]["status"] == "new" for name in front)
    full = program(
        *("search", "train", "laptop", "--epochs", 1, "--compute", "azure-gpu", "--json"),
    ).json
    assert sorted(row["name"] for row in full) == sorted(front)
    assert not any(row["error"] for row in full)


def test_trainings_that_cannot_start_say_so_with_their_own_last_line(
    program: Program, azureml: AzureML
):
    """In an environment of the workspace that has nothing of what they need."""
    bare = Environment(name="bare", version="1", image="acme/bare:1")
    azureml.client().environments.create_or_update(bare)
    train = {**QUICK, "compute": "azure-gpu", "environment": {"name": "bare:1"}}
    objectives = {"params": {}, "val_iou": {"train": train}}
    file = program.write("bare", objectives, budget=2, workers=2, retries=0)
    done = program("search", file)
    assert done.code == 1
    said = done.err.splitlines()[-1]
    assert "none of 2 candidates has a result: 2 failed in training; the last error: " in said
    assert "exit code 1: ModuleNotFoundError: No module named '" in said
    assert "'edgeloop job logs bare-id_" in said and "constraints" not in said
    used = {run.order.environment for run in azureml.jobs.runs.values() if run.order}
    assert len(used) == 1 and used.pop().endswith("/environments/bare/versions/1")


@pytest.mark.soak
def test_a_whole_search_runs_in_the_cloud_and_starts_its_pipelines_itself(
    program: Program, azureml: AzureML
):
    train = {**QUICK, "compute": "azure-gpu", "pipeline": 2, "timeout": "10m"}
    objectives = {**LAPTOP, "val_iou": {"train": train}}
    file = program.write("cloud", objectives, workers=2, budget=2)
    document = json.loads((program.folder / file).read_text())
    document["store"] = "${MODEL_STORAGE_CONNECTION_STRING}"
    (program.folder / file).write_text(json.dumps(document))
    sent = program("search", file, "--compute", "azure-cpu")
    assert sent.code == 0, sent.err
    assert "cloud-1 submitted to azure-cpu" in sent.out
    assert program("job", "wait", "cloud-1").code == 0, program("job", "logs", "cloud-1").out
    job = next(name for name, run in azureml.jobs.runs.items() if name.startswith("cloud-1-"))
    makers = {
        request.who
        for request in azureml.requests
        if request.method == "PUT" and "-and-" in request.path
    }
    assert makers == {job}, "the search's own identity started its pipelines"
    assert pipelines(azureml) == [2]
    assert program("job", "results", "cloud-1").code == 0
    outputs = program.folder / "runs/cloud-1/outputs"
    assert (outputs / "search_state_0.csv").is_file()
    front = {path.stem for path in (outputs / "pareto").glob("id_*.json")}
    rows = program.status("cloud")
    trained = {row["architecture"] for name, row in rows.items() if name.endswith(".trained")}
    assert front and front <= trained
    store = parse_location(os.environ["MODEL_STORAGE_CONNECTION_STRING"])
    assert isinstance(store, AzureLocation) and store.key
    shown = [sent.out, sent.err, program("job", "logs", "cloud-1").out]
    shown += [json.dumps([request.body for request in azureml.requests], default=str)]
    shown += [p.read_text() for p in (program.folder / "runs").rglob("*") if p.suffix != ".onnx"
              and p.is_file()]  # fmt: skip
    blobs = open_blobs(store)
    shown += [gzip.decompress(blobs.read(info.key)).decode(errors="replace")
              for info in blobs.list("_code/")]  # fmt: skip
    assert not any(store.key in text for text in shown)
    again = program("search", file, "--compute", "azure-cpu")
    assert "there is already a search 'cloud': continue it with --resume" in again.sentence
