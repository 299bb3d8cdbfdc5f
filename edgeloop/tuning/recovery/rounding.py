"""Rounding of weights that looks at what they multiply, instead of rounding each to its nearest.

Layer by layer, in the order of the graph: the inputs x that the quantized model really gives a
layer, and those that the float model gives it, decide. First the continuous weights are found with
which the quantized input gives the float output best (least squares); then columns are rounded one
by one, and the error of each is passed on to the columns that are still free, as far as their
inputs are correlated with it (the closed form of optimal brain surgeon, as GPTQ has it). It needs
second moments of the inputs only, no gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.tuning.recovery.floats import FloatGraph, Window, output_axis, window_of
from edgeloop.tuning.recovery.observe import Runs, session_of, with_outputs
from edgeloop.tuning.recovery.quantized import Floats, QuantizedGraph, QuantizedLayer
from edgeloop.tuning.recovery.weights import best_scales

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
    for exact, given in pairs:
        moments.add(*(patches(array, window) for array in (exact, given)))
    share = len(matrix) // groups
    scales, zeros = np.ones(len(matrix)), np.zeros(len(matrix))
    parts = []
    bias = graph.bias_of(node)
    biases = np.zeros(len(matrix)) if bias is None else bias.astype(np.float64).reshape(-1).copy()
    for group in range(groups):
        rows = slice(group * share, (group + 1) * share)
        mean, given_mean, own, cross = moments.of(group)
        wanted = _refitted(matrix[rows], own, cross)
        parts.append((rows, wanted, own, mean, given_mean))
    importance = np.concatenate([np.broadcast_to(np.diag(o), m.shape) for _, m, o, _, _ in parts])
    target = np.concatenate([m for _, m, _, _, _ in parts])
    if layer.weight.axis is None:
        flat = best_scales(target.reshape(1, -1), layer.weight, importance.reshape(-1))
        scales[:], zeros[:] = flat[0][0], flat[1][0]
    else:
        for rows, wanted, own, _, _ in parts:
            scales[rows], zeros[rows] = best_scales(wanted, layer.weight, np.diag(own))
    scales = scales.astype(np.float32).astype(np.float64)
    whole = np.empty_like(matrix)
    for rows, wanted, own, mean, given_mean in parts:
        first, last = layer.weight.limits
        whole[rows] = _rounded(wanted, own, scales[rows], zeros[rows], first, last)
        found = (whole[rows] - zeros[rows, None]) * scales[rows, None]
        biases[rows] += matrix[rows] @ mean - found @ given_mean
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

    def add(self, exact: Floats, given: Floats) -> None:
        """Patches (rows, groups × columns)."""
        count = len(exact)
        one = exact.reshape(count, self._groups, self._columns).transpose(1, 0, 2)
        other = given.reshape(count, self._groups, self._columns).transpose(1, 0, 2)
        self._rows += count
        self._sum += one.sum(axis=1)
        self._given_sum += other.sum(axis=1)
        self._own += other.transpose(0, 2, 1) @ other
        self._cross += one.transpose(0, 2, 1) @ other

    def of(self, group: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Means of both, moments of the quantized input, and of the float one with it."""
        rows = max(1, self._rows)
        mean, given = self._sum[group] / rows, self._given_sum[group] / rows
        own = self._own[group] / rows - np.outer(given, given)
        cross = self._cross[group] / rows - np.outer(mean, given)
        own[np.diag_indices_from(own)] += _DAMPING * max(float(np.diag(own).mean()), 1e-12)
        return mean, given, own, cross


def _refitted(matrix: Floats, own: Floats, cross: Floats) -> Floats:
    """The weights with which the quantized input gives the float output best. The damping pulls
    towards the weights that there are."""
    extra = _DAMPING * max(float(np.diag(own).mean()), 1e-12)
    right = matrix @ cross + extra * matrix
    found = np.linalg.solve(own, right.T).T
    return found.astype(np.float64)


def _rounded(
    matrix: Floats, own: Floats, scales: Floats, zeros: Floats, first: int, last: int
) -> Floats:
    """Integers, column by column, those of the strongest inputs first."""
    order = np.argsort(-np.diag(own), kind="stable")
    inverse = np.linalg.inv(own[np.ix_(order, order)])
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
        given = {name: value for name, value in inputs.items() if name in taken}
        found: NDArray[Any] = session.run([tensor], given)[0]
        return found

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
    found = views[sample, :, down, along]  # (places, channels, kernel, kernel)
    return found.reshape(len(places), -1).astype(np.float64)
