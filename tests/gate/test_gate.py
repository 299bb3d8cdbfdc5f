"""edgeloop gate on real models, and the workflow that is shipped as an example."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from edgeloop.cli.app import app
from edgeloop.testing.faces import make_faces
from edgeloop.tuning.gate import Baseline
from tests.graph import odd_models

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NETS = ROOT / "tests/data/nets"
WORKFLOW = ROOT / "examples" / "ci" / "model-gate.yml"
FEW = ("--images", "16")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["gate", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate") / "faces"
    make_faces(folder, 40, 64, seed=3)
    return folder


@pytest.fixture(scope="module")
def baseline(faces: Path) -> Path:
    path = faces.parent / "baseline.json"
    net = NETS / "unet-w16.onnx"
    done = call("--write", path, net, "--device", "htp:qcs8550", "--dataset", faces, *FEW)
    assert done.exit_code == 0, done.output
    assert "f1 0." in done.output and "16 images" in done.output
    return path


def test_a_slower_and_larger_model_fails(baseline, faces):
    done = call(baseline, NETS / "unet-w24.onnx", "--dataset", faces, "--json")
    assert done.exit_code == 1, done.output
    (found,) = json.loads(done.stdout)
    verdicts = {check["name"]: check["verdict"] for check in found["checks"]}
    assert verdicts == {
        "latency": "regression",
        "f1": "pass",
        "memory": "regression",
        "size": "regression",
        "operators": "pass",
    }


def test_what_cannot_be_compared_is_no_regression_but_exit_code_2(baseline, faces, tmp_path):
    net = NETS / "unet-w16.onnx"
    calls = {
        "give --dataset": (baseline, net),
        "not of htp:x-elite": (baseline, net, "--dataset", faces, "--device", "htp:x-elite"),
        "gate --write": (tmp_path / "none.json", net, "--dataset", faces),
        "none.onnx": (baseline, tmp_path / "none.onnx", "--dataset", faces),
        "percentage": (baseline, net, "--max-latency", "little"),
    }
    for said, arguments in calls.items():
        done = call(*arguments)
        assert (done.exit_code, said in done.output) == (2, True), done.output


def test_without_a_dataset_latency_memory_and_operators_are_guarded(tmp_path):
    """A model that the chip refuses is a regression; so is one that it leaves to the CPU."""
    path = tmp_path / "baseline.json"
    odd = odd_models.with_product(tmp_path / "odd.onnx")
    plain = NETS / "unet-w8.onnx"
    assert call("--write", path, plain, "--device", "htp:qcs8550").exit_code == 0
    known = Baseline.read(path)
    assert known.score is None and known.raw_us and known.latency_profile.startswith("qcs8550 (")
    refused = call(path, odd)
    assert refused.exit_code == 1 and "does not take ReduceProd" in refused.output
    divided = call(path, odd, "--allow-cpu-fallback")
    assert divided.exit_code == 1
    assert "the chip leaves ReduceProd to the CPU" in divided.output


def test_a_device_that_measures_is_compared_by_its_runs(tmp_path):
    path, net = tmp_path / "baseline.json", NETS / "unet-w8.onnx"
    written = call("--write", path, net, "--device", "host", "--runs", 3)
    assert written.exit_code == 0, written.output
    known = Baseline.read(path)
    assert (known.latency_kind, len(known.runs_ms)) == ("measured", 3) and known.machine
    done = call(path, net, "--runs", 3, "--max-latency", "900%")
    assert done.exit_code == 0, done.output
    assert "of 3 and 3 runs" in done.output


def workflow() -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
    return document


def test_the_example_workflow_is_one():
    """The keys that GitHub needs; `on` is a word that YAML 1.1 reads as true."""
    document = workflow()
    assert set(document) == {"name", True, "permissions", "jobs"}
    assert set(document[True]) == {"pull_request"}
    (job,) = document["jobs"].values()
    assert {"runs-on", "steps", "timeout-minutes"} <= set(job)
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert set(step) <= {"name", "uses", "run", "with", "if", "env"}
        assert "${{" not in step.get("run", ""), "an expression in a script may be injected"


def test_the_commands_of_the_example_workflow_work(baseline, faces, tmp_path, monkeypatch):
    """The model of the baseline passes, and neither the device nor the number of images has to be
    said again."""
    (job,) = workflow()["jobs"].values()
    commands = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
    (own,) = [words for words in commands if words[0] == "edgeloop"]
    (tmp_path / "models").mkdir()
    shutil.copy(baseline, tmp_path / "models" / "baseline.json")
    shutil.copy(NETS / "unet-w16.onnx", tmp_path / "models" / "net.onnx")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "faces").symlink_to(faces)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*own[1:], "--strict"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "passed" in done.output and "on 16 images" in done.output
    assert (tmp_path / "gate.md").read_text().startswith("### Edgeloop gate: passed")
