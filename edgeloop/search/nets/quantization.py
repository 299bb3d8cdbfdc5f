"""Quantization-aware training: a trained model learns on with the rounding that a chip will do.

Batch norms are folded into their convolutions first, since a chip has the folded weights. Weights
are rounded per output channel, activations per tensor, in ranges that follow what is seen; both
let gradients through. What is exported is the plain float model: its weights and activations have
moved to where rounding hurts less.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval

_FOLLOWS = 0.05  # how far a range moves with each batch
_LEVELS = 255
_SMALLEST = 1e-8


def with_fake_quantization(net: nn.Module, weight_bits: int) -> nn.Module:
    """The same model, changed in place: batch norms folded, weights and activations rounded."""
    net.eval()
    _fold(net)
    for module in list(net.modules()):
        if isinstance(module, nn.Conv2d | nn.Linear):
            parametrize.register_parametrization(module, "weight", _RoundedWeights(weight_bits))
    for module, is_last in _activations(net):
        if is_last:
            module.register_module("rounded_output", _RoundedActivations())
            module.register_forward_hook(_round_output)
    return net.train()


def without_fake_quantization(net: nn.Module) -> nn.Module:
    """A plain copy, with the weights as they are between the steps of rounding."""
    plain = copy.deepcopy(net)
    for module in list(plain.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
        if hasattr(module, "rounded_output"):
            del module.rounded_output
            module._forward_hooks.clear()
    return plain


class _RoundedWeights(nn.Module):
    def __init__(self, bits: int) -> None:
        super().__init__()
        self.last = 2 ** (bits - 1) - 1

    def forward(self, weight: Tensor) -> Tensor:
        peaks = weight.detach().abs().flatten(1).amax(dim=1)
        scale = (peaks / self.last).clamp(min=_SMALLEST).float()
        zero = torch.zeros(len(scale), dtype=torch.int32, device=weight.device)
        rounded: Tensor = torch.fake_quantize_per_channel_affine(
            weight, scale, zero, 0, -self.last - 1, self.last
        )
        return rounded


class _RoundedActivations(nn.Module):
    """Its range is that of the first batch, and then follows slowly."""

    low: Tensor
    high: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("low", "high", "seen"):
            self.register_buffer(name, torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                share = torch.where(self.seen > 0, _FOLLOWS, 1.0)
                least, most = torch.aminmax(x.detach().float())
                self.low.lerp_(least.clamp(max=0), share)
                self.high.lerp_(most.clamp(min=0), share)
                self.seen.fill_(1)
        scale = ((self.high - self.low) / _LEVELS).clamp(min=_SMALLEST)
        zero = (-self.low / scale).round().clamp(0, _LEVELS).to(torch.int32)
        rounded: Tensor = torch.fake_quantize_per_tensor_affine(x.float(), scale, zero, 0, _LEVELS)
        return rounded.to(x.dtype)


def _round_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    rounding = module.get_submodule("rounded_output")
    rounded: Tensor = rounding(output)
    return rounded


def _fold(net: nn.Module) -> None:
    """Every batch norm that directly follows a convolution in a sequence."""
    for module in list(net.modules()):
        if not isinstance(module, nn.Sequential):
            continue
        children = list(module.named_children())
        for (first, conv), (second, norm) in itertools.pairwise(children):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                module.register_module(first, fuse_conv_bn_eval(conv, norm))
                module.register_module(second, nn.Identity())


def _activations(net: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Layers and activations; and whether it is their output that a chip rounds: not that of a
    layer whose activation follows."""
    is_rounded: dict[nn.Module, bool] = {}
    for module in net.modules():
        if isinstance(module, nn.ReLU | nn.Conv2d | nn.Linear):
            is_rounded.setdefault(module, True)
        if isinstance(module, nn.Sequential):
            children = [each for each in module if not isinstance(each, nn.Identity)]
            for one, other in itertools.pairwise(children):
                if isinstance(one, nn.Conv2d | nn.Linear) and isinstance(other, nn.ReLU):
                    is_rounded[one] = False
    return list(is_rounded.items())
