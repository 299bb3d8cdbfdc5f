"""Projects of older tools, copied as they are: every command is a process in an environment that
has Edgeloop and what its extra for Azure ML needs, and nothing else.

The guides walk the same projects with what each command prints. Here every verb is given jobs in
every form, and Ctrl-C is a real one.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.documented.scenes import AZURE_SCENES
from tests.machine import LIMIT_S, Machine, machine
from tests.peers.azureml import AzureML

pytestmark = pytest.mark.soak


def states(laptop: Machine, *jobs: str) -> dict[str, str]:
    rows = json.loads(laptop("job", "status", *jobs, "--json"))
    return {row["name"]: row["state"] for row in rows}


@pytest.fixture
def laptop(azureml: AzureML, tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    """By the name of a project's scene; another folder than the one it was made in."""
    environ = azureml.environment()
    for name in ("AZURE_SUBSCRIPTION_ID", "AML_RESOURCE_GROUP", "AML_WORKSPACE_NAME"):
        del environ[name]  # the project's own file says it
    with machine(tmp_path / "copy", tmp_path / "home", ("azureml",), environ) as made:

        def copy(scene: str) -> Machine:
            original = tmp_path / "original"
            original.mkdir()
            (original / "examples").touch()
            AZURE_SCENES[scene](original, azureml)
            shutil.copytree(original, made.folder)
            return made

        yield copy


@pytest.fixture
def submitting(laptop: Callable[[str], Machine]) -> Machine:
    """The fourth document's project: `.azureml/`, and records of runs in `output/`."""
    made = laptop("azureml-project")
    (made.folder / "edgeloop.yaml").write_text("compute: gpu-cluster\nruns: output\n")
    return made


FORMS = {
    "output/lr-3": {"lr-3"},
    "lr": {"lr-3", "lr-4"},
    "*-4": {"lr-4"},
    "all": {"lr-3", "lr-4"},
}


@pytest.mark.timeout(900)  # fifteen commands, each of which loads Azure's SDK
def test_status_logs_and_results_take_a_folder_a_prefix_a_glob_and_all(submitting: Machine) -> None:
    edgeloop, output = submitting, submitting.folder / "output"
    rates = {"lr-3": "0.001", "lr-4": "0.0001"}
    for name, rate in rates.items():
        edgeloop("job", "submit", "train.py", "--name", name, "--", "--lr", rate)
    edgeloop("job", "wait", "all")
    for form, names in FORMS.items():
        assert states(edgeloop, form) == dict.fromkeys(names, "completed"), form
        log = edgeloop("job", "logs", form)
        assert {name for name, rate in rates.items() if f"lr {rate}, 2 threads" in log} == names
        edgeloop("job", "results", form)
        fetched = {file.parents[1].name: file.read_text() for file in output.glob("*/outputs/*")}
        assert fetched == {name: rates[name] for name in names}, form
        for name in names:
            shutil.rmtree(output / name / "outputs")


@pytest.mark.timeout(900)
def test_abort_and_resubmit_take_a_folder_a_prefix_a_glob_and_all(submitting: Machine) -> None:
    edgeloop = submitting
    for name in ("lr-3", "big"):
        edgeloop("job", "submit", "train.py", "--name", name, "--", "--lr", "1", "--wait", "600")
    assert edgeloop("job", "abort", "output/lr-3") == "lr-3: canceled\n"
    assert edgeloop("job", "abort", "bi") == "big: canceled\n"
    assert "lr-3.2 submitted" in edgeloop("job", "resubmit", "output/lr-3")
    assert "big.2 submitted" in edgeloop("job", "resubmit", "bi")
    aborted = edgeloop("job", "abort", "*.2", "--yes").splitlines()
    assert sorted(aborted) == ["big.2: canceled", "lr-3.2: canceled"]
    assert "lr-3.3 submitted" in edgeloop("job", "resubmit", "l?-3")
    again = edgeloop("job", "resubmit", "all", "--yes").splitlines()
    assert sorted(line.partition(" ")[2] for line in again) == [
        f"submitted to gpu-cluster (attempt {attempt} of {name})"
        for attempt, name in ((3, "big"), (4, "big.2"), (4, "lr-3"), (5, "lr-3.2"), (6, "lr-3.3"))
    ]
    edgeloop("job", "abort", "all", "--yes")
    every = states(edgeloop, "all")
    assert len(every) == 10 and set(every.values()) == {"canceled"}, every


def test_a_cloud_run_with_data_blobs_survives_ctrl_c_and_gives_its_results(
    laptop: Callable[[str], Machine],
) -> None:
    """The fifth document's project: only changes of `data_blobs/working` are sent."""
    edgeloop = laptop("data-blobs-project")
    (edgeloop.folder / "edgeloop.yaml").write_text("data_root: data_blobs\ncompute: gpu-cluster\n")
    data = ("--data", "data_blobs/working/faces")
    running = edgeloop.start("run", "train.py", *data, "--name", "night", "--", "600")
    assert running.stdout is not None
    printed = []
    for line in running.stdout:
        printed.append(line)
        if line == "epoch 1\n":
            break
    assert "3 faces\n" in printed, printed
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 130 and "night runs on" in err, err
    assert states(edgeloop, "night") == {"night": "running"}
    assert edgeloop("job", "abort", "night") == "night: canceled\n"
    edgeloop("job", "results", "night")
    outputs = edgeloop.folder / "runs/night/outputs"
    assert {file.name: file.read_text() for file in outputs.iterdir()} == {"first.pt": "epoch 1"}

    (edgeloop.folder / "data_blobs/working/faces/3.txt").write_text("face 3\n")
    process = edgeloop.start("run", "train.py", *data, "--name", "morning", "--", "0")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and "4 faces\n" in out, out + err
    assert "working/faces@2 (1 file sent)" in err, err
    outputs = edgeloop.folder / "runs/morning/outputs"
    assert {file.name for file in outputs.iterdir()} == {"first.pt", "net.pt"}
