"""Exported files say what the net says, and every later step takes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from edgeloop.errors import TrainingFailed
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.export import architecture_in, export_onnx
from edgeloop.search.nets.spaces import build
from tests.architectures.test_spaces import SHAPE, members
from tests.converted import samples, smooth_images


def lively(net: nn.Module) -> nn.Module:
    """Batch norms with statistics, as after training: folding them must not change anything."""
    dice = torch.Generator().manual_seed(1)
    net.train()
    with torch.no_grad():
        for _ in range(3):
            net(torch.rand((2, *SHAPE[1:]), generator=dice))
    return net.eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hourglass", "small-classifier"])
def test_random_members_match_torch_and_pass_the_toolchains_checks(
    name: str, tmp_path: Path, toolchain: QnnToolchain
):
    image = torch.from_numpy(smooth_images(1, 64)).permute(0, 3, 1, 2).float() / 255
    for arch in members(name, 12):
        net = lively(build(arch))
        path = export_onnx(net, arch, tmp_path / f"{arch.id}.onnx")
        with torch.no_grad():
            wanted = net(image).numpy()
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        given = session.run(None, {"image": image.numpy()})[0]
        np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
        info = toolchain.inspect(path)
        assert (info.input_shape, info.output_shape) == (SHAPE, wanted.shape)
        assert architecture_in(path) == arch
        kinds = {node.op_type for node in onnx.load_model(str(path)).graph.node}
        assert not kinds & {"Constant", "Identity", "BatchNormalization", "Shape"}, kinds


@pytest.mark.slow
def test_latency_is_known_before_training(tmp_path: Path, toolchain: QnnToolchain):
    """Skips are added, so scales that are made up change the estimate by very little."""
    chip = find_chip("snapdragon-888")
    for arch in members("hourglass", 3):
        path = export_onnx(lively(build(arch)), arch, tmp_path / f"{arch.id}.onnx")
        made = toolchain.convert(path, samples(smooth_images(4, 64)), tmp_path / arch.id)
        calibrated = toolchain.estimate(made.files[made.quantized], chip).raw_us
        assert toolchain.screen(path, chip).raw_us == pytest.approx(calibrated, rel=0.05)


@pytest.mark.slow
def test_exporting_leaves_the_net_as_it_was(tmp_path: Path):
    arch = members("hourglass", 1)[0]
    net = build(arch).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    export_onnx(net, arch, tmp_path / "new" / "net.onnx")
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["net.onnx"]


def test_a_file_of_other_origin_holds_no_architecture(tmp_path: Path):
    arch = members("small-classifier", 1)[0]
    path = export_onnx(build(arch), arch, tmp_path / "net.onnx")
    model = onnx.load_model(str(path))
    del model.metadata_props[:]
    onnx.save_model(model, str(path))
    assert architecture_in(path) is None


class Odd(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer(x)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: x, r"is \[1, 3, 64, 64\]"),
        (lambda x: x.mean(1), "output of the model is"),
        (lambda x: [x], "output of the model is list"),
        (lambda x: x[:, :2] / 0 * 0, "NaN or infinite"),
        (lambda x: x.reshape(7, 7), "does not accept an image"),
        (lambda x: torch.linalg.svdvals(x)[:, :2], "cannot be exported"),
    ],
)
def test_a_net_that_cannot_be_used_is_one_sentence(answer, said: str, tmp_path: Path):
    arch = Architecture("mine", {}, SHAPE, 2)
    with pytest.raises(TrainingFailed, match=said) as caught:
        export_onnx(Odd(answer), arch, tmp_path / "net.onnx")
    assert arch.id in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_file_that_says_otherwise_than_the_net_is_not_written(tmp_path: Path):
    """Random numbers in a net are frozen by no exporter: it would score as something else."""
    arch = Architecture("mine", {}, SHAPE, 2)
    with pytest.raises(TrainingFailed, match="disagrees with the model"):
        export_onnx(Odd(lambda x: x[:, :2] + torch.rand(1)), arch, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_threads_can_export_at_the_same_time(tmp_path: Path):
    """PyTorch's exporter refuses a second call in the same process while one is under way."""
    archs = members("hourglass", 6)
    nets = [build(arch) for arch in archs]
    paths = [tmp_path / f"{arch.id}.onnx" for arch in archs]
    with ThreadPoolExecutor(len(archs)) as pool:
        assert list(pool.map(export_onnx, nets, archs, paths)) == paths
    assert [architecture_in(path) for path in paths] == archs
