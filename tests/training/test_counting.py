"""Counts from PyTorch's meta device are those of the exported file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from edgeloop.graph.check import read_graph
from edgeloop.graph.count import graph_info
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.counting import NotCountable, count_on_meta, graph_on_meta
from edgeloop.search.nets.export import export_onnx
from edgeloop.search.nets.spaces import build, find_space
from tests.nets_torch import Residual, conv_norm, mobilenet_v2

pytestmark = pytest.mark.slow

SMALL = {"base_channels": (8, 12), "most_layers": 3}
SPACES = {
    "hourglass": {**SMALL, "depth": [2, 3, 4]},
    "archai-hourglass": SMALL,
    "small-classifier": {},
}


def counted(info):
    return (info.params, info.macs, info.memory, info.input_shape, info.output_shape)


def exported(net: nn.Module, arch: Architecture, folder: Path):
    file = export_onnx(net, arch, folder / "net.onnx")
    return graph_info("net.onnx", read_graph(file, {}))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("space", SPACES)
def test_random_members_of_every_built_in_space_have_the_counts_of_their_file(
    space: str, seed: int, tmp_path: Path
):
    arch = find_space(space, SPACES[space]).sample(seed, (1, 3, 64, 64), 5)
    assert counted(count_on_meta(arch)) == counted(exported(build(arch), arch, tmp_path))


class Shifted(nn.Module):
    """Normalises in the graph, with buffers."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.register_buffer("mean", torch.rand(1, 3, 1, 1))
        self.register_buffer("std", 1 + torch.rand(1, 3, 1, 1))
        self.net = net

    def forward(self, x):
        return self.net((x - self.mean) / self.std)


class Branches(nn.Module):
    """Joins, in-place changes, a branch that leads nowhere, and layers that are not used."""

    def __init__(self):
        super().__init__()
        self.left, self.right = conv_norm(3, 8, stride=2), nn.Conv2d(3, 8, 3, 2, 1)
        self.norm, self.unused = nn.BatchNorm2d(16), nn.Linear(100, 100)
        self.up = nn.ConvTranspose2d(16, 6, 2, 2)
        self.after, self.drop = nn.BatchNorm2d(6), nn.Dropout2d(0.5)
        self.head = nn.Conv2d(6, 5, 1)

    def forward(self, x):
        left, right = self.left(x), self.right(x)
        self.right.bias.shape  # noqa: B018 - reading a shape is no call of the graph
        functional.relu(left)
        y = torch.cat([left, right], 1)
        y = functional.relu_(self.norm(self.drop(y)))
        y = self.after(self.up(y))
        y += y.sigmoid()
        return self.head(y)


def hand_made() -> dict[str, nn.Module]:
    acts = [nn.ReLU6(), nn.Hardswish(), nn.SiLU(), nn.Sigmoid(), nn.Tanh(), nn.ReLU(inplace=True)]
    layers = [module for act in acts for module in (nn.Conv2d(8, 8, 3, 1, 1, groups=4), act)]
    up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
    shortcut = Residual(conv_norm(8, 8, act=None), nn.Identity(), relu=True)
    return {
        "activations": nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), *layers, up, nn.Conv2d(8, 5, 1)),
        "branches": Branches(),
        "mobilenet": mobilenet_v2(5),
        "pools": nn.Sequential(
            Shifted(conv_norm(3, 8)),
            nn.MaxPool2d(2),
            shortcut,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8, 5),
        ),
        "norms in front": nn.Sequential(
            nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 8, 1), nn.ReLU(), nn.BatchNorm2d(8),
            nn.Conv2d(8, 5, 1, bias=False),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", hand_made())
def test_networks_of_plain_modules_have_the_counts_of_their_file(name: str, tmp_path: Path):
    arch = Architecture("nets.py:build", {}, (1, 3, 64, 64), 5)
    torch.manual_seed(1)
    net = hand_made()[name].eval()
    model = graph_on_meta(net.to("meta"), arch)
    torch.manual_seed(1)
    expected = exported(hand_made()[name], arch, tmp_path)
    assert counted(graph_info("", model)) == counted(expected)


class Called(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.head, self.call = nn.Conv2d(3, 5, 1), call

    def forward(self, x):
        return self.call(self, x)


def in_place_behind_a_view(net, x):
    y = net.head(x)
    flat = y.flatten(1)
    functional.relu_(y)
    return flat


UNCERTAIN = {
    "is not known": lambda net, x: net.head(x).softmax(1),
    "a size that is computed": lambda net, x: functional.interpolate(net.head(x), size=(9, 9)),
    "uses a weight twice": lambda net, x: net.head(x) + net.head(x + x),
    "of the same tensors twice": lambda net, x: net.head(x.sigmoid()) + net.head(x.sigmoid()),
    "changes a view in place": in_place_behind_a_view,
    "does not fit the classes": lambda net, x: torch.cat([net.head(x)] * 2, 1),
    "returns several tensors": lambda net, x: net.head(x).split(1, 1)[0],
    "computes its weights": lambda net, x: net.head(x) * 2.0,
    "returns its input": lambda net, x: x,
}


@pytest.mark.parametrize("why", UNCERTAIN)
def test_what_only_the_exporter_knows_is_left_to_it(why: str):
    arch = Architecture("nets.py:build", {}, (1, 3, 8, 8), 3 if "input" in why else 5)
    with pytest.raises(NotCountable, match=why):
        graph_on_meta(Called(UNCERTAIN[why]).to("meta"), arch)
