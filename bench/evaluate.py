"""What the runner and the scoring add to the work itself."""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.tables import markdown
from edgeloop.platforms import open_device
from edgeloop.platforms.batching import run_test
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.runner import worker as worker_module
from edgeloop.runner.loop import RunnerOptions
from edgeloop.runner.loop import run as run_runner
from edgeloop.runner.presence import RunnerEvent
from edgeloop.runner.stages.base import Sizes
from edgeloop.settings import Settings
from edgeloop.store import SqliteLocation
from edgeloop.tasks import open_task
from edgeloop.testing.faces import make_faces
from edgeloop.workspace import Workspace

IMAGES = 120
SIDE = 256
TINY_MODELS = 10


def run() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return f"{_f1_onnx(folder)}\n\n{_runner(folder)}"


def _f1_onnx(folder: Path) -> str:
    """The stage's heart beside a bare loop over the same images with the same threads, on a U-Net
    of 0.7M parameters and on two bare convolutions, where scoring is a larger part of it all."""
    make_faces(folder / "faces256", IMAGES * 2, SIDE, seed=5)
    task = open_task("segmentation", folder / "faces256", folder / "cache")
    samples = task.test(SIDE, SIDE, IMAGES)
    host = open_device("host")
    rows = []
    nets = {"U-Net": _unet(folder / "unet.onnx"), "light": _net(folder / "net.onnx", SIDE, 32, 0)}
    for name, model in nets.items():
        with QnnToolchain() as toolchain:
            info = toolchain.inspect(model)
        ours, bare = [], []
        for _ in range(5):
            bare.append(_seconds(lambda m=model: _bare(m, samples.images)))
            ours.append(
                _seconds(lambda m=model, i=info: run_test(task, host, m, i, "float", samples))
            )
        plain, whole = statistics.median(bare), statistics.median(ours)
        goal = "≤ 1.3" if name == "U-Net" else ""
        rows.append((name, f"{plain:.2f}", f"{whole:.2f}", f"{whole / plain:.2f}", goal))
    headings = (f"{IMAGES} images of {SIDE}²", "bare inference, s", "f1_onnx, s", "ratio", "goal")
    return markdown(headings, rows)


def _unet(path: Path) -> Path:
    import torch

    from scripts.train_example_nets import SmallUNet

    warnings.filterwarnings("ignore")
    example = torch.rand(1, 3, SIDE, SIDE)
    torch.onnx.export(SmallUNet(64).eval(), (example,), str(path), opset_version=18, dynamo=False)
    return path


def _bare(model: Path, images: np.ndarray) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for image in images:
        session.run(None, {name: image.transpose(2, 0, 1)[None].astype(np.float32) / 255})


def _runner(folder: Path) -> str:
    """Wall time of a drain in which no stage was at work, for each stage that was done."""
    make_faces(folder / "faces32", 60, 32, seed=5)
    settings = Settings(folder / "project", SqliteLocation(folder / "project" / ".edgeloop"))
    spans: list[tuple[float, float]] = []
    reports: list[RunnerEvent] = []
    perform = worker_module.perform

    def timed(*arguments: object) -> object:
        began = time.monotonic()
        try:
            return perform(*arguments)
        finally:
            spans.append((began, time.monotonic()))

    with Workspace(settings) as workspace:
        for number in range(TINY_MODELS):
            workspace.upload(_net(folder / f"tiny{number}.onnx", 32, width=4, seed=number))
        options = RunnerOptions(
            devices=("htp",),
            dataset=folder / "faces32",
            drain=True,
            sizes=Sizes(calibration=8, quick=4, thorough=8),
        )
        with mock.patch.object(worker_module, "perform", timed):
            done = run_runner(workspace, options, reports.append).done
        assert {row["status"] for row in workspace.status()} == {"complete"}, reports
    wall = max(end for _, end in spans) - min(start for start, _ in spans)
    idle_ms = 1000 * (wall - _covered(spans)) / done
    row = (done, f"{wall:.1f}", f"{idle_ms:.0f}", "≤ 100")
    return markdown(("stages of ten tiny models", "wall, s", "added a stage, ms", "goal"), [row])


def _covered(spans: list[tuple[float, float]]) -> float:
    total, reached = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _seconds(action: object) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _net(path: Path, side: int, width: int, seed: int) -> Path:
    warnings.filterwarnings("ignore")
    dice = np.random.default_rng(seed)
    shapes = {"a": (width, 3, 3, 3), "b": (width, width, 3, 3), "c": (19, width, 1, 1)}
    weights = [
        numpy_helper.from_array((dice.standard_normal(s) / 5).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], **pads),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["r"], **pads),
        helper.make_node("Relu", ["r"], ["s"]),
        helper.make_node("Conv", ["s", "c"], ["y"]),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, side, side])
    classes = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 19, side, side])
    graph = helper.make_graph(nodes, path.stem, [image], [classes], weights)
    opset = helper.make_opsetid("", 18)
    onnx.save_model(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(path))
    return path
