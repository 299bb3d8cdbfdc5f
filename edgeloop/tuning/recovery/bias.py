"""Bias correction: what quantization shifts in the mean of a channel is taken off its bias.

Layer by layer in the order of the graph, since correcting one changes what the next ones get. The
means are those of a layer's output before its activation, in the float and in the quantized graph.
"""

from __future__ import annotations

import math

import numpy as np

from edgeloop.tuning.recovery.floats import FloatGraph
from edgeloop.tuning.recovery.observe import Runs, observed
from edgeloop.tuning.recovery.quantized import Floats, QuantizedGraph

MOST_PASSES = 24


def correct_biases(graph: FloatGraph, quantized: QuantizedGraph, runs: Runs) -> int:
    """Change the biases of `quantized` in place; how many layers were corrected. Of many layers
    some that follow one another are corrected at once."""
    names = [name for name in quantized.layers if name in graph.nodes]
    expected = _means(graph.model, {graph.nodes[n].output[0]: n for n in names}, runs, False)
    step = max(1, math.ceil(len(names) / MOST_PASSES))
    for start in range(0, len(names), step):
        chunk = names[start : start + step]
        wanted = {quantized.layers[name].output: name for name in chunk}
        found = _means(quantized.model, wanted, runs, True)
        for name in chunk:
            layer = quantized.layers[name]
            shift = expected[name] - found[name]
            bias = quantized.biases(layer)
            quantized.set_bias(layer, shift if bias is None else bias + shift)
    return len(names)


def _means(model: object, tensors: dict[str, str], runs: Runs, is_exact: bool) -> dict[str, Floats]:
    """The mean of each channel (axis 1), by the name of the layer."""
    sums: dict[str, Floats] = {}
    counts: dict[str, int] = {}
    for tensor, array in observed(model, runs, list(tensors), is_exact):  # type: ignore[arg-type]
        rows = np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)
        name = tensors[tensor]
        sums[name] = sums.get(name, np.zeros(len(rows))) + rows.sum(axis=1, dtype=np.float64)
        counts[name] = counts.get(name, 0) + rows.shape[1]
    return {name: total / max(1, counts[name]) for name, total in sums.items()}
