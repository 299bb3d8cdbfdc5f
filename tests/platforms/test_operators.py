"""Which operators Qualcomm's compiler takes, asked of the compiler itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from edgeloop.platforms import as_input
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.overrides import weight_overrides
from tests.converted import open_htp, samples, smooth_images
from tests.nets_torch import SmallViT, export

pytestmark = pytest.mark.slow

SIDE = 32
CHIP = find_chip("qcs8550")


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(SmallViT(), tmp_path_factory.mktemp("vit") / "vit.onnx", SIDE)


@pytest.mark.parametrize("precision", ["a8w8", "a8w8-per-channel", "a16w8"])
def test_a_transformer_is_taken_at_every_precision(vit, toolchain, tmp_path, precision):
    """LayerNormalization's weights are unsigned: the compiler refuses signed ones."""
    images = smooth_images(4, SIDE)
    converted = toolchain.convert(vit, samples(images), tmp_path, precision)
    quantized = converted.files[converted.quantized]
    assert toolchain.estimate(quantized, CHIP).raw_us > 0
    device = open_htp()
    try:
        chip = next(device.infer(quantized, converted.info, "quantized", iter([images])))
    finally:
        device.close()
    session = onnxruntime.InferenceSession(str(vit), providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0].name
    wanted = np.concatenate(
        [session.run(None, {source: as_input(images[n : n + 1], "NCHW")})[0] for n in range(4)]
    )
    assert np.corrcoef(chip.ravel(), wanted.ravel())[0, 1] > 0.98


def test_a_matrix_is_quantized_per_column_where_only_matmuls_read_it():
    nodes = [
        helper.make_node("MatMul", ["x", "own"], ["a"]),
        helper.make_node("MatMul", ["a", "shared"], ["b"]),
        helper.make_node("Add", ["b", "shared"], ["c"]),
        helper.make_node("LayerNormalization", ["c", "gain"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, (4, 4)) for name in "xy"]
    matrix, gain = np.eye(4, dtype=np.float32), np.ones(4, np.float32)
    weights = {"own": matrix, "shared": matrix, "gain": gain}
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    overrides = weight_overrides(helper.make_model(graph), is_per_channel=True)
    assert {name: settings[0].get("axis") for name, settings in overrides.items()} == {
        "own": 1,
        "gain": None,
    }
