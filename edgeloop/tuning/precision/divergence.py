"""The first layer whose output on the chip is far from the float one, while what it reads is not.

Every layer of a quantized model adds some error, so a threshold alone would name whatever layer is
deep enough. Each tensor is compared with the worst of what its layer reads, channel by channel:
one loud channel would hide that all others are lost. A layer that loses much more than layers of
this model do is named.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.graph import TunableTensor
from edgeloop.platforms import PrecisionPlan
from edgeloop.tuning.precision.lab import PrecisionLab
from edgeloop.tuning.precision.results import Divergence, LayerAgreement

_AT_MOST_DB = 60.0
_SHARP_DB = 6.0
_SPREADS = 4.0
_PROBED_BYTES = 128 << 20
_MOST_PROBES = 24


def find_divergence(
    lab: PrecisionLab, plan: PrecisionPlan, count: int = 2, sharp_db: float = _SHARP_DB
) -> Divergence:
    """Float against the chip, tensor by tensor, on a few samples."""
    tensors = [t for t in lab.calibrated.tensors if t.kind == "activation"]
    found: dict[str, float] = {}
    for part in _parts(tensors, count):
        names = [tensor.name for tensor in part]
        for name, given, expected in lab.compared(plan, names, count):
            found[name] = channel_sqnr(np.asarray(given), np.asarray(expected))
    layers = [_agreement(tensor, found) for tensor in tensors]
    return Divergence(tuple(layers), _first(layers, sharp_db))


def channel_sqnr(given: NDArray[Any], expected: NDArray[Any]) -> float:
    """The median over channels, in dB, of those that are ever anything but zero."""
    axis = 1 if expected.ndim >= 3 and expected.shape[1] > 1 else expected.ndim - 1
    if expected.ndim <= 1:
        axis = 0
    others = tuple(place for place in range(expected.ndim) if place != axis)
    exact = expected.astype(np.float64)
    power = np.square(exact).sum(axis=others)
    error = np.square(given.reshape(expected.shape) - exact).sum(axis=others)
    alive = power > 1e-9 * max(float(power.max(initial=0.0)), 1e-30)
    if not alive.any():
        return _AT_MOST_DB
    ratios = 10 * np.log10(power[alive] / np.maximum(error[alive], 1e-30))
    return float(min(np.median(ratios), _AT_MOST_DB))


def _agreement(tensor: TunableTensor, found: dict[str, float]) -> LayerAgreement:
    before = [found[name] for name in tensor.inputs if name in found]
    own = found.get(tensor.name, _AT_MOST_DB)
    drop = min(before, default=_AT_MOST_DB) - own
    layer = tensor.layer or tensor.name
    return LayerAgreement(tensor.name, layer, tensor.operator, own, drop)


def _first(layers: Sequence[LayerAgreement], sharp_db: float) -> LayerAgreement | None:
    """The drop of the first layer counts from an exact input, so it is compared with the SQNR that
    the others have instead."""
    drops = [layer.drop_db for layer in layers[1:]]
    if len(drops) < 2:
        return next((layer for layer in layers if layer.sqnr_db < 15), None)
    usual = statistics.median(drops)
    spread = statistics.median(abs(drop - usual) for drop in drops)
    limit = usual + max(sharp_db, _SPREADS * spread)
    if layers[0].sqnr_db < 20.0 and layers[0].drop_db > limit:
        return layers[0]
    return next((layer for layer in layers[1:] if layer.drop_db > limit), None)


def _parts(tensors: Sequence[TunableTensor], count: int) -> list[list[TunableTensor]]:
    """As many tensors at a time as fit into some memory."""
    parts: list[list[TunableTensor]] = [[]]
    size = 0
    for tensor in tensors:
        own = 8 * tensor.size * count
        if parts[-1] and (size + own > _PROBED_BYTES or len(parts[-1]) >= _MOST_PROBES):
            parts.append([])
            size = 0
        parts[-1].append(tensor)
        size += own
    return [part for part in parts if part]
