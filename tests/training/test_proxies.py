"""Zero-cost proxies: the same each time, different for different networks, and never a failure."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgeloop.search.config import PROXIES as NAMES
from edgeloop.search.nets.proxies import PROXIES, proxies_of

pytestmark = pytest.mark.slow

SHAPE, CLASSES = (1, 3, 16, 16), 5


class Frozen(nn.Module):
    """Nothing can be back-propagated through it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.net(x)


def network(width: int, depth: int = 1) -> nn.Module:
    torch.manual_seed(3)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Conv2d(width, CLASSES, 1))


def values(net: nn.Module) -> dict[str, float]:
    return proxies_of(net, SHAPE, CLASSES, NAMES)


def test_they_are_named_where_a_search_chooses_them():
    assert tuple(PROXIES) == NAMES


def test_they_are_the_same_each_time_and_tell_networks_apart():
    seen = [values(network(*each)) for each in ((4, 1), (8, 1), (8, 3))]
    assert all(set(each) == set(NAMES) for each in seen)
    for name in NAMES:
        assert len({each[name] for each in seen}) == 3
    torch.manual_seed(99)  # whatever else draws random numbers
    assert values(network(8, 3)) == seen[2]
    flow = [each["synflow"] for each in seen]
    assert flow == sorted(flow)  # more paths, more flow
    many = proxies_of(network(8, 80), SHAPE, CLASSES, ("synflow",))
    assert many["synflow"] > 89  # beyond the largest float32


def test_the_network_is_left_as_it_was():
    net = network(4).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    values(net)
    after = net.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not net.training and all(p.grad is None for p in net.parameters())
    assert not any(module._forward_hooks for module in net.modules())


def test_what_a_network_does_not_have_is_left_out():
    assert set(values(Frozen(network(4)))) == {"naswot"}
    assert set(values(nn.Conv2d(3, CLASSES, 1))) == {"synflow", "grad_norm"}
    assert values(nn.Linear(7, 2)) == {}
    pooled = nn.Sequential(network(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert set(values(pooled)) == set(NAMES)  # one class per image
