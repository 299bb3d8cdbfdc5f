"""Runners that are killed, told to stop, or given models and data that are no good."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeloop._util.files import try_lock
from edgeloop.models.plan import records_of
from edgeloop.store import Values
from edgeloop.workspace import Workspace
from tests.jobs.waiting import eventually
from tests.runner.conftest import NETS, Farm

pytestmark = pytest.mark.slow

STAGES = ("convert", "benchmark", "f1_onnx", "f1_1k", "f1_1k_f", "f1_10k")
TIMES = {"since", "model_date", "completed", "stages", "name", "node"}


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def results(row: Values) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in TIMES}


def row_of(farm: Farm) -> Values:
    with farm.workspace() as workspace:
        (row,) = workspace.status()
    return row


def held(workspace: Workspace, stage: str) -> bool:
    record = records_of(workspace.status()[0]).get(stage)
    return record is not None and record.is_held


@pytest.fixture
def farm(make_farm: Callable[[str], Farm]) -> Farm:
    return make_farm("sqlite")


@pytest.mark.parametrize(
    ("stages", "options"),
    [
        pytest.param(("benchmark",), ("--benchmark-only",), id="one"),
        pytest.param(STAGES, (), id="each", marks=pytest.mark.soak),
    ],
)
def test_a_runner_killed_in_each_stage_leaves_the_same_table_after_another_drain(
    farm: Farm, stages: tuple[str, ...], options: tuple[str, ...]
) -> None:
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"), *options)
    farm.drain()
    undisturbed = results(row_of(farm))
    for stage in stages:
        farm.edgeloop("reset", "*", "--stage", stage)  # and those that depend on it
        runner = farm.runner("--drain")
        with farm.workspace() as workspace:
            wait_for(lambda s=stage, r=runner, w=workspace: held(w, s) or r.poll() is not None)
        assert runner.poll() is None, f"{stage} was never seen at work"
        runner.kill()
        runner.communicate()

        wait_for(lambda: "complete" in (farm.drain() and str(row_of(farm)["status"])))

        assert results(row_of(farm)) == undisturbed, stage
    left = list((farm.folder / ".edgeloop" / "work" / "stages").iterdir())
    assert left == [], "what killed runners left is cleared away"


def test_a_runner_told_to_stop_gives_back_what_it_holds(farm: Farm) -> None:
    farm.edgeloop("upload", *(str(NETS / f"unet-w{width}.onnx") for width in (8, 16)))
    runner = farm.runner(device="host")
    with farm.workspace() as workspace:
        wait_for(lambda: any("running" in str(row["status"]) for row in workspace.status()))
        runner.send_signal(signal.SIGTERM)
        output, _ = runner.communicate(timeout=60)
        assert runner.returncode == 0, output
        for row in workspace.status():
            assert row["node"] == ""
            assert all(not record.is_held for record in records_of(row).values())
            assert all(record.attempts == 0 for record in records_of(row).values())
    farm.drain(device="host")
    with farm.workspace() as workspace:
        assert {row["status"] for row in workspace.status()} == {"complete"}


def test_both_quantizers_of_a_farm_work_on_two_models(farm: Farm, tmp_path: Path) -> None:
    """The first one has claimed the second model ahead; the second one takes it. Quantizations wait
    for the machine's lock, which the test holds, so neither can do both."""
    farm.environ["EDGELOOP_STATE"] = str(tmp_path / "state")
    lock = try_lock(tmp_path / "state" / "cpus" / socket.gethostname() / "quantize.lock")
    assert lock is not None
    for net in ("unet-w8", "unet-w16"):
        farm.edgeloop("upload", str(NETS / f"{net}.onnx"), "--name", net)

    def states() -> set[str]:
        with farm.workspace() as workspace:
            rows = workspace.status()
        return {f"{str(row['status']).split()[0]} {row.get('node', '')}"[:11] for row in rows}

    runners = []
    try:
        farm.environ["EDGELOOP_NODE"] = "one"
        runners.append(farm.runner("--benchmark-only", device="host"))
        eventually(lambda: states() == {"running one", "queued one:"}, 200)
        farm.environ["EDGELOOP_NODE"] = "two"
        runners.append(farm.runner("--benchmark-only", device="host"))
        eventually(lambda: states() == {"running one", "running two"}, 200)
    finally:
        os.close(lock)
        for runner in runners:
            runner.kill()
            runner.communicate()


def test_once_does_one_stage(farm: Farm) -> None:
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"))
    runner = farm.runner("--once", device="host")
    output, _ = runner.communicate(timeout=120)
    assert "1 stage done." in output
    assert row_of(farm)["status"] == "waiting"
    assert "quantized" in row_of(farm)
    assert "f1_onnx" not in row_of(farm)


def test_once_does_the_most_urgent_stage_of_all_workers(farm: Farm) -> None:
    """The machine's worker comes first in the crew, the device's benchmark in the plan."""
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"))
    for stage in ("convert", "benchmark"):
        output, _ = farm.runner("--once", device="host").communicate(timeout=120)
        assert f" {stage} " in output and "1 stage done." in output, output
    assert "f1_onnx" not in row_of(farm)


def test_a_runner_without_a_device_does_only_the_linux_stages(farm: Farm) -> None:
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "taken")
    with farm.workspace() as workspace:
        models = workspace.store.models(workspace.experiment)
        taken = models.get("taken")
        assert taken is not None
        models.update(taken, {"node": "archai-1"})
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "free")
    done = farm.edgeloop(
        "runner",
        "--dataset",
        str(farm.faces),
        "--drain",
        "--calibration-images",
        "8",
        "--thorough-images",
        "8",
    )
    assert "2 stages done." in done.stdout
    assert "Models: 0 done, 0 failed, 2 left: " in done.stdout
    assert "1 waiting for benchmark, which this runner does not do" in done.stdout
    assert "1 held by archai-1, which is not an Edgeloop runner" in done.stdout
    with farm.workspace() as workspace:
        (row,) = [row for row in workspace.status() if row["name"] == "free"]
    assert "f1_onnx" in row
    assert "quantized" in row
    assert "mean" not in row


def test_no_quantize_and_subset_and_benchmark_only(farm: Farm) -> None:
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "small")
    farm.edgeloop("upload", str(NETS / "unet-w16.onnx"), "--name", "large")
    farm.drain("--no-quantize", device="host")
    with farm.workspace() as workspace:
        assert all("quantized" not in row for row in workspace.status())
        assert all("f1_onnx" in row for row in workspace.status())
    farm.drain("--subset", "tiny", "--subset", "sm*", "--benchmark-only", device="host")
    with farm.workspace() as workspace:
        large, small = workspace.status("large", "small")
        assert "quantized" not in large
        assert "mean" in small
        assert "f1_1k" not in small


def save(path: Path, nodes: list, inputs: list, outputs: list, tensors: dict) -> Path:
    weights = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "bad", inputs, outputs, weights)
    opset = helper.make_opsetid("", 18)
    onnx.save_model(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(path))
    return path


def bad_models(folder: Path) -> dict[str, Path]:
    folder.mkdir()
    dice = np.random.default_rng(0)
    weights = dice.standard_normal((19, 3, 3, 3)).astype(np.float32)

    def tensor(name: str, shape: list) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    image, classes = tensor("x", [1, 3, 64, 64]), tensor("y", [1, 19, 64, 64])
    broken = weights.copy()
    broken[0, 0, 0, 0] = np.nan
    dynamic = [tensor("x", ["n", 3, "h", "w"])], [tensor("y", ["n", 19, "h", "w"])]
    add = helper.make_node("Add", ["z", "second"], ["y"])
    first = helper.make_node("Conv", ["x", "w"], ["z"], pads=[1, 1, 1, 1])
    second = tensor("second", [1, 19, 64, 64])
    odd = helper.make_node("Erf", ["z"], ["e"])
    odd_end = helper.make_node("Det", ["e"], ["y"])
    return {
        "dynamic": save(folder / "dynamic.onnx", [conv], *dynamic, {"w": weights}),
        "nan": save(folder / "nan.onnx", [conv], [image], [classes], {"w": broken}),
        "two-inputs": save(
            folder / "two.onnx", [first, add], [image, second], [classes], {"w": weights}
        ),
        "ten-classes": save(
            folder / "ten.onnx",
            [conv],
            [image],
            [tensor("y", [1, 10, 64, 64])],
            {"w": weights[:10]},
        ),
        "unsupported": save(
            folder / "odd.onnx",
            [first, odd, odd_end],
            [image],
            [tensor("y", [1, 19])],
            {"w": weights},
        ),
    }


def test_bad_models_rest_in_error_with_their_reason_and_stop_nobody(
    farm: Farm, tmp_path: Path
) -> None:
    for name, path in bad_models(tmp_path / "bad").items():
        farm.edgeloop("upload", str(path), "--name", name, "--no-check")
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"), "--name", "good")

    runner = farm.runner("--drain", "--task", "segmentation", device="host")
    printed, _ = runner.communicate(timeout=240)
    assert runner.returncode == 1, printed
    assert "Models: 1 done, 5 failed (dynamic, nan, ten-classes and others), 0 left." in printed
    again = farm.drain("--ok-if-errors", "--task", "segmentation", device="host")
    assert "5 failed" in again

    tried = Counter(tuple(line.split()[1:3]) for line in printed.splitlines() if line[:1] == "!")
    assert set(tried.values()) == {1}, f"a fault of the model itself is not tried again: {tried}"
    with farm.workspace() as workspace:
        rows = {str(row["name"]): row for row in workspace.status()}
    assert rows.pop("good")["status"] == "complete"
    reasons = {name: str(row["error"]) for name, row in rows.items()}
    assert {row["status"] for row in rows.values()} == {"error"}
    for name, words in {
        "dynamic": "shape",
        "nan": "NaN",
        "two-inputs": "takes one RGB image",
        "ten-classes": "does not fit",
        "unsupported": "",
    }.items():
        assert words in reasons[name], reasons[name]
        assert len(reasons[name]) < 600
        assert "Traceback" not in reasons[name]


# The program itself, but it tries three times instead of eight (half a minute) before it gives up.
IMPATIENT = """
from edgeloop.cli import main
from edgeloop.runner import coordinator
coordinator.PATIENCE = 2
main()
"""


def test_a_full_work_folder_is_not_the_models_fault(farm: Farm, tmp_path: Path) -> None:
    """A disk of 64 kB: every attempt fails, none is counted, and a drain does not say 'done'."""
    farm.edgeloop("upload", str(NETS / "unet-w16.onnx"))
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=64k tmpfs "$1" && shift && exec "$@"'
    options = ["--dataset", str(farm.faces), "--drain", "--workdir", str(disk / "work")]
    command = [sys.executable, "-c", IMPATIENT, "runner", *options]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(disk), *command],
        cwd=farm.folder,
        env=farm.environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    row = row_of(farm)
    assert row["node"] == ""
    assert all(record.attempts == 0 for record in records_of(row).values())
    farm.drain(device="host")
    assert row_of(farm)["status"] == "complete"


def test_a_work_folder_with_something_else_in_it_is_left_alone(farm: Farm, tmp_path: Path) -> None:
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"))
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "thesis.txt").write_text("mine")
    done = farm.edgeloop(
        "runner", "--dataset", str(farm.faces), "--drain", "--workdir", str(occupied), check=False
    )
    assert done.returncode == 1
    assert "not made by Edgeloop" in done.stderr
    assert [path.name for path in occupied.iterdir()] == ["thesis.txt"]
    assert row_of(farm)["status"] == "new"


def test_an_unknown_device_lists_those_there_are(farm: Farm) -> None:
    data = str(farm.faces)
    done = farm.edgeloop("runner", "--dataset", data, "--device", "htp:pentium", check=False)
    assert done.returncode == 1
    assert "snapdragon-888" in done.stderr


def test_a_chip_without_an_estimate_names_the_nearest_that_has_one(farm: Farm) -> None:
    farm.edgeloop("upload", str(NETS / "unet-w8.onnx"))
    device = "htp:snapdragon-8-plus-gen-1"
    done = farm.edgeloop(
        "runner", "--dataset", str(farm.faces), "--device", device, "--drain", check=False
    )
    assert done.returncode == 1
    assert "nearest chip that has one is snapdragon-8-gen-1" in done.stderr
    assert row_of(farm)["status"] == "new"
