"""Layers that the built-in spaces share. Import this only where torch is wanted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeloop.search.nets.spaces import (
    ArchaiHourglassPlan,
    ArchaiNetworkPlan,
    Block,
    HourglassPlan,
    NetworkPlan,
)


class ConvNormRelu(nn.Sequential):
    """Convolution, batch norm, ReLU: what every chip fuses into one."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def block_of(block: Block) -> nn.Sequential:
    return nn.Sequential(
        *(ConvNormRelu(each.inputs, each.outputs, each.kernel, each.stride) for each in block)
    )


def stacked_hourglasses(plan: NetworkPlan) -> nn.Sequential:
    parts: list[nn.Module] = [block_of(plan.stem)]
    hourglasses = [Hourglass(each) for each in plan.hourglasses]
    head = nn.Conv2d(plan.hourglasses[-1].channels, plan.classes, 1)
    parts += hourglasses
    if plan.hourglasses[-1].last:
        parts.append(head)
    else:
        hourglasses[-1].top = head
    if plan.stride > 1:
        parts.append(Enlarge(plan.stride))
    return nn.Sequential(*parts)


class Hourglass(nn.Module):
    """Down, and up again with what was kept of each level added.

    `top` stands before the last doubling; a head of 1 × 1 gives the same there as behind it, for a
    quarter of the work.
    """

    def __init__(self, plan: HourglassPlan) -> None:
        super().__init__()
        down = [block_of(block) for block in plan.down]
        pairs = [
            (block_of(skip), block_of(up)) for skip, up in zip(plan.skip, plan.up, strict=True)
        ]  # in turn: random numbers are drawn level by level, and weights stay what they were
        self.down = nn.ModuleList(down)
        self.skip = nn.ModuleList(skip for skip, _ in pairs)
        self.up = nn.ModuleList(up for _, up in pairs)
        self.top: nn.Module = nn.Identity()
        self.last = block_of(plan.last)

    def forward(self, x: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        for block in self.down:
            x = block(x)
            skipped.append(x)
        skipped.pop()
        for up, skip in zip(self.up, self.skip, strict=True):
            x = up(_doubled(x)) + skip(skipped.pop())
        y: Tensor = self.last(_doubled(self.top(x)))
        return y


class ArchaiStack(nn.Module):
    """The whole network of Archai's stacked hourglass."""

    def __init__(self, plan: ArchaiNetworkPlan) -> None:
        super().__init__()
        channels = plan.stem[-1].outputs
        self.stride = plan.stride
        self.stem = block_of(plan.stem)
        self.hourglasses = nn.Sequential(*(ArchaiHourglass(each) for each in plan.hourglasses))
        self.post = block_of(plan.post)
        self.head = nn.Conv2d(channels, plan.classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = _stretched(self.hourglasses(self.stem(x)), self.stride)
        y: Tensor = self.head(self.post(x))
        return y


class ArchaiHourglass(nn.Module):
    """Unlike ours, its first block keeps the size, and it ends with the channels it began with."""

    def __init__(self, plan: ArchaiHourglassPlan) -> None:
        super().__init__()
        self.down = nn.ModuleList(block_of(block) for block in plan.down)
        self.skip = nn.ModuleList(block_of(block) for block in plan.skip)
        self.up = nn.ModuleList(block_of(block) for block in plan.up)
        self.last = nn.Conv2d(plan.down[0][-1].outputs, plan.channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        *upper, lowest = self.down
        for down, skip in zip(upper, self.skip, strict=True):
            x = down(x)
            skipped.append(skip(x))
        x = lowest(x)
        for up in reversed(self.up):
            x = skipped.pop() + up(_stretched(x, 2))
        y: Tensor = self.last(x)
        return y


class Enlarge(nn.Module):
    """Bilinear, half-pixel: one Resize on the chip.

    PyTorch's own backward adds with atomics, which on a GPU takes longer than the convolutions and
    gives another sum each time; ours gathers.
    """

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.is_cuda:
            enlarged: Tensor = _Enlarged.apply(x, self.factor)  # type: ignore[no-untyped-call]
            return enlarged
        return _enlarged(x, self.factor)


class _Enlarged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return _enlarged(x, factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return adjoint(adjoint(gradient, 3, ctx.factor), 2, ctx.factor), None


def adjoint(gradient: Tensor, axis: int, factor: int) -> Tensor:
    """The transposed enlargement along one axis.

    An output pixel at offset o from its source's centre takes 1 − |o| of it and |o| of the
    neighbour on that side; at the borders the neighbour is the source itself.
    """
    sides = list(gradient.shape)
    sides[axis : axis + 1] = [sides[axis] // factor, factor]
    parts = gradient.reshape(sides).unbind(axis + 1)
    offsets = [(index + 0.5) / factor - 0.5 for index in range(factor)]
    pairs = list(zip(parts, offsets, strict=True))
    centre = sum(part * (1 - abs(offset)) for part, offset in pairs)
    before = sum(part * -offset for part, offset in pairs if offset < 0)
    after = sum(part * offset for part, offset in pairs if offset > 0)
    assert isinstance(centre, Tensor) and isinstance(before, Tensor) and isinstance(after, Tensor)
    size = centre.shape[axis]
    centre.narrow(axis, 0, size - 1).add_(before.narrow(axis, 1, size - 1))
    centre.narrow(axis, 1, size - 1).add_(after.narrow(axis, 0, size - 1))
    centre.narrow(axis, 0, 1).add_(before.narrow(axis, 0, 1))
    centre.narrow(axis, size - 1, 1).add_(after.narrow(axis, size - 1, 1))
    return centre


def _doubled(x: Tensor) -> Tensor:
    """Nearest: the convolutions behind it smooth, and it costs the least everywhere."""
    return _resized(x, 2, "nearest", None)


def _enlarged(x: Tensor, factor: int) -> Tensor:
    return _resized(x, factor, "bilinear", False)


def _stretched(x: Tensor, factor: int) -> Tensor:
    """Bilinear with the corners kept, as Archai's networks have it."""
    return x if factor == 1 else _resized(x, factor, "bilinear", True)


def _resized(x: Tensor, factor: int, mode: str, align_corners: bool | None) -> Tensor:
    """In the type that comes: mixed precision would make floats of it first, twice the bytes."""
    device = "cpu" if x.is_meta else x.device.type  # autocast knows no meta device
    with torch.autocast(device, enabled=False):
        return functional.interpolate(
            x, scale_factor=float(factor), mode=mode, align_corners=align_corners
        )
