"""Which operators Qualcomm's compiler takes, asked of the compiler itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional

from edgeloop.errors import UnusableModel
from edgeloop.platforms.batching import as_input
from edgeloop.platforms.qnn import QnnPlatform
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.settings import Settings
from tests.converted import open_htp, samples, smooth_images
from tests.graph import odd_models
from tests.nets_torch import SmallViT, export

pytestmark = pytest.mark.slow

SIDE = 32
CHIP = find_chip("qcs8550")


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(SmallViT(), tmp_path_factory.mktemp("vit") / "vit.onnx", SIDE)


@pytest.mark.parametrize(
    "precision",
    [
        "a8w8-per-channel",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("a8w8", "a16w8")),
    ],
)
def test_a_transformer_is_taken_at_every_precision(vit, toolchain, tmp_path, precision):
    """LayerNormalization's weights are unsigned: the compiler refuses signed ones."""
    images = smooth_images(4, SIDE)
    converted = toolchain.convert(vit, samples(images), tmp_path, precision)
    quantized = converted.files[converted.quantized]
    assert toolchain.estimate(quantized, CHIP).raw_us > 0
    assert "rewritten exactly for the compiler: gelu (1×), linear (" in converted.notes[0]
    device = open_htp()
    try:
        batches = iter([{converted.info.input_name: images}])
        outputs = next(device.infer(quantized, converted.info, "quantized", batches))
    finally:
        device.close()
    chip = outputs[converted.info.output_name]
    session = onnxruntime.InferenceSession(str(vit), providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0].name
    wanted = np.concatenate(
        [session.run(None, {source: as_input(images[n : n + 1], "NCHW")})[0] for n in range(4)]
    )
    assert np.corrcoef(chip.ravel(), wanted.ravel())[0, 1] > 0.98


class LinearAttention(nn.Module):
    """As EfficientViT has it: keys and queries through a Relu, sums beside the values."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1)
        self.more = nn.Conv2d(24, 24, 1)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, image):
        stem = self.stem(image)
        count, _, height, width = stem.shape
        rows = torch.cat([stem, self.more(stem)], 1).reshape(count, 4, 12, -1).transpose(-1, -2)
        query, key, value = rows[..., 0:4], rows[..., 4:8], rows[..., 8:]
        sums = torch.relu(key).transpose(-1, -2) @ functional.pad(value, (0, 1), value=1.0)
        mixed = torch.relu(query) @ sums
        scaled = mixed[..., :-1] / (mixed[..., -1:] + 1e-5)
        return self.head(scaled.transpose(-1, -2).reshape(count, -1, height, width))


def test_a_relu_behind_a_part_of_a_tensor_is_taken(toolchain, tmp_path):
    """Made part of the scale of a Slice or Split, which cannot change scales, it would not be."""
    model = export(LinearAttention(), tmp_path / "attention.onnx", SIDE)
    converted = toolchain.convert(model, samples(smooth_images(2, SIDE)), tmp_path / "out")
    assert toolchain.estimate(converted.files[converted.quantized], CHIP).raw_us > 0
    assert toolchain.screen(model, CHIP).raw_us > 0


def test_a_graph_may_be_split_and_says_which_part_runs_where(tmp_path):
    """ReduceProd is refused; the convolutions around it still run on the chip."""
    model = odd_models.with_product(tmp_path / "m.onnx")
    images = smooth_images(2, SIDE)
    settings = Settings.load(tmp_path)
    with (
        closing(QnnPlatform().open_toolchain(settings)) as strict,
        pytest.raises(UnusableModel, match=r"does not take ReduceProd \(layer 'odd'\): use Mul"),
    ):
        strict.convert(model, samples(images), tmp_path / "no")
    allowed = settings.with_keys(allow_cpu_fallback=True)
    with (
        closing(QnnPlatform().open_toolchain(allowed)) as toolchain,
        closing(QnnPlatform().open_device("htp:qcs8550", allowed, 1)) as device,
    ):
        converted = toolchain.convert(model, samples(images), tmp_path / "out")
        said = (
            "ReduceProd 'odd' run on the CPU (0.0 % of the MACs), the rest in 2 parts on the chip"
        )
        assert said in converted.notes[-1]
        quantized = converted.files[converted.quantized]
        measured = device.measure(quantized, converted.info)
        assert "the latency is that of these parts alone" in measured.conditions["note"]
        assert measured.raw_us > 0
        batches = iter([{converted.info.input_name: images}])
        outputs = next(device.infer(quantized, converted.info, "quantized", batches))
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"x": as_input(images[:1], "NCHW")})[0]
    assert np.corrcoef(outputs["y"][:1].ravel(), wanted.ravel())[0, 1] > 0.98
