"""The walk on Azure ML with the command line: setup, data, a job, its log, cancel, another attempt,
results, and a pipeline of two trainings; records and store agree in the end."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeloop.jobs.client import Jobs
from edgeloop.node.ticket import outputs_folder
from tests.cli.running import Finished, run_command, run_main, start_command
from tests.jobs import planted
from tests.jobs.test_azureml import SIZE
from tests.jobs.waiting import end_all, eventually
from tests.peers.azureml import AzureML
from tests.peers.azurite import Azurite

EXAMPLES = Path(__file__).parents[2] / "examples/jobs"
LONG = """
import pathlib, sys, time
time.sleep(float(sys.argv[1]))
pathlib.Path("outputs/net.pt").touch()
"""
NIGHT = """
import json, os, sys
os.makedirs("lightning_logs")
open("lightning_logs/best.ckpt", "w").write("weights")
json.dump(sys.argv[1:], open("outputs/words.json", "w"))
"""
BRACES = ["{epoch}_{job}", "${{inputs.faces}}", "{outputs}/{{data}}"]
LIMIT_S = 120.0
Command = Callable[..., Finished]


@pytest.fixture
def project(
    azureml: AzureML, azure_storage: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    folder = tmp_path / "my-project"
    shutil.copytree(EXAMPLES, folder)
    (folder / ".azureml").mkdir()
    (folder / ".azureml/config.json").write_text(azureml.config_file())
    gpu = {"kind": "azureml", "cluster": "gpu-cluster", "size": SIZE, "max_nodes": 4}
    (folder / "edgeloop.yaml").write_text(json.dumps({"computes": {"gpu": gpu}}))
    account = azure_storage.connection_string_of(azure_storage.new_account())
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", account)
    for name in ("AZURE_SUBSCRIPTION_ID", "AML_RESOURCE_GROUP", "AML_WORKSPACE_NAME"):
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    yield folder
    end_all(Jobs.open())


@pytest.fixture
def edgeloop(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """The program's own `main` in this process: the SDK takes seconds to load."""
    return lambda *arguments: run_main(arguments, monkeypatch, capfd)


def test_the_walk(edgeloop: Command, project: Path, azureml: AzureML, azure_storage: Azurite):
    made = edgeloop("azure", "setup", "--yes", "--json").json
    assert {row["kind"] for row in made} == {"cluster", "datastore", "environment"}
    assert {row["did"] for row in made} == {"created"}
    drawn = edgeloop("data", "faces", "data/working/faces64", "--count", 24, "--size", 32)
    assert drawn.code == 0, drawn.err
    assert "working/faces64@1" in edgeloop("data", "push", "working/faces64").out
    to = ("--compute", "gpu", "--data", "working/faces64")

    # submit, follow, results
    arguments = ("run", "train.py", *to, "--name", "lr-3", "--", "--lr", "1e-3", "--epochs", 2)
    done = run_command(arguments, project, {})  # as a process of its own
    assert done.code == 0, done.err
    assert "epoch 2/2" in done.out
    assert "exit code 0 · results in runs/lr-3/outputs" in done.err
    assert (project / "runs/lr-3/outputs/net.pt").is_file()

    # words after -- arrive as they are, and files outside outputs/ are kept
    (project / "night.py").write_text(NIGHT)
    night = ("run", "night.py", "--compute", "gpu", "--name", "night", "--", *BRACES)
    done = edgeloop(*night)
    assert done.code == 0, done.err
    assert "1 file (7 B) created outside outputs/ is kept for 7 days" in done.err
    assert json.loads((project / "runs/night/outputs/words.json").read_text()) == BRACES
    assert edgeloop("job", "results", "--all", "night").code == 0
    assert (project / "runs/night/kept/lightning_logs/best.ckpt").read_text() == "weights"

    # cancel another, and run it again with less to do
    (project / "long.py").write_text(LONG)
    long = edgeloop("job", "submit", "long.py", *to, "--name", "long", "--json", "--", "600")
    assert long.code == 0, long.err
    jobs = Jobs.open()
    eventually(lambda: jobs.refresh([jobs.runs.get("long")])[0].state == "running")
    assert edgeloop("job", "abort", "long").code == 0
    assert edgeloop("job", "status", "long", "--json").json[0]["state"] == "canceled"
    again = edgeloop("job", "resubmit", "long", "--json", "--", "0").json
    assert again[0]["name"] == "long.2"
    assert edgeloop("job", "wait", "long.2").code == 0

    # a pipeline of two trainings
    sent = edgeloop(
        *("job", "submit", "train.py", *to, "--sweep", "lr=1e-1,1e-2"),
        *("--name", "sweep", "--pipeline", "--", "--epochs", "1"),
    )
    assert sent.code == 0, sent.err
    pipelines = [run for run in azureml.jobs.runs.values() if run.kind == "Pipeline"]
    assert len(pipelines) == 1
    assert edgeloop("job", "wait", "sweep*").code == 0
    assert len(azureml.jobs.children(pipelines[0].name)) == 2
    assert edgeloop("job", "results", "sweep*").code == 0
    assert "accuracy" in edgeloop("job", "status", "sweep*").out

    # records and store agree
    states = {run.name: run.state for run in jobs.select(()).runs}
    completed = dict.fromkeys(("lr-3", "long.2", *(f"sweep-{n}" for n in "12")), "completed")
    assert states == {**completed, "night": "completed", "long": "canceled"}
    for name in completed:
        run = jobs.runs.get(name)
        stored = {info.key for info in jobs.blobs.list(outputs_folder(run.record.id))}
        assert f"{outputs_folder(run.record.id)}net.pt" in stored
    kept = "".join(path.read_text() for path in (project / "runs").glob("*/*.json"))
    assert azure_storage.key not in kept and "sig=" not in kept
    told = json.dumps([request.body for request in azureml.requests])
    assert azure_storage.key not in told and "sig=" not in told

    # and they go
    assert edgeloop("job", "remove", "all", "--yes").code == 0
    assert not list(jobs.blobs.list("_jobs/"))
    assert not azureml.jobs.runs.keys() & {run.name for run in pipelines}


ON_BLOBS = """
import pathlib, sys, time
faces = pathlib.Path("data_blobs/working/faces/1.txt").read_text()
pathlib.Path("data_blobs/outputs/first.pt").write_text(faces)
pathlib.Path("lightning_logs").mkdir()
pathlib.Path("lightning_logs/metrics.csv").write_text(sys.argv[1])
print("begun", flush=True)
time.sleep(600)
"""


def test_a_project_with_data_blobs_runs_until_ctrl_c_and_loses_nothing(
    edgeloop: Command, project: Path, azureml: AzureML
):
    """The run is a process of its own that a terminal interrupts twice: it detaches, then cancels,
    and fetches the results. Everything else that the script wrote is kept in the store."""
    assert edgeloop("azure", "setup", "--yes", "--json").code == 0
    settings = (project / "edgeloop.yaml").read_text()
    (project / "edgeloop.yaml").write_text(f"computes: {json.loads(settings)['computes']}\n")
    with (project / "edgeloop.yaml").open("a") as file:
        file.write("data_root: data_blobs\n")
    for folder in ("raw", "working/faces", "outputs"):
        (project / "data_blobs" / folder).mkdir(parents=True)
    (project / "data_blobs/working/faces/1.txt").write_text("face")
    (project / "blobs.py").write_text(ON_BLOBS)
    words = ("run", "blobs.py", "--compute", "gpu", "--data", "data_blobs/working/faces")
    process = start_command([*words, "--name", "night", "--", "{epoch}_{job}"], project, {})
    assert process.stdout is not None and process.stderr is not None
    eventually(lambda: process.stdout.readline() == "begun\n")
    said = ""
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        while "To cancel" not in said:
            said += process.stderr.readline()
    said += process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 130 and "night: canceled" in said
    assert (project / "runs/night/outputs/first.pt").read_text() == "face"
    assert edgeloop("job", "results", "--all", "night").code == 0
    kept = project / "runs/night/kept/lightning_logs/metrics.csv"
    assert kept.read_text() == "{epoch}_{job}"
    assert [path.name for path in (project / "runs/night/kept").iterdir()] == ["lightning_logs"]


def test_secrets_stand_in_nothing_that_others_see(
    edgeloop: Command, project: Path, azureml: AzureML, azure_storage: Azurite, monkeypatch
):
    """Not in records, snapshots, logs, lists of processes, nor in the studio."""
    assert edgeloop("azure", "setup", "--yes", "--json").code == 0
    (project / "look.py").write_text(planted.SCRIPT)
    for name, value in planted.ENVIRON.items():
        monkeypatch.setenv(name, value)
    words = ("run", "look.py", "--compute", "gpu", "--name", "look", *planted.OPTIONS)
    done = edgeloop(*words)
    assert done.code == 0, done.err
    assert "processes" in done.out
    said = {
        "run": done.out + done.err,
        "status": edgeloop("job", "status", "look", "--json").out,
        "studio": [request.body for request in azureml.requests],
        "runs": azureml.jobs.runs,
    }
    keys = {"the account's key": azure_storage.key}
    assert planted.leaks(project, Jobs.open(), said, keys) == []


def test_what_a_person_reads_when_azure_refuses(edgeloop: Command, azureml: AzureML):
    azureml.faults.forbid("Microsoft.MachineLearningServices/workspaces/jobs/write")
    said = edgeloop("job", "submit", "count.sh", "--compute", "gpu", "--json")
    lines = said.err.splitlines()
    assert said.code == 1 and "Traceback" not in said.err
    assert lines[-1].startswith("edgeloop: the compute gpu refused: the login of user lacks a role")
    assert edgeloop("job", "list", "--json").json == [], "a failed submission leaves no job"
