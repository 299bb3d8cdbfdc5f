"""Known architectures with random weights, as PyTorch modules, and their way into ONNX.

Written here so that tests need no model zoo: the three public ones are as in their papers, with the
input normalisation inside the graph, as the chip maker's published figures have it.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalised(nn.Module):
    """Takes images from 0 to 1 and normalises them in the graph (Sub and Div)."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(IMAGENET_STD).view(1, 3, 1, 1))
        self.net = net

    def forward(self, images):
        return self.net((images - self.mean) / self.std)


def conv_norm(inputs, outputs, kernel=3, stride=1, groups=1, act=nn.ReLU):
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class Residual(nn.Module):
    """The sum of a branch and a shortcut, with or without a ReLU behind it."""

    def __init__(self, branch, shortcut, relu):
        super().__init__()
        self.branch, self.shortcut, self.relu = branch, shortcut, relu

    def forward(self, x):
        y = self.branch(x) + self.shortcut(x)
        return torch.relu(y) if self.relu else y


def mobilenet_v2(classes: int = 1000) -> nn.Module:
    layers = [conv_norm(3, 32, stride=2, act=nn.ReLU6)]
    inputs = 32
    table = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    for expand, outputs, count, first_stride in table:
        for index in range(count):
            stride = first_stride if index == 0 else 1
            wide = inputs * expand
            branch = [conv_norm(inputs, wide, 1, act=nn.ReLU6)] if expand != 1 else []
            branch += [
                conv_norm(wide, wide, 3, stride, groups=wide, act=nn.ReLU6),
                conv_norm(wide, outputs, 1, act=None),
            ]
            block = nn.Sequential(*branch)
            adds = stride == 1 and inputs == outputs
            layers.append(Residual(block, nn.Identity(), relu=False) if adds else block)
            inputs = outputs
    layers += [conv_norm(320, 1280, 1, act=nn.ReLU6), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, classes))


def resnet18(classes: int = 1000) -> nn.Module:
    def block(inputs, outputs, stride):
        branch = nn.Sequential(
            conv_norm(inputs, outputs, 3, stride), conv_norm(outputs, outputs, act=None)
        )
        return Residual(branch, _shortcut(inputs, outputs, stride), relu=True)

    return _resnet(block, (2, 2, 2, 2), (64, 128, 256, 512), classes)


def resnet50(classes: int = 1000) -> nn.Module:
    def block(inputs, outputs, stride):
        wide = outputs // 4
        branch = nn.Sequential(
            conv_norm(inputs, wide, 1),
            conv_norm(wide, wide, 3, stride),
            conv_norm(wide, outputs, 1, act=None),
        )
        return Residual(branch, _shortcut(inputs, outputs, stride), relu=True)

    return _resnet(block, (3, 4, 6, 3), (256, 512, 1024, 2048), classes)


def _shortcut(inputs, outputs, stride):
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return conv_norm(inputs, outputs, 1, stride, act=None)


def _resnet(block, counts, widths, classes):
    layers = [conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, (count, outputs) in enumerate(zip(counts, widths, strict=True)):
        for index in range(count):
            layers.append(block(inputs, outputs, 2 if stage > 0 and index == 0 else 1))
            inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*layers)


class SmallUNet(nn.Module):
    """Segmentation: `depth` halvings, skips, bilinear Resize; about 8·width²·4^depth parameters."""

    def __init__(self, width: int = 8, depth: int = 2, classes: int = 19):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.stem = conv_norm(3, width)
        self.down = nn.ModuleList(conv_norm(a, b, stride=2) for a, b in pairwise(widths))
        self.up = nn.ModuleList(
            conv_norm(a + b, a) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        x = self.stem(x)
        skips = []
        for layer in self.down:
            skips.append(x)
            x = layer(x)
        for layer in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
            x = layer(torch.cat([x, skips.pop()], 1))
        return self.head(x)


class Attention(nn.Module):
    """A transformer's block: LayerNorm, self-attention, LayerNorm, GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, count, width = x.shape
        parts = self.qkv(self.norms[0](x)).reshape(batch, count, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        x = x + self.project((weights @ value).transpose(1, 2).reshape(batch, count, width))
        return x + self.mlp(self.norms[1](x))


class SmallViT(nn.Module):
    """One block on patches of 8 pixels."""

    def __init__(self, width: int = 32, heads: int = 2, classes: int = 19) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.block, self.norm = Attention(width, heads), nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.block(x)).mean(1))


def export(net: nn.Module, path: Path, size: int = 64, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    settle(net, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.rand(1, 3, size, size),), str(path), dynamo=False, opset_version=18
        )
    return path


def settle(net: nn.Module, size: int = 64) -> nn.Module:
    """Give the batch norms some statistics: an untrained net's activations vanish."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    net.train()
    with torch.no_grad():
        for _ in range(2):
            net(torch.rand(2, 3, max(size, 64), max(size, 64)))
    return net.eval()
