"""Rounding of weights that looks at what they multiply, instead of rounding each to its nearest.

Layer by layer, in the order of the graph: the inputs x that the quantized model really gives a
layer, and those that the float model gives it, decide. First the continuous weights are found with
which the quantized input gives the float output best (least squares); then columns are rounded one
by one, and the error of each is passed on to the columns that are still free, as far as their
inputs are correlated with it (the closed form of optimal brain surgeon, as GPTQ has it). It needs
second moments of the inputs only, no gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.tuning.quantized import (
    FloatGraph,
    Floats,
    QuantizedGraph,
    QuantizedLayer,
    Runs,
    TensorEncoding,
    Window,
    along,
    float_biases,
    observed,
    output_axis,
    refreshed_biases,
    session_of,
    window_of,
    with_outputs,
)

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


MOST_COLUMNS = 4608  # 512 channels × 3 × 3: the matrix of their moments takes 170 MB
_MOST_ROWS = 16_384  # patches per layer
_DAMPING = 0.01


def round_layers(
    graph: FloatGraph, quantized: QuantizedGraph, runs: Runs, most_bits: int = 4
) -> int:
    """Change the weights and biases of `quantized` in place; how many layers were rounded."""
    done = 0
    for name in list(quantized.layers):
        layer = quantized.layers[name]
        node = graph.nodes.get(name)
        weight = None if node is None else graph.weight_of(node)
        if node is None or weight is None or layer.weight.bits > most_bits:
            continue
        window = window_of(node, weight) if node.op_type == "Conv" else None
        if node.op_type == "ConvTranspose" or (node.op_type == "Conv" and window is None):
            continue
        if weight[0].size > MOST_COLUMNS:
            continue
        _round_layer(graph, quantized, layer, node, window, runs)
        done += 1
    return done


def _round_layer(
    graph: FloatGraph,
    quantized: QuantizedGraph,
    layer: QuantizedLayer,
    node: NodeProto,
    window: Window | None,
    runs: Runs,
) -> None:
    weight = graph.array(node.input[1]).astype(np.float64)
    axis = output_axis(node)
    matrix = weight.reshape(len(weight), -1) if axis == 0 else weight.T
    groups = window.groups if window else 1
    pairs = _inputs(graph.model, node.input[0], quantized.model, layer.input, runs)
    moments = _Moments(groups, matrix.shape[1])
    for exact, simulated in pairs:
        moments.add(*(patches(array, window) for array in (exact, simulated)))
    share = len(matrix) // groups
    scales, zeros = np.ones(len(matrix)), np.zeros(len(matrix))
    parts = []
    bias = graph.bias_of(node)
    biases = np.zeros(len(matrix)) if bias is None else bias.astype(np.float64).reshape(-1).copy()
    for group in range(groups):
        rows = slice(group * share, (group + 1) * share)
        mean, given_mean, input_moments, cross = moments.of(group)
        refitted = _refitted(matrix[rows], input_moments, cross)
        parts.append((rows, refitted, input_moments, mean, given_mean))
    importance = np.concatenate([np.broadcast_to(np.diag(o), m.shape) for _, m, o, _, _ in parts])
    target = np.concatenate([m for _, m, _, _, _ in parts])
    if layer.weight.axis is None:
        flat = best_scales(target.reshape(1, -1), layer.weight, importance.reshape(-1))
        scales[:], zeros[:] = flat[0][0], flat[1][0]
    else:
        for rows, refitted, input_moments, _, _ in parts:
            scales[rows], zeros[rows] = best_scales(refitted, layer.weight, np.diag(input_moments))
    scales = scales.astype(np.float32).astype(np.float64)
    whole = np.empty_like(matrix)
    for rows, refitted, input_moments, mean, given_mean in parts:
        first, last = layer.weight.limits
        whole[rows] = _rounded(refitted, input_moments, scales[rows], zeros[rows], first, last)
        stored_weights = (whole[rows] - zeros[rows, None]) * scales[rows, None]
        biases[rows] += matrix[rows] @ mean - stored_weights @ given_mean
    is_one = layer.weight.axis is None
    quantized.set_zeros(layer, zeros[:1] if is_one else zeros)
    shaped = whole.reshape(weight.shape) if axis == 0 else whole.T
    quantized.set_weights(layer, shaped, scales[:1] if is_one else scales)
    quantized.set_bias(quantized.layers[layer.name], biases)


class _Moments:
    """Means and centred second moments of patches of the float and of the quantized input, group
    by group; sums only."""

    def __init__(self, groups: int, columns: int) -> None:
        self._groups, self._columns = groups, columns
        self._rows = 0
        self._sum = np.zeros((groups, columns))
        self._given_sum = np.zeros((groups, columns))
        self._own = np.zeros((groups, columns, columns))
        self._cross = np.zeros((groups, columns, columns))

    def add(self, exact: Floats, simulated: Floats) -> None:
        """Patches (rows, groups × columns)."""
        count = len(exact)
        one = exact.reshape(count, self._groups, self._columns).transpose(1, 0, 2)
        other = simulated.reshape(count, self._groups, self._columns).transpose(1, 0, 2)
        self._rows += count
        self._sum += one.sum(axis=1)
        self._given_sum += other.sum(axis=1)
        self._own += other.transpose(0, 2, 1) @ other
        self._cross += one.transpose(0, 2, 1) @ other

    def of(self, group: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Means of both, moments of the quantized input, and of the float one with it."""
        rows = max(1, self._rows)
        mean, simulated_mean = self._sum[group] / rows, self._given_sum[group] / rows
        moments = self._own[group] / rows - np.outer(simulated_mean, simulated_mean)
        cross = self._cross[group] / rows - np.outer(mean, simulated_mean)
        moments[np.diag_indices_from(moments)] += _DAMPING * max(
            float(np.diag(moments).mean()), 1e-12
        )
        return mean, simulated_mean, moments, cross


def _refitted(matrix: Floats, moments: Floats, cross: Floats) -> Floats:
    """The weights with which the quantized input gives the float output best. The damping pulls
    towards the weights that there are."""
    extra = _DAMPING * max(float(np.diag(moments).mean()), 1e-12)
    right = matrix @ cross + extra * matrix
    weights = np.linalg.solve(moments, right.T).T
    return weights.astype(np.float64)


def _rounded(
    matrix: Floats, moments: Floats, scales: Floats, zeros: Floats, first: int, last: int
) -> Floats:
    """Integers, column by column, those of the strongest inputs first."""
    order = np.argsort(-np.diag(moments), kind="stable")
    inverse = np.linalg.inv(moments[np.ix_(order, order)])
    factor = np.linalg.cholesky((inverse + inverse.T) / 2).T
    left = matrix[:, order].copy()
    whole = np.empty_like(left)
    for column in range(left.shape[1]):
        steps = np.clip(np.rint(left[:, column] / scales + zeros), first, last)
        whole[:, column] = steps
        error = (left[:, column] - (steps - zeros) * scales) / factor[column, column]
        left[:, column + 1 :] -= np.outer(error, factor[column, column + 1 :])
    back = np.empty_like(whole)
    back[:, order] = whole
    return back


def _inputs(
    model: ModelProto, tensor: str, quantized: ModelProto, other: str, runs: Runs
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """The same tensor in both models, run by run."""
    first = _part(model, tensor, is_exact=False)
    second = _part(quantized, other, is_exact=True)
    for inputs in runs():
        yield first(inputs), second(inputs)


def _part(model: ModelProto, tensor: str, is_exact: bool) -> Any:
    if tensor in {source.name for source in model.graph.input}:
        return lambda inputs: inputs[tensor]
    session = session_of(with_outputs(model, [tensor]), is_exact)
    taken = {source.name for source in session.get_inputs()}

    def run(inputs: Any) -> NDArray[Any]:
        feeds = {name: value for name, value in inputs.items() if name in taken}
        computed: NDArray[Any] = session.run([tensor], feeds)[0]
        return computed

    return run


def patches(array: NDArray[Any], window: Window | None) -> Floats:
    """A row per place where the layer looks, groups × columns long; of many a fixed share."""
    if window is None:
        return array.reshape(-1, array.shape[-1]).astype(np.float64)
    top, left, bottom, right = window.pads
    padded = np.pad(array, ((0, 0), (0, 0), (top, bottom), (left, right)))
    tall = (window.kernel[0] - 1) * window.dilations[0] + 1
    wide = (window.kernel[1] - 1) * window.dilations[1] + 1
    views = np.lib.stride_tricks.sliding_window_view(padded, (tall, wide), axis=(2, 3))
    views = views[:, :, :: window.strides[0], :: window.strides[1]]
    views = views[..., :: window.dilations[0], :: window.dilations[1]]
    count, _channels, height, width = views.shape[:4]
    places = np.arange(count * height * width)
    most = max(1, _MOST_ROWS // 16)
    if len(places) > most:
        places = np.random.default_rng(0).choice(places, most, replace=False)
    sample, rest = np.divmod(places, height * width)
    down, along = np.divmod(rest, width)
    looked_at = views[sample, :, down, along]  # (places, channels, kernel, kernel)
    return looked_at.reshape(len(places), -1).astype(np.float64)


# Ranges of activations that leave rare outliers out, and scales of weights likewise.
#
# Calibration takes the smallest and largest value that it sees, so one pixel can cost all others a
# part of their resolution. From a histogram of each tensor, `mse` takes the range with the least
# square error after quantization; `percentile` leaves a fixed share of values outside.


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
    counted = {name: Histogram(*ends[name], np.zeros(_BINS)) for name in ends}
    for name, array in observed(graph.model, runs, list(ends)):
        one = counted[name]
        if one.high > one.low:
            one.counts += np.histogram(array, _BINS, (one.low, one.high))[0]
    return counted


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
    observed_values: Mapping[str, Histogram],
) -> QuantizedGraph:
    """A copy with such ranges, and with the scales of weights that have few bits, or one scale for
    all channels, chosen by their square error."""
    changed = quantized.copy()
    biases = float_biases(changed)
    changed.set_ranges(
        {
            name: clipped_range(one, variant, 2 ** changed.activations[name].bits - 1)
            for name, one in observed_values.items()
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


# Weights as integers: the scale of each channel, and rounding to the nearest.


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
    chosen = set(names)
    biases: dict[str, Floats] = {}
    for name, layer in quantized.layers.items():
        node = graph.nodes.get(name)
        weight = None if node is None else graph.weight_of(node)
        bias = quantized.biases(layer)
        if node is not None and weight is not None and name in chosen:
            exact = weight.astype(np.float64)
            scales, zeros = largest_scales(rows_of(exact, layer.weight.axis), layer.weight)
            stored(quantized, layer, exact, scales, zeros)
            plain = graph.bias_of(node)
            bias = bias if plain is None else plain.astype(np.float64).reshape(-1)
        if bias is not None:
            biases[name] = bias
    refreshed_biases(quantized, biases)
