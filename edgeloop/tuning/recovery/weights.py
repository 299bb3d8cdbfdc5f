"""Weights as integers: the scale of each channel, and rounding to the nearest."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edgeloop.tuning.recovery.floats import FloatGraph
from edgeloop.tuning.recovery.quantized import (
    Floats,
    QuantizedGraph,
    QuantizedLayer,
    TensorEncoding,
    along,
    refreshed_biases,
)

_SMALLEST_SCALE = 1e-12
_SHRUNK = np.linspace(0.3, 1.0, 36)


def rows_of(weight: Floats, axis: int | None) -> Floats:
    """A row for all that shares a scale."""
    if axis is None:
        return weight.reshape(1, -1)
    return np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)


def largest_scales(rows: Floats, encoding: TensorEncoding) -> tuple[Floats, Floats]:
    """Scales and zero points that hold every weight. Signed types are symmetric, as the vendor's
    compiler wants them; unsigned ones have a zero point between."""
    first, last = encoding.limits
    if encoding.kind.startswith("u"):
        low = np.minimum(rows.min(axis=1), 0.0)
        high = np.maximum(rows.max(axis=1), 0.0)
        scales = np.maximum((high - low) / (last - first), _SMALLEST_SCALE)
        return scales, np.clip(np.rint(first - low / scales), first, last)
    peak = np.abs(rows).max(axis=1)
    return np.maximum(peak / last, _SMALLEST_SCALE), np.zeros(len(rows))


def best_scales(
    rows: Floats, encoding: TensorEncoding, importance: Floats | None = None
) -> tuple[Floats, Floats]:
    """Scales and zero points with the least square error of the weights, each weighed by its
    `importance` where that is known: a few outliers are clipped where that helps the others."""
    scales, zeros = largest_scales(rows, encoding)
    weigh = np.ones(rows.shape[1]) if importance is None else importance
    best, least = scales.copy(), np.full(len(rows), np.inf)
    for share in _SHRUNK:
        tried = scales * share
        error = rounded(rows, tried, zeros, encoding) - rows
        total = np.square(error) @ weigh
        better = total < least
        best, least = np.where(better, tried, best), np.minimum(total, least)
    return best, zeros


def rounded(rows: Floats, scales: Floats, zeros: Floats, encoding: TensorEncoding) -> Floats:
    """The nearest weights that there are."""
    whole = integers(rows, scales, zeros, encoding)
    return (whole - zeros[:, None]) * scales[:, None]


def integers(rows: Floats, scales: Floats, zeros: Floats, encoding: TensorEncoding) -> Floats:
    first, last = encoding.limits
    whole: Floats = np.clip(np.rint(rows / scales[:, None] + zeros[:, None]), first, last)
    return whole


def stored(
    graph: QuantizedGraph,
    layer: QuantizedLayer,
    weight: Floats,
    scales: Floats,
    zeros: Floats,
) -> None:
    """Quantize a weight to the nearest with these scales, and write it. Scales are floats of 32
    bits, and it is with those that weights are rounded."""
    axis, count = layer.weight.axis, weight.ndim
    narrow = scales.astype(np.float32).astype(np.float64)
    first, last = layer.weight.limits
    whole = np.rint(weight / along(narrow, count, axis) + along(zeros, count, axis))
    graph.set_zeros(layer, zeros)
    graph.set_weights(layer, np.clip(whole, first, last), narrow)


def requantized(graph: FloatGraph, quantized: QuantizedGraph, names: Iterable[str]) -> None:
    """The weights and biases of these layers as the float graph has them now. Every bias is done
    again, since its steps depend on the scale of the input."""
    wanted = set(names)
    biases: dict[str, Floats] = {}
    for name, layer in quantized.layers.items():
        node = graph.nodes.get(name)
        weight = None if node is None else graph.weight_of(node)
        bias = quantized.biases(layer)
        if node is not None and weight is not None and name in wanted:
            exact = weight.astype(np.float64)
            scales, zeros = largest_scales(rows_of(exact, layer.weight.axis), layer.weight)
            stored(quantized, layer, exact, scales, zeros)
            plain = graph.bias_of(node)
            bias = bias if plain is None else plain.astype(np.float64).reshape(-1)
        if bias is not None:
            biases[name] = bias
    refreshed_biases(quantized, biases)
