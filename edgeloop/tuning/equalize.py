"""Cross-layer equalization: channels of unequal size between two layers are made alike.

Where a layer's output passes through nothing but operators with f(s·x) = s·f(x), s > 0, into one
other layer, channel c of the first may be divided by s[c] and multiplied again in the second: the
model computes the same. One scale for all channels of a tensor then fits each of them. A Clip (as
ReLU6) has no such property; nothing is equalized through it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeloop.tuning.quantized import (
    FloatGraph,
    Floats,
    QuantizedGraph,
    Runs,
    attributes,
    groups_of,
    observed,
    output_axis,
)
from edgeloop.tuning.rounding import requantized

if TYPE_CHECKING:
    from onnx import NodeProto


_THROUGH = frozenset(
    ("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Identity", "Resize")
)
_SWEEPS = 20
_LARGEST_FACTOR = 1e4
_STILL = 1e-3

VARIANTS = ("weights", "activations", "both")


@dataclass(frozen=True)
class LayerPair:
    """Two layers, and the tensors between them, from the first one's output on."""

    first: str
    second: str
    between: tuple[str, ...]


def pairs_of(graph: FloatGraph) -> list[LayerPair]:
    pairs = (_pair_from(graph, node) for node in graph.model.graph.node)
    return [pair for pair in pairs if pair is not None]


def _pair_from(graph: FloatGraph, first: NodeProto) -> LayerPair | None:
    weight = graph.weight_of(first)
    if weight is None or not first.name or not _is_plain(graph, first):
        return None
    between = [first.output[0]]
    reader = graph.only_reader(between[-1])
    while reader is not None and reader.op_type in _THROUGH and reader.input[0] == between[-1]:
        between.append(reader.output[0])
        reader = graph.only_reader(between[-1])
    if reader is None or reader.op_type not in ("Conv", "Gemm") or not reader.name:
        return None
    second = graph.weight_of(reader)
    if second is None or reader.input[0] != between[-1] or not _is_plain(graph, reader):
        return None
    if _channels_out(first, weight) != _channels_in(reader, second):
        return None
    return LayerPair(first.name, reader.name, tuple(between))


def _is_plain(graph: FloatGraph, node: NodeProto) -> bool:
    """With a bias that is constant and its own, or none; and no factor of Gemm's."""
    attrs = attributes(node)
    if node.op_type == "Gemm" and (attrs.get("alpha", 1.0), attrs.get("beta", 1.0)) != (1.0, 1.0):
        return False
    if node.op_type == "ConvTranspose" and groups_of(node) != 1:
        return False
    bias = node.input[2] if len(node.input) > 2 else ""
    return not bias or (graph.has(bias) and len(graph.readers[bias]) == 1)


def _channels_out(node: NodeProto, weight: NDArray[np.float32]) -> int:
    return int(weight.shape[output_axis(node)])


def _channels_in(node: NodeProto, weight: NDArray[np.float32]) -> int:
    if node.op_type == "Gemm":
        return int(weight.shape[1 - output_axis(node)])
    return int(weight.shape[1]) * groups_of(node)


def equalize(
    graph: FloatGraph,
    variant: str = "weights",
    peaks: Mapping[str, Floats] | None = None,
) -> dict[str, Floats]:
    """Change the weights in place; the factor of each channel of the tensors between, by name.

    `weights` makes the weights of both layers alike; `activations` the channels of the tensor
    between them (`peaks` has their largest absolute values); `both` stands halfway, between the
    activations and the weights that read them.
    """
    pairs = pairs_of(graph)
    factors = {pair.first: np.ones(_width(graph, pair)) for pair in pairs}
    for _ in range(_SWEEPS if variant == "weights" else 1):
        largest = 1.0
        for pair in pairs:
            if variant == "weights":
                factor = _by_weights(graph, pair)
            else:
                peak = (peaks or {}).get(pair.between[-1])
                if peak is None:
                    continue
                factor = _by_activations(graph, pair, peak / factors[pair.first], variant)
            _apply(graph, pair, factor)
            factors[pair.first] *= factor
            largest = max(largest, float(np.max(np.maximum(factor, 1 / factor))))
        if largest < 1 + _STILL:
            break
    return {tensor: factors[pair.first] for pair in pairs for tensor in pair.between}


def _width(graph: FloatGraph, pair: LayerPair) -> int:
    node = graph.nodes[pair.first]
    return _channels_out(node, graph.array(node.input[1]))


def _by_weights(graph: FloatGraph, pair: LayerPair) -> Floats:
    made, read = _peaks_out(graph, pair.first), _peaks_in(graph, pair.second)
    return _bounded(np.sqrt(made / np.maximum(read, 1e-30)), (made > 0) & (read > 0))


def _by_activations(graph: FloatGraph, pair: LayerPair, peaks: Floats, variant: str) -> Floats:
    """Only what is between two layers counts where weights have a scale per output channel."""
    read = _peaks_in(graph, pair.second)
    usable = peaks > 0  # also where nothing reads a channel: it may be large all the same
    if not usable.any():
        return np.ones_like(peaks)
    factor = peaks.copy()
    if variant == "both":
        factor = np.where(read > 0, np.sqrt(peaks / np.maximum(read, 1e-30)), peaks)
    return _bounded(factor / np.exp(np.mean(np.log(factor[usable]))), usable)


def _bounded(factor: Floats, usable: NDArray[np.bool_]) -> Floats:
    bounded: Floats = np.clip(factor, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
    return np.where(usable & np.isfinite(factor), bounded, 1.0)


def _peaks_out(graph: FloatGraph, name: str) -> Floats:
    node = graph.nodes[name]
    weight = np.moveaxis(graph.array(node.input[1]), output_axis(node), 0)
    peaks: Floats = np.abs(weight.reshape(len(weight), -1)).max(axis=1).astype(np.float64)
    return peaks


def _peaks_in(graph: FloatGraph, name: str) -> Floats:
    """The largest weight that each input channel meets."""
    node = graph.nodes[name]
    rows = np.abs(_by_input(node, graph.array(node.input[1])))
    peaks: Floats = rows.max(axis=1).astype(np.float64)
    return peaks


def _by_input(node: NodeProto, weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """A row per input channel."""
    if node.op_type == "Gemm":
        return np.moveaxis(weight, 1 - output_axis(node), 0)
    groups = groups_of(node)
    outputs, inputs = weight.shape[:2]
    grouped = weight.reshape(groups, outputs // groups, inputs, -1)
    return np.moveaxis(grouped, 2, 1).reshape(groups * inputs, -1)


def _apply(graph: FloatGraph, pair: LayerPair, factor: Floats) -> None:
    first, second = graph.nodes[pair.first], graph.nodes[pair.second]
    axis = output_axis(first)
    weight = graph.array(first.input[1]).astype(np.float64)
    shape = [1] * weight.ndim
    shape[axis] = -1
    graph.set_array(first.input[1], weight / factor.reshape(shape))
    bias = graph.bias_of(first)
    if bias is not None:
        divided = bias.astype(np.float64).reshape(-1) / factor
        graph.set_array(first.input[2], divided.reshape(bias.shape))
    weight = graph.array(second.input[1]).astype(np.float64)
    graph.set_array(second.input[1], _times_inputs(second, weight, factor))


def _times_inputs(node: NodeProto, weight: Floats, factor: Floats) -> Floats:
    if node.op_type == "Gemm":
        shape = [1, 1]
        shape[1 - output_axis(node)] = -1
        return weight * factor.reshape(shape)
    groups = groups_of(node)
    outputs, inputs = weight.shape[:2]
    grouped = weight.reshape(groups, outputs // groups, inputs, -1)
    return (grouped * factor.reshape(groups, 1, inputs, 1)).reshape(weight.shape)


@dataclass
class ChannelRange:
    """The smallest and largest value of each channel (axis 1)."""

    low: Floats
    high: Floats


def channel_ranges(
    graph: FloatGraph, runs: Runs, tensors: Sequence[str]
) -> dict[str, ChannelRange]:
    ranges: dict[str, ChannelRange] = {}
    for name, array in observed(graph.model, runs, tensors):
        rows = np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)
        low, high = rows.min(axis=1).astype(np.float64), rows.max(axis=1).astype(np.float64)
        if (so_far := ranges.get(name)) is None:
            ranges[name] = ChannelRange(low, high)
        else:
            so_far.low = np.minimum(so_far.low, low)
            so_far.high = np.maximum(so_far.high, high)
    return ranges


def equalized(
    graph: FloatGraph,
    quantized: QuantizedGraph,
    variant: str,
    ranges: Mapping[str, ChannelRange],
) -> tuple[FloatGraph, QuantizedGraph]:
    """Copies of both, equalized; the ranges between follow from those before."""
    changed, requant = graph.copy(), quantized.copy()
    peaks = {name: np.maximum(np.abs(one.low), np.abs(one.high)) for name, one in ranges.items()}
    factors = equalize(changed, variant, peaks)
    layers = {each for pair in pairs_of(graph) for each in (pair.first, pair.second)}
    between = {name: factor for name, factor in factors.items() if name in requant.activations}
    requant.set_ranges(
        {
            name: (
                float((ranges[name].low / factor).min()),
                float((ranges[name].high / factor).max()),
            )
            for name, factor in between.items()
        }
    )
    requantized(changed, requant, layers)
    return changed, requant


# Bias correction: what quantization shifts in the mean of a channel is taken off its bias.
#
# Layer by layer in the order of the graph, since correcting one changes what the next ones get. The
# means are those of a layer's output before its activation, in the float and in the quantized
# graph.


MOST_PASSES = 24


def correct_biases(graph: FloatGraph, quantized: QuantizedGraph, runs: Runs) -> int:
    """Change the biases of `quantized` in place; how many layers were corrected. Of many layers
    some that follow one another are corrected at once."""
    names = [name for name in quantized.layers if name in graph.nodes]
    expected = _means(graph.model, {graph.nodes[n].output[0]: n for n in names}, runs, False)
    step = max(1, math.ceil(len(names) / MOST_PASSES))
    for start in range(0, len(names), step):
        chunk = names[start : start + step]
        outputs = {quantized.layers[name].output: name for name in chunk}
        means = _means(quantized.model, outputs, runs, True)
        for name in chunk:
            layer = quantized.layers[name]
            shift = expected[name] - means[name]
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
