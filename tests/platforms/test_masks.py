"""Masks of attention, as exporters write them, in quantized models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgeloop.platforms import open_device
from edgeloop.tasks import Samples
from tests.graph import odd_models

pytestmark = pytest.mark.slow

info, node = odd_models.info, helper.make_node
LENGTH, WIDTH = 8, 16


def attention(path: Path, lowest: float) -> Path:
    """Every word attends to those that are kept, to some of them far more than to others."""
    nodes = [
        node("Where", ["kept", "zero", "lowest"], ["mask"], name="mask"),
        node("MatMul", ["words", "queries"], ["q"], name="q"),
        node("Transpose", ["words"], ["k"], name="k", perm=[0, 2, 1]),
        node("MatMul", ["q", "k"], ["scores"], name="scores"),
        node("Add", ["scores", "mask"], ["masked"], name="add"),
        node("Softmax", ["masked"], ["weights"], name="softmax", axis=-1),
        node("MatMul", ["weights", "words"], ["y"], name="y"),
    ]
    inputs = [info("words", [1, LENGTH, WIDTH]), info("kept", [1, 1, LENGTH], TensorProto.BOOL)]
    queries = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4
    constants = {"queries": queries, "zero": np.float32(0), "lowest": np.float32(lowest)}
    weights = {name: np.asarray(value) for name, value in constants.items()}
    return odd_models.save(path, nodes, inputs, [info("y", [1, LENGTH, WIDTH])], weights)


def sentences(count: int, seed: int) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(seed)
    words = dice.standard_normal((count, LENGTH, WIDTH)).astype(np.float32)
    return {"words": words, "kept": np.arange(LENGTH) < dice.integers(2, 9, (count, 1, 1))}


@pytest.mark.parametrize("lowest", [np.finfo(np.float32).min, -np.inf, -1e4])
def test_a_mask_does_not_blur_attention_once_it_is_quantized(lowest, toolchain, tmp_path):
    model = attention(tmp_path / "attention.onnx", lowest)
    nothing = np.zeros((0, 0, 0, 3), np.uint8)
    calibration = Samples(nothing, nothing, "", tensors=sentences(32, seed=1))
    made = toolchain.convert(model, calibration, tmp_path / "out", chips=("qcs8550",))
    host, batch = open_device("host"), sentences(8, seed=2)
    (exact,) = host.infer(model, made.info, "float", iter([batch]))
    quantized = made.files[made.quantized]
    (found,) = host.infer(quantized, made.info, "quantized", iter([batch]))
    error = np.linalg.norm(found["y"] - exact["y"]) / np.linalg.norm(exact["y"])
    assert error < 0.15
