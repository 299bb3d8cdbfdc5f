"""compare, doctor, status --unsteady and devices on models that really were evaluated."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeloop.operate.doctor import examine
from edgeloop.platforms.qnn.latency import calibrated, find_profile
from tests.conftest import clean_environ
from tests.kept import kept
from tests.runner.conftest import NETS, Farm

if TYPE_CHECKING:
    from tests.peers.board import AdbServer

ESTIMATED = ("--device", "htp:qcs8550")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, faces: Path) -> Farm:
    """Three models, converted and benchmarked once for all tests; one with the cost of layers."""
    environ = clean_environ()

    def evaluate(folder: Path) -> None:
        farm = Farm.make(folder / "project", faces, environ)
        farm.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "w8")
        farm.drain("--benchmark-only", "--layers")
        for name in ("w16", "w24"):
            farm.edgeloop("upload", str(NETS / f"unet-{name}.onnx"), "--name", name)
        farm.drain("--benchmark-only")

    folder = kept("evaluated", tmp_path_factory.mktemp("evaluated"), evaluate)
    return Farm(folder / "project", faces, environ)


@pytest.fixture
def farm(evaluated: Farm, tmp_path: Path) -> Farm:
    """A copy of one's own of that project and of the store in it."""
    folder = shutil.copytree(evaluated.folder, tmp_path / "project")
    return Farm(folder, evaluated.faces, dict(evaluated.environ))


@pytest.mark.slow
def test_memory_is_in_the_row_and_an_objective(farm: Farm) -> None:
    rows = {row["name"]: row for row in json.loads(farm.edgeloop("status", "--json").stdout)}
    for column in ("peak_memory_bytes", "weight_bytes", "ddr_bytes"):
        small, middle, large = (rows[name][column] for name in ("w8", "w16", "w24"))
        assert 0 < small <= middle <= large
    assert rows["w24"]["weight_bytes"] == pytest.approx(rows["w24"]["params"], rel=0.05)
    front = farm.edgeloop("pareto", "--x", "peak_memory_bytes", "--y", "params:max").stdout
    assert "peak_memory_mb" in front
    farm.edgeloop("reset", "w24", "--stage", "convert", "--yes")
    row = next(r for r in json.loads(farm.edgeloop("status", "w24", "--json").stdout))
    assert not {"peak_memory_bytes", "weight_bytes", "ddr_bytes"} & {k for k, v in row.items() if v}


@pytest.mark.slow
def test_four_ways_side_by_side(farm: Farm) -> None:
    arguments = ("compare", "w8", "--dataset", str(farm.faces), "--images")
    rows = json.loads(farm.edgeloop(*arguments, "8", "--json").stdout)
    assert [row["name"] for row in rows] == [
        "float, CPU",
        "quantized, CPU",
        "quantized, htp:qcs8550",
        "fp16, htp:qcs8550",
    ]
    exact, on_cpu, on_htp, half = rows
    assert exact["delta"] is None
    assert exact["agreement"] == 1.0
    assert half["agreement"] > 0.99
    for row in (on_cpu, on_htp):
        assert 0.85 < row["agreement"] < 1.0
        assert row["delta"]["low"] <= row["delta"]["value"] <= row["delta"]["high"]
        assert row["delta"]["value"] == pytest.approx(row["f1"]["value"] - exact["f1"]["value"])
        assert row["size"] < exact["size"]
    assert exact["f1"]["low"] < exact["f1"]["value"] < exact["f1"]["high"]
    assert "est" in on_htp["latency"]
    assert "est" not in on_cpu["latency"]
    table = farm.edgeloop(*arguments, "2").stdout
    assert "Δ to float" in table
    assert re.search(r"costliest layers \(estimate\): /\S+ [1-9]\d? %, ", table)
    assert re.search(r".s est, (range|90 % interval) [\d.]+ – [\d.]+ .s", table)


@pytest.mark.slow
def test_a_board_is_calibrated_from_five_models_and_not_from_three(
    farm: Farm, tmp_path: Path
) -> None:
    """A board that takes 100 µs more and 1.5 times as long as the estimate says."""
    with farm.workspace() as workspace:
        raw = {str(row["name"]): float(row["latency_raw_us"]) for row in workspace.status()}
    path = tmp_path / "measured.csv"
    lines = [f"{name},{(100 + 1.5 * us) / 1000}" for name, us in raw.items()]
    path.write_text("\n".join(["model,latency_ms", *lines]))
    done = farm.edgeloop("devices", "calibrate", "my-board", str(path), check=False)
    assert done.returncode == 1
    assert "5 or more" in done.stderr

    for width in (4, 12):  # two more, of other speeds
        farm.edgeloop("upload", str(_net(tmp_path, width)), "--name", f"n{width}")
    farm.drain("--benchmark-only")
    with farm.workspace() as workspace:
        raw = {str(row["name"]): float(row["latency_raw_us"]) for row in workspace.status()}
    lines = [f"{name},{(100 + 1.5 * us) / 1000}" for name, us in raw.items()]
    path.write_text("\n".join(["model,latency_ms", *lines]))
    said = farm.edgeloop("devices", "calibrate", "my-board", str(path)).stdout
    assert "htp:my-board" in said
    profile = find_profile("my-board", farm.folder / ".edgeloop" / "profiles")
    assert profile is not None
    for us in raw.values():
        assert calibrated(us, profile) == pytest.approx(100 + 1.5 * us, rel=0.05)


@pytest.mark.slow
def test_status_lists_and_resets_what_varies(farm: Farm) -> None:
    with farm.workspace() as workspace:
        row = workspace.catalog.get("w8")
        spreads = {"stdev": 12.5, "run_spread": 11.0, "board_spread": 3.0}
        workspace.store.models("default").update(row, spreads)
        other = workspace.catalog.get("w16")
        apart = {"stdev": 12.5, "run_spread": 1.0, "board_spread": 17.0}
        workspace.store.models("default").update(other, apart)
    [unsteady] = json.loads(farm.edgeloop("status", "--unsteady", "--json").stdout)
    assert {name: unsteady[name] for name in ("name", *spreads)} == {"name": "w8", **spreads}
    table = farm.edgeloop("status", "--unsteady").stdout
    assert "w8" in table and "w16" not in table and "11" in table
    varies = "No model's benchmark varies by more than 20 %."
    assert varies in farm.edgeloop("status", "--unsteady", "--threshold", "20").stdout
    assert varies in farm.edgeloop("reset", "--unsteady", "--threshold", "20").stdout
    farm.edgeloop("reset", "--unsteady")
    with farm.workspace() as workspace:
        assert "mean" not in workspace.model("w8").row
        assert "device" not in workspace.model("w8").row
        assert "mean" in workspace.model("w16").row


@pytest.mark.slow
def test_usage_counts_the_runs_that_were(farm: Farm) -> None:
    with farm.workspace() as workspace:
        node = workspace.settings.node
    uses = {
        (row["machine"], row["device"]): row["uses"]
        for row in json.loads(farm.edgeloop("devices", "usage", "--json").stdout)
    }
    assert uses == {(node, "host"): 3, (node, "htp:qcs8550"): 3}


def test_doctor_says_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    findings = {finding.what: finding for finding in examine(f"sqlite:{tmp_path / 'store'}", None)}
    assert findings["python"].ok
    assert findings["store"].ok
    assert findings["onnxruntime-qnn"].ok
    unreachable = "postgresql://u:secret@127.0.0.1:1/db?blobs=file:///tmp/x"
    broken = {finding.what: finding for finding in examine(unreachable, None)}["store"]
    assert not broken.ok
    assert "cannot be reached" in broken.text
    assert "secret" not in broken.text


def test_devices_lists_the_host_and_the_chips(farm: Farm, adb_server: AdbServer) -> None:
    farm.environ.update(adb_server.environ_of_clients)  # and leaves the machine's own alone
    rows = json.loads(farm.edgeloop("devices", "--json").stdout)
    names = [row["device"] for row in rows]
    assert names[0] == "host"
    assert "htp:snapdragon-888" in names
    assert "htp:qcs8550" in names


def _net(folder: Path, width: int) -> Path:
    """One wide convolution more or less: enough to be of another speed."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    dice = np.random.default_rng(width)
    shapes = {"a": (16 * width, 3, 3, 3), "b": (19, 16 * width, 3, 3)}
    weights = [
        numpy_helper.from_array((dice.standard_normal(s) / 10).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["y"], pads=[1, 1, 1, 1]),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 64])
    classes = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 19, 64, 64])
    graph = helper.make_graph(nodes, "net", [image], [classes], weights)
    path = folder / f"n{width}.onnx"
    opset = helper.make_opsetid("", 18)
    onnx.save_model(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(path))
    return path
