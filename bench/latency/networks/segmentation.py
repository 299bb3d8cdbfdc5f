"""Segmentation and depth: U-shaped networks, dilated ones, and transformers with dense outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.latency.networks.packages import (
    timm_network,
    torchvision_network,
    transformers_network,
)
from bench.latency.networks.recipe import IMAGENET, Deployed, Recipe


def _classes(outputs: Any) -> Tensor:
    logits = outputs["out"] if isinstance(outputs, dict) else outputs
    return logits.argmax(1).to(torch.int32)


def _step(width: int, target: int, kernel: int = 3, spread: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, target, kernel, padding=spread * (kernel // 2), dilation=spread),
        nn.BatchNorm2d(target),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """The original with padded convolutions and transposed ones on the way up."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 1024)
        self.down = nn.ModuleList(
            nn.Sequential(_step(before, width), _step(width, width))
            for before, width in zip((3, *widths), widths, strict=False)
        )
        self.wider = nn.ModuleList(
            nn.ConvTranspose2d(w, w // 2, 2, 2) for w in reversed(widths[1:])
        )
        self.up = nn.ModuleList(
            nn.Sequential(_step(w, w // 2), _step(w // 2, w // 2)) for w in reversed(widths[1:])
        )
        self.last = nn.Conv2d(64, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        maps = [self.down[0](image)]
        for block in self.down[1:]:
            maps.append(block(functional.max_pool2d(maps[-1], 2)))
        values = maps.pop()
        for wider, block in zip(self.wider, self.up, strict=True):
            values = block(torch.cat((maps.pop(), wider(values)), 1))
        return self.last(values)


class NestedU(nn.Module):
    """A block of U²-Net: a small U-Net with a residual. `is_flat` dilates in place of pooling."""

    def __init__(
        self, depth: int, width: int, middle: int, target: int, is_flat: bool = False
    ) -> None:
        super().__init__()
        self.is_flat, self.first = is_flat, _step(width, target)
        spreads = [2**i if is_flat else 1 for i in range(depth - 1)]
        self.down = nn.ModuleList(
            _step(target if i == 0 else middle, middle, spread=s) for i, s in enumerate(spreads)
        )
        self.bottom = _step(middle, middle, spread=2 ** (depth - 1) if is_flat else 2)
        self.up = nn.ModuleList(
            _step(2 * middle, target if i == 0 else middle, spread=s) for i, s in enumerate(spreads)
        )

    def forward(self, values: Tensor) -> Tensor:
        first = self.first(values)
        maps = [self.down[0](first)]
        for layer in self.down[1:]:
            source = maps[-1]
            if not self.is_flat:
                source = functional.max_pool2d(source, 2, 2, ceil_mode=True)
            maps.append(layer(source))
        values = self.bottom(maps[-1])
        for layer, skip in zip(reversed(self.up), reversed(maps), strict=True):
            values = layer(torch.cat((_resized(values, skip), skip), 1))
        return values + first


class NestedUNet(nn.Module):
    """U²-Net: a U-Net of such blocks, with a side output of every level joined at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            (
                NestedU(7, 3, 32, 64),
                NestedU(6, 64, 32, 128),
                NestedU(5, 128, 64, 256),
                NestedU(4, 256, 128, 512),
                NestedU(4, 512, 256, 512, True),
                NestedU(4, 512, 256, 512, True),
            )
        )
        self.up = nn.ModuleList(
            (
                NestedU(4, 1024, 256, 512, True),
                NestedU(4, 1024, 128, 256),
                NestedU(5, 512, 64, 128),
                NestedU(6, 256, 32, 64),
                NestedU(7, 128, 16, 64),
            )
        )
        widths = (64, 64, 128, 256, 512, 512)
        self.sides = nn.ModuleList(nn.Conv2d(width, 1, 3, padding=1) for width in widths)
        self.joined = nn.Conv2d(6, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        maps = [self.down[0](image)]
        for block in self.down[1:]:
            maps.append(block(functional.max_pool2d(maps[-1], 2, 2, ceil_mode=True)))
        values = maps.pop()
        levels = [values]
        for block in self.up:
            skip = maps.pop()
            values = block(torch.cat((_resized(values, skip), skip), 1))
            levels.append(values)
        sides = [side(level) for side, level in zip(self.sides, reversed(levels), strict=True)]
        sides = [sides[0], *(_resized(side, sides[0]) for side in sides[1:])]
        return torch.sigmoid(self.joined(torch.cat(sides, 1)))


class Brightened(nn.Module):
    """A network that is given the image divided by its largest value, then normalised."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = Deployed(network, IMAGENET, None)

    def forward(self, image: Tensor) -> Tensor:
        largest = image.amax(dim=(1, 2, 3), keepdim=True)
        return self.network(torch.where(largest > 1e-6, image / largest, image))


def _resized(values: Tensor, target: Tensor) -> Tensor:
    return functional.interpolate(
        values, size=target.shape[2:], mode="bilinear", align_corners=False
    )


class Pyramid(nn.Module):
    """PSPNet on a dilated ResNet-101 with three convolutions first; the image and its mirror image
    go through together, and the mean of their probabilities is the answer."""

    def __init__(self, classes: int = 150) -> None:
        super().__init__()
        spread = [False, True, True]
        net = torchvision_network("resnet101", replace_stride_with_dilation=spread)
        net.inplanes = 128
        stem = (_step(3, 64), _step(64, 64), _step(64, 128))
        stem[0][0].stride = (2, 2)
        first = net.layer1[0]
        first.conv1 = nn.Conv2d(128, 64, 1, bias=False)
        first.downsample[0] = nn.Conv2d(128, 256, 1, bias=False)
        self.features = nn.Sequential(
            *stem, nn.MaxPool2d(3, 2, 1), net.layer1, net.layer2, net.layer3, net.layer4
        )
        self.bins = (1, 2, 3, 6)
        self.pooled = nn.ModuleList(_step(2048, 512, 1) for _ in self.bins)
        self.last = nn.Sequential(_step(4096, 512), nn.Conv2d(512, classes, 1))

    def forward(self, image: Tensor) -> Tensor:
        both = torch.cat((image, image.flip(3)), 0)
        mean, deviation = (torch.tensor(v).reshape(1, 3, 1, 1) for v in IMAGENET)
        features = self.features((both - mean) / deviation)
        size = features.shape[2:]
        maps = [features]
        for bins, layer in zip(self.bins, self.pooled, strict=True):
            kernel = [-(-side // bins) for side in size]
            pooled = layer(functional.avg_pool2d(features, kernel, ceil_mode=True))
            maps.append(
                functional.interpolate(pooled, size=size, mode="bilinear", align_corners=True)
            )
        values = self.last(torch.cat(maps, 1))
        values = functional.interpolate(
            values, size=image.shape[2:], mode="bilinear", align_corners=True
        ).softmax(1)
        return ((values[0] + values[1].flip(2)) / 2).unsqueeze(0)


class Atrous(nn.Module):
    """DeepLabV3+ on MobileNetV2 at stride 16."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        features = torchvision_network("mobilenet_v2").features
        self.fine, self.coarse = features[:4], features[4:18]
        for block in self.coarse[10:]:
            for layer in block.modules():
                if isinstance(layer, nn.Conv2d) and layer.groups > 1:
                    layer.stride, layer.dilation, layer.padding = (1, 1), (2, 2), (2, 2)
        self.branches = nn.ModuleList(
            (_step(320, 256, 1), *(_step(320, 256, 3, spread) for spread in (6, 12, 18)))
        )
        self.pooled = _step(320, 256, 1)
        self.joined, self.thin = _step(5 * 256, 256, 1), _step(24, 48, 1)
        self.last = nn.Sequential(_step(304, 256), _step(256, 256), nn.Conv2d(256, classes, 1))

    def forward(self, image: Tensor) -> Tensor:
        fine = self.fine(image)
        coarse = self.coarse(fine)
        pooled = self.pooled(functional.adaptive_avg_pool2d(coarse, 1))
        size = coarse.shape[2:]
        pooled = functional.interpolate(pooled, size=size, mode="bilinear", align_corners=True)
        values = self.joined(torch.cat([*(b(coarse) for b in self.branches), pooled], 1))
        size = fine.shape[2:]
        values = functional.interpolate(values, size=size, mode="bilinear", align_corners=True)
        values = self.last(torch.cat((values, self.thin(fine)), 1))
        size = image.shape[2:]
        return functional.interpolate(values, size=size, mode="bilinear", align_corners=True)


class RefinedDepth(nn.Module):
    """MiDaS v2.1 small: EfficientNet-Lite3 and a decoder of residual units."""

    class Unit(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

        def forward(self, values: Tensor) -> Tensor:
            made = values
            for layer in self.layers:
                made = layer(functional.relu(made))
            return made + values

    def __init__(self) -> None:
        super().__init__()
        backbone = timm_network("tf_efficientnet_lite3")
        blocks = backbone.blocks
        stem = (backbone.conv_stem, backbone.bn1)
        self.levels = nn.ModuleList(
            nn.Sequential(*part)
            for part in ((*stem, *blocks[:2]), blocks[2:3], blocks[3:5], blocks[5:])
        )
        sources, widths = (32, 48, 136, 384), (64, 128, 256, 512)
        self.thin = nn.ModuleList(
            nn.Conv2d(s, w, 3, padding=1, bias=False) for s, w in zip(sources, widths, strict=True)
        )
        self.first = nn.ModuleList(self.Unit(width) for width in widths[:-1])
        self.second = nn.ModuleList(self.Unit(width) for width in widths)
        self.out = nn.ModuleList(
            nn.Conv2d(w, t, 1) for w, t in zip(widths, (64, 64, 128, 256), strict=True)
        )
        self.thinner = nn.Conv2d(64, 32, 3, padding=1)
        self.last = nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1), nn.ReLU()
        )

    def forward(self, image: Tensor) -> Tensor:
        maps, values = [], image
        for level in self.levels:
            values = level(values)
            maps.append(values)
        made: Tensor | None = None
        for i in (3, 2, 1, 0):
            level = self.thin[i](maps[i])
            made = level if made is None else made + self.first[i](level)
            made = functional.interpolate(
                self.second[i](made), scale_factor=2, mode="bilinear", align_corners=True
            )
            made = self.out[i](made)
        half = functional.interpolate(self.thinner(made), scale_factor=2, mode="bilinear")
        return self.last(half)


def _depth_anything() -> nn.Module:
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(
        hidden_size=384,
        num_attention_heads=6,
        image_size=518,
        patch_size=14,
        out_indices=[3, 6, 9, 12],
        reshape_hidden_states=False,
        apply_layernorm=True,
    )
    backbone._attn_implementation = "eager"
    config = DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=384,
        neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64,
        patch_size=14,
    )
    config._attn_implementation = "eager"
    return DepthAnythingForDepthEstimation(config)


def _depth(outputs: Any) -> Tensor:
    return outputs[0].unsqueeze(1)


RECIPES = {
    "fcn_resnet50": Recipe(
        lambda: torchvision_network("segmentation.fcn_resnet50", weights_backbone=None),
        (520, 520),
        IMAGENET,
        _classes,
    ),
    "deeplabv3_plus_mobilenet": Recipe(Atrous, (520, 520), IMAGENET, _classes),
    "pspnet": Recipe(Pyramid, (473, 473)),
    "unet_segmentation": Recipe(UNet, (640, 1280)),
    "u2net_segmentation": Recipe(lambda: Brightened(NestedUNet()), (320, 320)),
    "segformer_base": Recipe(
        lambda: transformers_network("SegformerForSemanticSegmentation", num_labels=150),
        (512, 512),
        IMAGENET,
        lambda outputs: outputs[0],
    ),
    "midas": Recipe(RefinedDepth, (256, 256), IMAGENET),
    "depth_anything": Recipe(_depth_anything, (518, 518), IMAGENET, _depth),
    "depth_anything_v2": Recipe(_depth_anything, (518, 518), IMAGENET, _depth),
}
