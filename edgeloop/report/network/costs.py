"""Which layer of a network a measured time belongs to.

Layers are named by whoever timed them. Compilers keep the names of the graph that they were given,
or write other letters for `/` and `.`. ONNX Runtime adds to them (`/conv/Conv_token_3`), names a
conversion after the tensor (`/conv/Conv_output_0_QuantizeLinear`), and adds layers that no graph
has, such as changes of layout. Times of what matches nothing are counted, not guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edgeloop.graph import OUTPUT, Outline

_LONGEST_US = 1e12
_OUTPUTS = "(output)"  # what writing the outputs takes, as the estimates of layers name it
_ADDED = re.compile(r"(_token_\d+| \+\d+|_nchwc|_quant|_fused)$")
_CONVERSION = re.compile(r"_(De)?[Qq]uantizeLinear(_\d+)?$")
_OTHER_LETTERS = re.compile(r"[^0-9A-Za-z]+")


@dataclass(frozen=True)
class NetworkTimes:
    """Times by place in the outline, and what belongs to none of its layers. `rows` are the places
    in the table of layers, by place in the outline."""

    times_us: dict[int, float] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    unmatched: int = 0
    unmatched_us: float = 0.0

    @property
    def total_us(self) -> float:
        return sum(self.times_us.values()) + self.unmatched_us


def match_times(outline: Outline, layers: Sequence[tuple[str, str, float]]) -> NetworkTimes:
    """`layers` are names, operators and µs. One layer of the network may have several times: its
    own and those of its conversions."""
    found = _Names(outline)
    exact = {name for name, _, _ in layers if name in found.names}
    result = NetworkTimes()
    unmatched, unmatched_us = 0, 0.0
    for row, (name, _, told_us) in enumerate(layers):
        time_us = min(max(told_us, 0.0), _LONGEST_US) if math.isfinite(told_us) else 0.0
        place = found.place(name, exact)
        if place is None:
            unmatched, unmatched_us = unmatched + 1, unmatched_us + time_us
            continue
        result.times_us[place] = result.times_us.get(place, 0.0) + time_us
        result.rows.setdefault(place, row)
    return NetworkTimes(result.times_us, result.rows, unmatched, unmatched_us)


class _Names:
    """The layers of an outline by their names and, after these, by their tensors'."""

    def __init__(self, outline: Outline) -> None:
        self.names: dict[str, int] = {}
        self._tensors: dict[str, int] = {}
        for place, layer in enumerate(outline.layers):
            self.names.setdefault(layer.name, place)
            for tensor in layer.tensors:
                self._tensors.setdefault(tensor, place)
        self._plain = _unique(self.names.items()) | {}
        for name, place in _unique(self._tensors.items()).items():
            self._plain.setdefault(name, place)
        ends = [p for p, layer in enumerate(outline.layers) if layer.operator == OUTPUT]
        if ends:
            self.names.setdefault(_OUTPUTS, ends[0])

    def place(self, name: str, exact: set[str]) -> int | None:
        """None where it is nobody's. A name with something added is that of a layer only if no
        other line has that very name: `Transpose_token_9` beside `Transpose` is a second one."""
        if name in self.names:
            return self.names[name]
        own = _ADDED.sub("", name.removeprefix("fused "))
        if own in exact:
            return None
        for known in (self.names, self._tensors):
            if own in known:
                return known[own]
        converted = _CONVERSION.sub("", own)
        if converted != own and converted in self._tensors:
            return self._tensors[converted]
        return self._plain.get(_plain(own))


def _plain(name: str) -> str:
    return _OTHER_LETTERS.sub("_", name).strip("_").lower()


def _unique(names: Iterable[tuple[str, int]]) -> dict[str, int]:
    """By plain names, without those that several layers have."""
    found: dict[str, int] = {}
    twice: set[str] = set()
    for name, place in names:
        plain = _plain(name)
        if found.setdefault(plain, place) != place:
            twice.add(plain)
    return {name: place for name, place in found.items() if name and name not in twice}
