"""Trained nets through every stage, two runners at once, on every store; and every column
and file held against a computation of the test's own."""

from __future__ import annotations

import csv
import html
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from edgeloop.graph.outline import parse_outline
from edgeloop.models.plan import records_of
from edgeloop.store import Values
from edgeloop.tasks import read_example_images, read_examples
from edgeloop.view.charts import read_curves
from tests.runner.conftest import NETS, Farm

pytestmark = pytest.mark.slow

STAGES = ("convert", "benchmark", "f1_onnx", "f1_1k", "f1_1k_f", "f1_10k")

SIMULATOR = """
import sys, numpy, onnxruntime as ort, onnxruntime_qnn as qnn
ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
devices = [d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider"]
options = ort.SessionOptions()
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
backend = f"{qnn.LIB_DIR_FULL_PATH}/libQnnHtp.so"
options.add_provider_for_devices(devices, {"backend_path": backend, "soc_model": "43"})
session = ort.InferenceSession(sys.argv[1], sess_options=options)
name = session.get_inputs()[0].name
images = numpy.load(sys.argv[2])
numpy.save(sys.argv[3], numpy.concatenate([session.run(None, {name: i[None]})[0] for i in images]))
"""


@pytest.mark.parametrize(
    ("kind", "nets"),
    [
        ("postgresql", ("unet-w16", "unet-w8")),
        pytest.param("sqlite", ("unet-w16", "unet-w24", "unet-w8"), marks=pytest.mark.soak),
        pytest.param("azure", ("unet-w16", "unet-w24", "unet-w8"), marks=pytest.mark.soak),
    ],
)
def test_two_runners_fill_every_column_and_file(
    make_farm: Callable[[str], Farm], kind: str, nets: tuple[str, ...], tmp_path: Path
) -> None:
    farm = make_farm(kind)
    farm.edgeloop("upload", *(str(NETS / f"{net}.onnx") for net in nets))

    runners = [farm.runner("--drain") for _ in range(2)]
    outputs = [runner.communicate(timeout=240)[0] for runner in runners]

    assert [runner.returncode for runner in runners] == [0, 0], outputs
    farm.drain()  # what one of them had to leave to the other
    with farm.workspace() as workspace:
        rows = workspace.status()
        assert sorted(str(row["model_name"]) for row in rows) == [f"{net}.onnx" for net in nets]
        for row in rows:
            folder = tmp_path / str(row["name"])
            workspace.model(str(row["name"])).download(folder)
            _check_state(row)
            _check_graph(row, folder)
            _check_benchmark(row, folder)
            _check_scores(row, folder, farm.faces)


def _check_state(row: Values) -> None:
    assert (row["status"], row["node"]) == ("complete", "")
    assert "error" not in row
    for stage in STAGES:
        record = records_of(row)[stage]
        assert not record.is_held
        assert record.attempts == 0


def _check_graph(row: Values, folder: Path) -> None:
    """MACs of the convolutions, from shapes that ONNX itself infers."""
    stem = str(row["model_name"]).removesuffix(".onnx")
    model = onnx.shape_inference.infer_shapes(onnx.load(folder / f"{stem}.onnx"))
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*model.graph.value_info, *model.graph.output)
    }
    weights = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    macs = params = 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            _, _, height, width = shapes[node.output[0]]
            kernel = int(np.prod(weights[node.input[1]]))
            macs += kernel * height * width
            params += kernel + (int(np.prod(weights[node.input[2]])) if len(node.input) > 2 else 0)
    assert row["macs"] == macs
    assert row["params"] == params
    assert json.loads(str(row["shape"])) == [64, 64, 3]
    assert json.loads(str(row["output_shape"])) == [64, 64, 19]
    assert row["quantized"] is True
    for name in (f"{stem}.dlc", f"{stem}.quant.dlc", f"{stem}.qcs8550.bin"):
        assert (folder / name).stat().st_size > 1_000
    with (folder / f"{stem}.layers.csv").open() as file:
        layers = list(csv.DictReader(file))
    assert sum(int(layer["macs"] or 0) for layer in layers) == macs
    outline = parse_outline((folder / f"{stem}.graph.json").read_bytes())
    assert outline is not None
    drawn, listed = {layer.name for layer in outline.layers}, {layer["name"] for layer in layers}
    assert len(drawn & listed) >= 0.5 * len(listed), "activations are parts of convolutions"
    page = (folder / f"{stem}.layers.html").read_text()
    assert all(html.escape(layer["name"]) in page for layer in layers) and f"{macs:,} MACs" in page


def _check_benchmark(row: Values, folder: Path) -> None:
    runs = json.loads(str(row["total_inference_avg"]))
    totals = []
    for number in range(1, len(runs) + 1):
        with (folder / f"perf_results_{number}.csv").open() as file:
            lines = list(csv.DictReader(file))
        assert {line["kind"] for line in lines} == {"estimate"}
        totals += [float(line["time_us"]) / 1e6 for line in lines if line["what"] == "total"]
    assert len(runs) == 1, "of two runs that were asked for: the second would be the same"
    assert row["runs"] == "1, deterministic"
    assert totals == pytest.approx(runs)
    assert row["mean"] == runs[0] and row["stdev"] == 0.0
    assert row["latency_kind"] == "estimate"
    assert row["device"] == "htp:qcs8550"
    assert row["latency_low_ms"] < 1000 * runs[0] < row["latency_high_ms"]
    assert row["latency_basis"] and "latency_margin_percent" not in row
    assert row["latency_calibrated"] is True


def _check_scores(row: Values, folder: Path, faces: Path) -> None:
    stem = str(row["model_name"]).removesuffix(".onnx")
    images, labels = face_test_set(faces, 20)
    assert row["f1_onnx"] == pytest.approx(f1(cpu(folder / f"{stem}.onnx", images), labels))
    assert float(row["f1_onnx"]) > 0.3  # they were trained, after all
    if stem == "unet-w8":
        outputs = _simulated(folder / f"{stem}.quant.onnx", images, folder)
        assert row["f1_10k"] == pytest.approx(f1(outputs, labels), abs=1e-6)
        assert row["f1_1k"] == pytest.approx(f1(outputs[-10:], labels[-10:]), abs=1e-6)
    quick = f1(cpu(folder / f"{stem}.onnx", images[-10:]), labels[-10:])
    assert row["f1_1k_f"] == pytest.approx(quick, abs=0.02)  # fp16
    assert row["f1_1k"] == pytest.approx(quick, abs=0.06)  # quantized
    for stage in ("f1_onnx", "f1_1k", "f1_1k_f", "f1_10k"):
        with (folder / f"test_results_{stage}.csv").open() as file:
            table = {line[0]: line[1:] for line in csv.reader(file)}
        assert float(table["f1"][-1]) == pytest.approx(float(row[stage]), abs=1e-6)
        with Image.open(folder / f"pr_curve_{stage}.png") as picture:
            assert picture.size[0] > 300
        low, high = float(table["f1_low"][-1]), float(table["f1_high"][-1])
        assert low <= float(row[stage]) <= high and low < high
        curves = read_curves((folder / f"pr_curve_{stage}.csv").read_text())
        assert len(curves) > 10 and max(len(recall) for recall, _ in curves.values()) <= 200
    _check_examples(folder, stem, images[-4:], labels[-4:])


def _check_examples(folder: Path, stem: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Of every test the same images, with its own answers."""
    answers = cpu(folder / f"{stem}.onnx", images).argmax(axis=1)
    keys = set()
    for stage, least in (("f1_onnx", 0.999), ("f1_1k_f", 0.98), ("f1_1k", 0.85), ("f1_10k", 0.85)):
        found = read_examples((folder / f"examples_{stage}.png").read_bytes())
        np.testing.assert_array_equal(found.truth, labels)
        assert (found.answers == answers).mean() > least, stage
        assert found.device == ("host" if stage == "f1_onnx" else "htp:qcs8550")
        shown = read_example_images((folder / f"examples_{stage}.jpg").read_bytes(), found)
        assert np.abs(shown / 255 - images.transpose(0, 2, 3, 1)).mean() < 0.05
        keys.add(found.key)
    assert len(keys) == 1


def face_test_set(faces: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    names = sorted(path for path in faces.glob("*.png") if "_seg" not in path.name)[-count:]
    images = np.stack([np.asarray(Image.open(name).convert("RGB")) for name in names])
    labels = [np.asarray(Image.open(name.with_name(f"{name.stem}_seg.png"))) for name in names]
    return images.transpose(0, 3, 1, 2).astype(np.float32) / 255, np.stack(labels)


def cpu(model: Path, images: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: image[None]})[0] for image in images])


def _simulated(model: Path, images: np.ndarray, folder: Path) -> np.ndarray:
    np.save(folder / "images.npy", images)
    files = [str(model), str(folder / "images.npy"), str(folder / "out.npy")]
    subprocess.run([sys.executable, "-c", SIMULATOR, *files], check=True, capture_output=True)
    return np.load(folder / "out.npy")


def f1(logits: np.ndarray, labels: np.ndarray) -> float:
    """The formula, written down plainly: classes 1–17, weighted by 1/√(truth pixels)."""
    predicted = logits.argmax(axis=1)
    total = weight = 0.0
    for number in range(1, 18):
        truth = labels == number
        claimed = (predicted == number) & (labels != 255)
        pixels = truth.sum()
        if pixels:
            f1 = 2 * (truth & claimed).sum() / max(1, pixels + claimed.sum())
            total += f1 / np.sqrt(pixels)
            weight += 1 / np.sqrt(pixels)
    return float(total / weight)
