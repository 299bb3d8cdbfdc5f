"""Ranges of activations that leave rare outliers out, and scales of weights likewise.

Calibration takes the smallest and largest value that it sees, so one pixel can cost all others a
part of their resolution. From a histogram of each tensor, `mse` takes the range with the least
square error after quantization; `percentile` leaves a fixed share of values outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeloop.tuning.recovery.floats import FloatGraph
from edgeloop.tuning.recovery.observe import Runs, observed
from edgeloop.tuning.recovery.quantized import (
    Floats,
    QuantizedGraph,
    float_biases,
    refreshed_biases,
)
from edgeloop.tuning.recovery.weights import best_scales, rows_of, stored

VARIANTS = ("mse", "percentile-99.99", "percentile-99.9")

_BINS = 4096
_SHARES = np.linspace(0.1, 1.0, 46)
_WIDE = 16
_FIXED = frozenset(("Sigmoid", "Tanh", "Softmax", "HardSigmoid"))  # their range is known


@dataclass
class Histogram:
    """How many values of a tensor lie where, between its smallest and its largest."""

    low: float
    high: float
    counts: Floats

    @property
    def centres(self) -> Floats:
        edges = np.linspace(self.low, self.high, len(self.counts) + 1)
        centres: Floats = (edges[1:] + edges[:-1]) / 2
        return centres


def chosen_tensors(graph: FloatGraph, quantized: QuantizedGraph) -> list[str]:
    """Activations of 8 bits and less that are neither inputs nor of a known range."""
    return [
        name
        for name, encoding in quantized.activations.items()
        if encoding.bits < _WIDE
        and name in graph.makers
        and graph.makers[name].op_type not in _FIXED
    ]


def histograms(graph: FloatGraph, runs: Runs, tensors: Sequence[str]) -> dict[str, Histogram]:
    """Two passes: where the values lie, then how many."""
    ends: dict[str, tuple[float, float]] = {}
    for name, array in observed(graph.model, runs, tensors):
        low, high = ends.get(name, (0.0, 0.0))
        ends[name] = min(low, float(array.min())), max(high, float(array.max()))
    found = {name: Histogram(*ends[name], np.zeros(_BINS)) for name in ends}
    for name, array in observed(graph.model, runs, list(ends)):
        one = found[name]
        if one.high > one.low:
            one.counts += np.histogram(array, _BINS, (one.low, one.high))[0]
    return found


def clipped_range(histogram: Histogram, variant: str, levels: int) -> tuple[float, float]:
    if not histogram.high > histogram.low:
        return histogram.low, histogram.high
    if variant.startswith("percentile-"):
        share = float(variant.removeprefix("percentile-")) / 100
        return _percentile(histogram, share)
    return _least_error(histogram, levels)


def _percentile(histogram: Histogram, share: float) -> tuple[float, float]:
    """The share of all values that is left out may lie on either side."""
    total = np.cumsum(histogram.counts) / max(1.0, float(histogram.counts.sum()))
    edges = np.linspace(histogram.low, histogram.high, len(histogram.counts) + 1)
    high = float(edges[1 + min(int(np.searchsorted(total, share)), len(total) - 1)])
    low = float(edges[int(np.searchsorted(total, 1 - share))]) if histogram.low < 0 else 0.0
    return min(low, 0.0), max(high, 0.0)


def _least_error(histogram: Histogram, levels: int) -> tuple[float, float]:
    """One end after the other, twice."""
    centres, counts = histogram.centres, histogram.counts
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)

    def error(lower: float, upper: float) -> float:
        step = (upper - lower) / levels
        if step <= 0:
            return float("inf")
        beyond = np.maximum(lower - centres, 0.0) + np.maximum(centres - upper, 0.0)
        inside = beyond == 0
        noise = np.where(inside, step * step / 12, np.square(beyond))
        noise[np.abs(centres) < step / 64] = 0.0  # zero is exact, and half of all values after ReLU
        return float(noise @ counts)

    best_low, best_high = low, high
    for _ in range(2):
        best_high = min((high * s for s in _SHARES), key=lambda end: error(best_low, end))
        if low < 0:
            best_low = min((low * s for s in _SHARES), key=lambda end: error(end, best_high))
    return best_low, best_high


def ranged(
    graph: FloatGraph,
    quantized: QuantizedGraph,
    variant: str,
    known: Mapping[str, Histogram],
) -> QuantizedGraph:
    """A copy with such ranges, and with the scales of weights that have few bits, or one scale for
    all channels, chosen by their square error."""
    changed = quantized.copy()
    biases = float_biases(changed)
    changed.set_ranges(
        {
            name: clipped_range(one, variant, 2 ** changed.activations[name].bits - 1)
            for name, one in known.items()
        }
    )
    for name, layer in changed.layers.items():
        node = graph.nodes.get(name)
        weight = None if node is None else graph.weight_of(node)
        if weight is None or layer.weight.bits > 4:
            continue
        exact = weight.astype(np.float64)
        scales, zeros = best_scales(rows_of(exact, layer.weight.axis), layer.weight)
        stored(changed, layer, exact, scales, zeros)
    refreshed_biases(changed, biases)
    return changed
