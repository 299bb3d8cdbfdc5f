"""Super-resolution, denoising and deblurring, after the papers: few layers on large maps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.latency.networks.recipe import Recipe


class AnchoredResolution(nn.Module):
    """QuickSRNet: plain convolutions, and a head of scale² images; `has_identity` adds the input
    to each of them by a convolution that repeats it."""

    def __init__(self, width: int, layers: int, scale: int, has_identity: bool) -> None:
        super().__init__()
        body = [nn.Conv2d(3, width, 3, padding=1), nn.Hardtanh(0, 1)]
        for _ in range(layers):
            body += [nn.Conv2d(width, width, 3, padding=1), nn.Hardtanh(0, 1)]
        self.body = nn.Sequential(*body)
        self.last = nn.Conv2d(width, 3 * scale**2, 3, padding=1)
        self.identity = nn.Conv2d(3, 3 * scale**2, 1) if has_identity else None
        self.shuffle = nn.PixelShuffle(scale)

    def forward(self, image: Tensor) -> Tensor:
        values = self.last(self.body(image))
        if self.identity is not None:
            values = values + self.identity(image)
        return functional.hardtanh(self.shuffle(values), 0, 1)


class CollapsedResolution(nn.Module):
    """SESR: 5x5, then 3x3 with a residual around all of them, then 5x5, all collapsed."""

    def __init__(self, width: int, layers: int, scale: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 5, padding=2)
        self.body = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width))
                for _ in range(layers)
            )
        )
        self.activation = nn.PReLU(width)
        self.last = nn.Conv2d(width, 3 * scale**2, 5, padding=2)
        self.repeat = nn.Conv2d(3, 3 * scale**2, 1, bias=False)
        self.shuffle = nn.PixelShuffle(scale)

    def forward(self, image: Tensor) -> Tensor:
        values = self.activation(self.first(image))
        values = self.last(values + self.body(values))
        return self.shuffle(values + self.repeat(image)).clamp(0, 1)


class GroupedResolution(nn.Module):
    """XLSR: three blocks of a convolution in four groups and one that mixes their channels."""

    class Block(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(
                nn.Conv2d(32, 32, 3, padding=1, groups=4), nn.ReLU(), nn.Conv2d(32, 32, 1)
            )

    def __init__(self, scale: int) -> None:
        super().__init__()
        self.side = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
        self.front = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU())
        self.blocks = nn.Sequential(*(self.Block() for _ in range(3)))
        self.after = nn.Sequential(nn.Conv2d(48, 32, 1), nn.ReLU())
        self.last = nn.Conv2d(32, 3 * scale**2, 3, padding=1)
        self.shuffle = nn.PixelShuffle(scale)

    def forward(self, image: Tensor) -> Tensor:
        values = self.blocks(self.front(image))
        values = self.after(torch.cat((values, self.side(image)), 1))
        return self.shuffle(self.last(values)).clamp(0, 1)


class ResidualResolution(nn.Module):
    """SRResNet, the generator of SRGAN: 16 residual blocks, two doublings by pixel shuffle."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(64, 64, 3, padding=1, bias=False),
                nn.BatchNorm2d(64),
                nn.PReLU(),
                nn.Conv2d(64, 64, 3, padding=1, bias=False),
                nn.BatchNorm2d(64),
            )

        def forward(self, values: Tensor) -> Tensor:
            return self.body(values) + values

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 64, 9, padding=4), nn.PReLU())
        self.trunk = nn.Sequential(*(self.Block() for _ in range(16)))
        self.after = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64))
        doubling = []
        for _ in range(2):
            doubling += [nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.PReLU()]
        self.doubling = nn.Sequential(*doubling)
        self.last = nn.Conv2d(64, 3, 9, padding=4)

    def forward(self, image: Tensor) -> Tensor:
        first = self.first(image)
        values = self.after(self.trunk(first)) + first
        return self.last(self.doubling(values)).clamp(0, 1)


class CompactResolution(nn.Module):
    """Real-ESRGAN's small network: PReLU convolutions, pixel shuffle, plus the enlarged input."""

    def __init__(self, width: int = 64, layers: int = 32, scale: int = 4) -> None:
        super().__init__()
        body = [nn.Conv2d(3, width, 3, padding=1), nn.PReLU(width)]
        for _ in range(layers):
            body += [nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width)]
        self.body = nn.Sequential(*body, nn.Conv2d(width, 3 * scale**2, 3, padding=1))
        self.shuffle, self.scale = nn.PixelShuffle(scale), scale

    def forward(self, image: Tensor) -> Tensor:
        enlarged = functional.interpolate(image, scale_factor=self.scale, mode="nearest")
        return self.shuffle(self.body(image)) + enlarged


class DenseResolution(nn.Module):
    """ESRGAN: residual blocks of densely joined convolutions, two nearest doublings."""

    class Dense(nn.Module):
        def __init__(self, width: int, growth: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Conv2d(width + i * growth, growth if i < 4 else width, 3, padding=1)
                for i in range(5)
            )

        def forward(self, values: Tensor) -> Tensor:
            joined = values
            for layer in self.layers[:-1]:
                made = functional.leaky_relu(layer(joined), 0.2)
                joined = torch.cat((joined, made), 1)
            return self.layers[-1](joined) * 0.2 + values

    class Block(nn.Module):
        def __init__(self, width: int, growth: int) -> None:
            super().__init__()
            self.body = nn.Sequential(*(DenseResolution.Dense(width, growth) for _ in range(3)))

        def forward(self, values: Tensor) -> Tensor:
            return self.body(values) * 0.2 + values

    def __init__(self, is_clamped: bool, width: int = 64, growth: int = 32) -> None:
        super().__init__()
        self.is_clamped = is_clamped
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.trunk = nn.Sequential(*(self.Block(width, growth) for _ in range(23)))
        self.after = nn.Conv2d(width, width, 3, padding=1)
        self.doublings = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.high = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        first = self.first(image)
        values = first + self.after(self.trunk(first))
        for doubling in self.doublings:
            values = functional.interpolate(values, scale_factor=2, mode="nearest")
            values = functional.leaky_relu(doubling(values), 0.2)
        values = self.last(functional.leaky_relu(self.high(values), 0.2))
        return values.clamp(0, 1) if self.is_clamped else values


class Denoiser(nn.Module):
    """DnCNN: the noise is computed and taken away."""

    def __init__(self, width: int = 64, layers: int = 17) -> None:
        super().__init__()
        body = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
        for _ in range(layers - 2):
            body += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*body, nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, image: Tensor) -> Tensor:
        return (image - self.body(image)).clamp(0, 1)


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of a map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, values: Tensor) -> Tensor:
        moved = values.permute(0, 2, 3, 1)
        return functional.layer_norm(moved, self.weight.shape, self.weight, self.bias).permute(
            0, 3, 1, 2
        )


class GatedRestoration(nn.Module):
    """NAFNet: a U-Net of blocks whose activations are products of two halves."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norms = nn.ModuleList(ChannelNorm(width) for _ in range(2))
            self.widen = nn.Conv2d(width, 2 * width, 1)
            self.local = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
            self.attention = nn.Conv2d(width, width, 1)
            self.narrow = nn.Conv2d(width, width, 1)
            self.inner = nn.Conv2d(width, 2 * width, 1)
            self.outer = nn.Conv2d(width, width, 1)
            self.scales = nn.ParameterList(torch.rand(1, width, 1, 1) for _ in range(2))

        def forward(self, image: Tensor) -> Tensor:
            left, right = self.local(self.widen(self.norms[0](image))).chunk(2, 1)
            values = left * right
            values = values * self.attention(functional.adaptive_avg_pool2d(values, 1))
            middle = image + self.narrow(values) * self.scales[0]
            left, right = self.inner(self.norms[1](middle)).chunk(2, 1)
            return middle + self.outer(left * right) * self.scales[1]

    def __init__(self, width: int, down: list[int], middle: int, up: list[int]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for count in down:
            blocks = nn.Sequential(*(self.Block(width) for _ in range(count)))
            self.down.append(nn.ModuleList((blocks, nn.Conv2d(width, 2 * width, 2, 2))))
            width *= 2
        self.middle = nn.Sequential(*(self.Block(width) for _ in range(middle)))
        for count in up:
            wider = nn.Sequential(nn.Conv2d(width, 2 * width, 1, bias=False), nn.PixelShuffle(2))
            width //= 2
            blocks = nn.Sequential(*(self.Block(width) for _ in range(count)))
            self.up.append(nn.ModuleList((wider, blocks)))

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[2:]
        step = 2 ** len(self.down)
        padded = functional.pad(image, (0, -width % step, 0, -height % step))
        values, skips = self.first(padded), []
        for blocks, narrower in self.down:
            skips.append(blocks(values))
            values = narrower(skips[-1])
        values = self.middle(values)
        for (wider, blocks), skip in zip(self.up, reversed(skips), strict=True):
            values = blocks(wider(values) + skip)
        return (self.last(values) + padded)[:, :, :height, :width]


_SMALL = (128, 128)
RECIPES = {
    "quicksrnetsmall": Recipe(lambda: AnchoredResolution(32, 2, 4, False), _SMALL),
    "quicksrnetmedium": Recipe(lambda: AnchoredResolution(32, 5, 4, False), _SMALL),
    "quicksrnetlarge": Recipe(lambda: AnchoredResolution(64, 11, 4, True), _SMALL),
    "sesr_m5": Recipe(lambda: CollapsedResolution(16, 5, 4), _SMALL),
    "xlsr": Recipe(lambda: GroupedResolution(4), _SMALL),
    "srgan": Recipe(ResidualResolution, _SMALL),
    "real_esrgan_general_x4v3": Recipe(CompactResolution, _SMALL),
    "real_esrgan_x4plus": Recipe(lambda: DenseResolution(True), _SMALL),
    "esrgan": Recipe(lambda: DenseResolution(False), _SMALL),
    "dncnn": Recipe(Denoiser, (256, 256), channels=1),
    "nafnet_deblur": Recipe(lambda: GatedRestoration(64, [1, 1, 1, 28], 1, [1] * 4), (360, 640)),
    "nafnet_denoise": Recipe(lambda: GatedRestoration(64, [2, 2, 4, 8], 12, [2] * 4), (256, 256)),
}
