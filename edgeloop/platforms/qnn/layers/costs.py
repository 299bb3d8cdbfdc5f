"""From the times of prefixes to the cost of layers.

A prefix takes the time of its layers and that of writing its outputs. A second copy of the outputs
says what writing costs, so the layers up to a cut take `once - (twice - once)`. These times should
grow with every layer. Where they do not, the compiler merged layers, or writing a large tensor was
hidden behind other work: then cuts are dropped until they grow, those that write much first, and
the layers between two cuts that remain are one entry. Nothing is clipped, so the sum is the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgeloop.platforms.layers import LayerCost
from edgeloop.platforms.qnn.layers.prefixes import GraphLayer

OUTPUT = "(output)"
_DOUBT = 10.0


@dataclass(frozen=True)
class TimedCut:
    """Cycles of a prefix with one copy of its outputs, and with two."""

    once: float
    twice: float

    @property
    def writing(self) -> float:
        return max(0.0, self.twice - self.once)

    @property
    def layers(self) -> float:
        return self.once - self.writing


def kept_cuts(cuts: Mapping[int, TimedCut], whole: float) -> list[int]:
    """The cuts whose times grow from 0 to the whole: as many as possible, each counted by how sure
    it is."""
    numbers = sorted(number for number, cut in cuts.items() if 0.0 <= cut.layers <= whole)
    sure = {number: whole / (whole + _DOUBT * cuts[number].writing) for number in numbers}
    best: dict[int, tuple[float, int]] = {}
    for place, number in enumerate(numbers):
        before = [
            (best[other][0], other)
            for other in numbers[:place]
            if cuts[other].layers <= cuts[number].layers
        ]
        weight, previous = max(before, default=(0.0, -1))
        best[number] = (weight + sure[number], previous)
    chain: list[int] = []
    last = max(best, key=lambda number: best[number][0], default=-1)
    while last >= 0:
        chain.append(last)
        last = best[last][1]
    return chain[::-1]


def layer_costs(
    layers: Sequence[GraphLayer], cuts: Mapping[int, TimedCut], whole: float, total_us: float
) -> list[LayerCost]:
    """In the order of the graph, and last what writing the outputs costs. Cut number n is behind
    the first n layers."""
    bounds = [0, *kept_cuts(cuts, whole), len(layers)]
    times = [*(cuts[number].layers if number else 0.0 for number in bounds[:-1]), whole]
    found = []
    for (first, last), (start, end) in zip(pairwise(bounds), pairwise(times), strict=True):
        share = (end - start) / whole if whole else 0.0
        found.append(_entry(layers[first:last], share * total_us, share))
    return found if found[-1].members or found[-1].time_us else found[:-1]


def _entry(group: Sequence[GraphLayer], time_us: float, share: float) -> LayerCost:
    """Named after the layer that computes most; of those that compute nothing, the largest."""
    if not group:
        return LayerCost(OUTPUT, "", (), time_us, share)
    main = max(group, key=lambda layer: (layer.macs, math.prod(layer.output)))
    names = tuple(layer.name for layer in group)
    return LayerCost(main.name, main.operator, main.output, time_us, share, names)
