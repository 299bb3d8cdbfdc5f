"""advise with the real compiler: gains that hold, files that compute the same, honest refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from edgeloop.platforms import platform_of
from edgeloop.settings import Settings
from tests.cli.conftest import Edgeloop
from tests.graph.rewrites.cases import graph, node, values, whole
from tests.nets_archai import export_archai

pytestmark = pytest.mark.slow
DEVICE = "htp:qcs8550"
NORMALIZATION = {"fold-scaling-border", "normalize-by-conv", "plain-operands"}


@pytest.fixture
def normalized(tmp_path: Path) -> Path:
    """A normalization and a channel shuffle between convolutions, at an odd size."""
    size, half = (40, 56), (20, 28)
    nodes = [
        node("Sub", "x", "mean", "a"),
        node("Div", "a", "std", "b"),
        node("Conv", "b", "k", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c", "d"),
        node("Reshape", "d", "to5", "e"),
        node("Transpose", "e", "f", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "f", "to4", "g"),
        node("Conv", "g", "l", "y", pads=[1, 1, 1, 1]),
    ]
    weights = {
        "mean": np.full((1, 3, 1, 1), 0.45, np.float32),
        "std": np.full((1, 3, 1, 1), 0.22, np.float32),
        "to5": whole(1, 2, 16, *half),
        "to4": whole(1, 32, *half),
        "k": values(32, 3, 3, 3),
        "l": values(19, 32, 3, 3),
    }
    path = tmp_path / "normalized.onnx"
    onnx.save_model(graph(nodes, {"x": (1, 3, *size)}, weights), str(path))
    return path


def outputs(path: Path, image: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: image})[0]


def estimate_ms(path: Path) -> float:
    estimator = platform_of(DEVICE).open_estimator(DEVICE, Settings.load(), 120)
    try:
        return estimator.latency_ms(path)
    finally:
        estimator.close()


def test_the_written_model_is_as_fast_as_promised_and_computes_the_same(
    edgeloop: Edgeloop, tmp_path: Path, normalized: Path
):
    better = tmp_path / "better.onnx"
    call = ("advise", normalized, "--device", DEVICE, "--workers", 2)
    found = edgeloop(*call, "--apply", better, "--json").json[0]
    assert found["gain_percent"] > 20 and found["written"] == str(better)
    assert all(one["gain_percent"] >= 0.99 for one in found["rewrites"])
    assert {one["name"] for one in found["rewrites"]} & NORMALIZATION
    assert estimate_ms(better) == pytest.approx(found["after_ms"], rel=1e-6)
    assert estimate_ms(normalized) == pytest.approx(found["before_ms"], rel=1e-6)
    image = np.random.default_rng(1).random((1, 3, 40, 56), np.float32)
    expected = outputs(normalized, image)
    assert np.abs(outputs(better, image) - expected).max() < 1e-4 * np.ptp(expected)

    again = edgeloop(*call)
    assert again.code == 0 and "(0 new compiles)" in again.out
    assert re.search(r"\nbefore: .* [\d.]+ – [\d.]+ µs; after: .* [\d.]+ – [\d.]+ µs\n", again.out)
    assert max(map(len, again.out.splitlines())) <= 80
    assert " % less" in again.out and "give a --dataset" in again.out


@pytest.mark.soak
def test_a_model_from_outside_and_one_that_cannot_be_improved(edgeloop: Edgeloop, tmp_path: Path):
    outside = export_archai(tmp_path / "outside.onnx", size=64)
    done = edgeloop("advise", outside, "--device", DEVICE, "--only", "conv-before-resize")
    assert done.code == 0, done.err
    plain = tmp_path / "plain.onnx"
    made = graph([node("Conv", "x", "k", "y")], {"x": (1, 3, 16, 16)}, {"k": values(32, 3, 1, 1)})
    onnx.save_model(made, str(plain))
    nothing = tmp_path / "nothing.onnx"
    done = edgeloop("advise", plain, "--device", DEVICE, "--apply", nothing)
    assert done.code == 0 and "nothing found that helps" in done.out
    assert "was not written" in done.out and not nothing.exists()


@pytest.mark.soak
def test_classes_are_offered_apart_and_the_dataset_tells_what_quantization_does(
    edgeloop: Edgeloop, tmp_path: Path, normalized: Path
):
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    dice = np.random.default_rng(2)
    for number in range(2):
        np.save(inputs / f"{number}.npy", dice.random((3, 40, 56), np.float32))
    call = ("advise", normalized, "--device", DEVICE, "--dataset", inputs, "--images", 2)
    only = ("--only", "fold-scaling-border", "--only", "normalize-by-conv", "--json")
    found = edgeloop(*call, *only).json[0]
    assert "dB" in found["rejected"]["fold-scaling-border"]  # it rounds once more than before
    assert [one["name"] for one in found["rewrites"]] == ["normalize-by-conv"]
    checked = found["quantized"]
    assert checked["samples"] == 2 and checked["after_db"] >= checked["before_db"] - 1
    assert checked["after_ms"] < checked["before_ms"]
    classes = tmp_path / "classes.onnx"
    only = ("--only", "end-in-classes", "--apply", classes, "--json")
    found = edgeloop("advise", normalized, "--device", DEVICE, *only).json[0]
    assert found["rewrites"] == [] and (found["written"] is None) == (found["others"] == [])
    if found["others"]:
        image = dice.random((1, 3, 40, 56), np.float32)
        assert np.mean(outputs(classes, image) == outputs(normalized, image).argmax(1)) > 0.999
    assert json.dumps(found)


def test_what_cannot_be_advised_is_said_in_one_sentence(
    edgeloop: Edgeloop, tmp_path: Path, normalized: Path
):
    assert "no such rewrite 'fold'" in edgeloop("advise", normalized, "--only", "fold").sentence
    assert "there is no such file" in edgeloop("advise", tmp_path / "missing.onnx").sentence
    assert "host" in edgeloop("advise", normalized, "--device", "host").sentence
