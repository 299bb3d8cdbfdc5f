"""`runner --recover` on the simulator: a model that quantization ruined, and a killed runner."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from starlette.testclient import TestClient

from edgeloop.errors import BadInput
from edgeloop.runner.stages.recovery import check_toolchain
from edgeloop.tuning.quantized import FloatGraph, QuantizedGraph, output_error
from edgeloop.view.portal.app import create_app
from tests.conftest import clean_environ
from tests.recovery_nets import NETS, unequal
from tests.runner.conftest import Farm
from tests.runner.test_faults import wait_for

pytestmark = pytest.mark.slow

OPTIONS = ("--benchmark-only", "--precision", "a8w8", "--runs", "1")


@pytest.mark.parametrize("was_killed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_ruined_model_is_won_back_by_the_runner_after_the_one_that_was_killed(
    tmp_path: Path, faces: Path, was_killed: bool
) -> None:
    farm = Farm.make(tmp_path / "project", faces, clean_environ())
    uploaded = tmp_path / "ruined.onnx"
    onnx.save_model(unequal(onnx.load_model(NETS / "unet-w8.onnx"), 64.0), uploaded)
    farm.edgeloop("upload", str(uploaded), "--name", "ruined")
    asked = (*OPTIONS, "--recover", "--recovery-images", "10")

    if was_killed:
        kill_in_recovery(farm, farm.runner("--drain", *asked))

    wait_for(lambda: "recovered by" in farm.drain(*asked, check=False))

    with farm.workspace() as workspace:
        row = workspace.catalog.get("ruined").values
        told = json.loads(str(row["recovery"]))
        equalized = told["steps"][0]
        assert (equalized["step"], equalized["kept"]) == ("equalize", True)
        assert equalized["low"] > 0.3, "far beyond the paired interval"
        assert (told["metric"], told["images"], told["device"][:4]) == ("f1", 10, "htp:")
        before, after = float(row["f1_before_recovery"]), float(row["f1_after_recovery"])
        assert before < 0.3 < 0.6 < after and abs(after - told["float"]) < 0.02
        stored = workspace.catalog.download("ruined", tmp_path / "files")
        files = {path.name: path for path in stored}
        assert files["ruined.onnx"].read_bytes() == uploaded.read_bytes()
        assert {"ruined.quant.onnx", "ruined.quant.dlc", "ruined.dlc"} <= set(files)
        with TestClient(create_app(workspace), "http://127.0.0.1:8750") as visitor:
            page = visitor.get("/models/ruined").text
            assert "Recovery: " in page and "equalize" in page
    status = farm.edgeloop("status").stdout
    assert "recovery" in status and f"→ {after:.4f}".replace("0.", ".") in status

    quantized = QuantizedGraph.load(files["ruined.quant.onnx"])
    graph = FloatGraph.load(uploaded)
    name = graph.model.graph.input[0].name
    pixels = np.random.default_rng(0).random((1, 3, 64, 64), np.float32)
    runs = [{name: pixels}]
    found = output_error(graph.model, quantized.model, lambda: iter(runs))
    assert found < 0.05, "what was stored is what was recovered"
    with farm.workspace() as workspace:
        workspace.catalog.reset("ruined", ["convert"])
        assert "recovery" not in workspace.catalog.get("ruined").values


def kill_in_recovery(farm: Farm, runner: subprocess.Popen[str]) -> None:
    places = farm.folder / ".edgeloop" / "work" / "stages"
    wait_for(lambda: list(places.glob("*/**/recovery")) or runner.poll() is not None)
    assert runner.poll() is None, runner.communicate()[0]
    runner.kill()
    runner.communicate()
    with farm.workspace() as workspace:
        assert "recovery" not in workspace.catalog.get("ruined").values


def test_a_toolchain_that_compiles_only_its_own_models_is_refused() -> None:
    with pytest.raises(BadInput, match="--recover needs the toolchain qnn"):
        check_toolchain(object(), "snpe")
