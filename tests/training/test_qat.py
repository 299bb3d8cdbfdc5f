"""Quantization-aware training: rounding is learned around, and nothing of it is exported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from edgeloop.errors import BadInput
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.layers import ConvNormRelu
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan, load_weights
from edgeloop.search.nets.quantization import with_fake_quantization, without_fake_quantization
from edgeloop.search.nets.spaces import build
from edgeloop.search.nets.train import train


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many threads for small layers only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(ConvNormRelu(3, 8), ConvNormRelu(8, 8), nn.Conv2d(8, 4, 1))


def test_a_model_learns_to_live_with_4_bit_weights() -> None:
    images = torch.rand((8, 3, 12, 12), generator=torch.Generator().manual_seed(1))
    plain = small_net().eval()
    wanted = plain(images).detach()
    net = with_fake_quantization(small_net(), 4)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)

    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(images), wanted)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))

    assert losses[-1] < losses[0] / 2
    exported = without_fake_quantization(net.eval())
    assert not any(parametrize.is_parametrized(module) for module in exported.modules())
    assert not any(module._forward_hooks for module in exported.modules())
    torch.testing.assert_close(exported(images), wanted, atol=0.5, rtol=0.5)


def test_rounding_to_8_bits_changes_little() -> None:
    images = torch.rand((4, 3, 12, 12), generator=torch.Generator().manual_seed(1))
    wanted = small_net().eval()(images).detach()
    net = with_fake_quantization(small_net(), 8)
    given = net(images).detach()
    assert 0 < float((given - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
    torch.testing.assert_close(without_fake_quantization(net).eval()(images), wanted)


@pytest.mark.parametrize("bits", [2, 4])
def test_weights_have_as_many_levels_as_their_bits(bits: int) -> None:
    net = with_fake_quantization(nn.Sequential(nn.Conv2d(64, 2, 3)), bits)
    for channel in net[0].weight.detach():  # type: ignore[index, union-attr]
        assert 2**bits - 2 <= len(channel.unique()) <= 2**bits


@pytest.mark.slow
def test_a_trained_model_is_continued_and_exported_as_a_plain_one(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
) -> None:
    plan = TrainingPlan(steps=12, learning_rate=1e-2, device="cpu", images=64, validation_images=4)
    train(arch, plan, TrainingPaths(faces, tmp_path / "plain", cache))
    checkpoint = tmp_path / "plain" / "checkpoint.pt"
    aware = replace(plan, steps=3, learning_rate=1e-3, qat_from=checkpoint, qat_weight_bits=4)

    result = train(arch, aware, TrainingPaths(faces, tmp_path / "aware", cache))

    assert result.steps == 3
    again = train(arch, aware, TrainingPaths(faces, tmp_path / "aware", cache))
    assert again.f1 == result.f1, "a finished one is not repeated"
    operators = {node.op_type for node in onnx.load(tmp_path / "aware" / "model.onnx").graph.node}
    assert not operators & {"QuantizeLinear", "DequantizeLinear", "BatchNormalization"}
    assert "Conv" in operators
    with pytest.raises(BadInput, match="quantization-aware training"):
        load_weights(build(arch, 0), arch, tmp_path / "aware" / "checkpoint.pt")
