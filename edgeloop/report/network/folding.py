"""Layers of a large network folded into boxes, as many as a drawing can have.

Two neighbours may become one where one of them has no other successor, or the other no other
predecessor: that never makes a cycle. The cheapest pairs are first, small ones before large ones,
so the layers that take the time stay alone, and equal layers end in groups of about equal size.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from edgeloop.graph import INPUT, OUTPUT, Outline

MOST_BOXES = 100
_ALONE = 12  # the costliest layers, which are folded last
_MOST_STEPS = 300_000


@dataclass(frozen=True)
class Box:
    """One layer or several, by their places in the outline; `inputs` are places of boxes. `time_us`
    is None where none of them has a time."""

    layers: tuple[int, ...]
    inputs: tuple[int, ...]
    time_us: float | None


def fold(
    outline: Outline, times_us: Mapping[int, float], most: int = MOST_BOXES
) -> tuple[Box, ...] | None:
    """In an order in which they can run. None where so few boxes cannot be made of it."""
    graph = _Graph(outline, times_us)
    if len(outline.layers) > most:
        costliest = sorted(times_us, key=lambda place: -times_us[place])[:_ALONE]
        if not graph.fold_to(most, frozenset(costliest)) and not graph.fold_to(most, frozenset()):
            return None
    return graph.boxes()


class _Graph:
    """Boxes by their first layers' places."""

    def __init__(self, outline: Outline, times_us: Mapping[int, float]) -> None:
        places = range(len(outline.layers))
        self._times_us = times_us
        self._after: dict[int, set[int]] = {place: set() for place in places}
        self._before = {place: set(outline.layers[place].inputs) for place in places}
        for place, sources in self._before.items():
            for source in sources:
                self._after[source].add(place)
        self._layers = {place: [place] for place in places}
        self._cost = {place: times_us.get(place, 0.0) for place in places}
        self._changes = dict.fromkeys(places, 0)
        self._ends = {p for p in places if outline.layers[p].operator in (INPUT, OUTPUT)}
        self._steps = 0

    def fold_to(self, most: int, alone: frozenset[int]) -> bool:
        """Whether no more than so many boxes are left."""
        kept = self._ends | alone
        heap: list[tuple[float, int, int, int, int]] = []
        for place in self._layers:
            self._push(heap, place, kept, only_after=True)
        while len(self._layers) > most and heap and self._steps < _MOST_STEPS:
            _, _, version, first, second = heapq.heappop(heap)
            is_there = first in self._layers and second in self._after[first]
            if is_there and version == self._changes[first] + self._changes[second]:
                self._join(first, second)
                self._push(heap, first, kept)
        return len(self._layers) <= most

    def _push(
        self,
        heap: list[tuple[float, int, int, int, int]],
        place: int,
        kept: frozenset[int] | set[int],
        only_after: bool = False,
    ) -> None:
        pairs = [(place, other) for other in self._after[place]]
        pairs += [] if only_after else [(other, place) for other in self._before[place]]
        for first, second in pairs:
            self._steps += 1
            is_free = len(self._after[first]) == 1 or len(self._before[second]) == 1
            if is_free and first not in kept and second not in kept:
                cost = self._cost[first] + self._cost[second]
                size = len(self._layers[first]) + len(self._layers[second])
                version = self._changes[first] + self._changes[second]
                heapq.heappush(heap, (cost, size, version, first, second))

    def _join(self, first: int, second: int) -> None:
        self._layers[first] += self._layers.pop(second)
        self._cost[first] += self._cost[second]
        self._changes[first] += 1
        after, before = self._after.pop(second), self._before.pop(second) - {first}
        self._after[first] = (self._after[first] | after) - {second}
        self._before[first] |= before
        for other in after:
            self._before[other] = (self._before[other] - {second}) | {first}
        for other in before:
            self._after[other] = (self._after[other] - {second}) | {first}

    def boxes(self) -> tuple[Box, ...]:
        waiting = {place: len(sources) for place, sources in self._before.items()}
        ready = [place for place, count in waiting.items() if not count]
        heapq.heapify(ready)
        numbers: dict[int, int] = {}
        found: list[Box] = []
        while ready:
            place = heapq.heappop(ready)
            numbers[place] = len(found)
            layers = tuple(sorted(self._layers[place]))
            times = [self._times_us[layer] for layer in layers if layer in self._times_us]
            inputs = tuple(sorted(numbers[source] for source in self._before[place]))
            found.append(Box(layers, inputs, sum(times) if times else None))
            for other in self._after[place]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, other)
        return tuple(found)
