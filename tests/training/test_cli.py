"""`edgeloop arch train` and `edgeloop arch export`, as people and jobs call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edgeloop.cli.app import app
from edgeloop.cli.training import export, train
from edgeloop.errors import BadArchitecture
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.export import architecture_in

pytestmark = pytest.mark.slow


def call(command, *arguments: object, environ: dict[str, str] | None = None) -> Result:
    """Through the app: click caches a command's help option with the names of its first context."""
    words = ["arch", command.name, *(str(part) for part in arguments)]
    done = CliRunner().invoke(app, words, env=environ)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: Architecture) -> Path:
    arch.save(tmp_path / "arch.json")
    (tmp_path / "edgeloop.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_training_prints_a_line_an_epoch_and_what_came_of_it(
    project: Path, faces: Path, arch: Architecture
):
    few = ("--epochs", 2, "--images", 32, "--device", "cpu")
    done = call(train, "arch.json", "--dataset", faces, *few)
    assert done.exit_code == 0
    lines = done.stderr.splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch 1", "epoch 2"]
    assert done.stdout.startswith(f"{arch.id}: F1 ")
    assert (project / "outputs" / arch.id / "model.onnx").exists()
    again = call(train, "arch.json", "--dataset", faces, *few, "--json")
    shown = json.loads(again.stdout)[0]
    assert shown["arch_id"] == arch.id and shown["epochs"] == 2 and not again.stderr


def test_inside_a_job_results_go_to_its_outputs(project: Path, faces: Path, arch: Architecture):
    few = ("--steps", 2, "--images", 32, "--device", "cpu")
    environ = {"EDGELOOP_OUTPUT_DIR": str(project / "of-the-job")}
    done = call(train, "arch.json", "--dataset", faces, *few, environ=environ)
    assert done.exit_code == 0
    assert (project / "of-the-job/metrics.jsonl").read_text().count("\n") == 1


def test_a_net_is_exported_untrained_and_trained(project: Path, faces: Path, arch: Architecture):
    assert call(export, "arch.json", "-o", "net.onnx").exit_code == 0
    assert architecture_in(project / "net.onnx") == arch
    few = ("--steps", 2, "--images", 32, "--device", "cpu", "--output", "out")
    call(train, "arch.json", "--dataset", faces, *few)
    done = call(export, "arch.json", "-o", "t.onnx", "--weights", "out/checkpoint.pt", "--json")
    assert json.loads(done.stdout)[0]["id"] == arch.id
    assert (project / "t.onnx").read_bytes() == (project / "out/model.onnx").read_bytes()
    assert (project / "t.onnx").read_bytes() != (project / "net.onnx").read_bytes()


def test_a_file_that_is_no_architecture_is_refused(project: Path, faces: Path):
    (project / "arch.json").write_text("{}")
    with pytest.raises(BadArchitecture, match=r"arch.json cannot be built"):
        call(train, "arch.json", "--dataset", faces)


@pytest.mark.parametrize("command", [train, export])
def test_help_has_an_example(command):
    assert f"Example: edgeloop arch {command.name} arch.json" in call(command, "--help").stdout
