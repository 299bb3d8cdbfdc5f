"""The first layer whose output on the chip is far from what it would be in float.

Errors of quantized layers add up on the way, so the layer with the worst output is usually just the
deepest. Here every layer is judged by itself: it is computed in float from what it read on the
chip, and compared with what it gave there. Channels are compared one by one, since a loud channel
would hide that all others are lost. A layer that is much worse than layers of this model are is
named.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

from edgeloop.graph import TunableTensor
from edgeloop.platforms import PrecisionPlan
from edgeloop.tuning.precision.lab import PrecisionLab
from edgeloop.tuning.precision.results import Divergence, LayerAgreement
from edgeloop.tuning.precision.worker import MOST_DB

_SHARP_DB = 10.0  # healthy layers differ by up to 9: those without an activation function are lower
_SPREADS = 3.0
_LARGEST_DB = 15.0  # half of the layers may suffer from the first one
_PROBED_BYTES = 128 << 20
_KEPT_BYTES = 1 << 30
_MOST_PROBES = 24


def find_divergence(
    lab: PrecisionLab, plan: PrecisionPlan, count: int = 2, sharp_db: float = _SHARP_DB
) -> Divergence:
    """Float against the chip, layer by layer, on a few samples."""
    everything = [t for t in lab.calibrated.tensors if t.kind == "activation"]
    if _bytes(everything, count) > _KEPT_BYTES:
        count = 1
    tensors = _first(everything, count)
    note = ""
    if len(tensors) < len(everything):
        note = f"only the first {len(tensors)} of {len(everything)} tensors were compared with "
        note += "those of the chip: the others do not fit into memory"
    whole, own = lab.inside(plan, _parts(tensors, count), count)
    layers = tuple(
        LayerAgreement(
            tensor.name,
            tensor.layer or tensor.name,
            tensor.operator,
            whole[tensor.name],
            own.get(tensor.name, MOST_DB),
        )
        for tensor in tensors
        if tensor.name in whole
    )
    return replace(_judged(layers, sharp_db), note=note)


def _bytes(tensors: Sequence[TunableTensor], count: int) -> int:
    return sum(4 * tensor.size * count for tensor in tensors)


def _first(tensors: Sequence[TunableTensor], count: int) -> list[TunableTensor]:
    """As many as can be kept at once: each is needed for the layers that read it."""
    ends = itertools.accumulate(4 * tensor.size * count for tensor in tensors)
    return [tensor for tensor, end in zip(tensors, ends, strict=True) if end <= _KEPT_BYTES]


def _judged(layers: tuple[LayerAgreement, ...], sharp_db: float) -> Divergence:
    if not layers:
        return Divergence(layers)
    values = [layer.own_db for layer in layers]
    usual = statistics.median(values)
    spread = statistics.median(abs(value - usual) for value in values)
    limit = usual - min(max(sharp_db, _SPREADS * spread), _LARGEST_DB)
    first = next((layer for layer in layers if layer.own_db < limit), None)
    return Divergence(layers, first, usual)


def _parts(tensors: Sequence[TunableTensor], count: int) -> list[list[str]]:
    """As many tensors at a time as fit into some memory."""
    parts: list[list[str]] = [[]]
    size = 0
    for tensor in tensors:
        own = 8 * tensor.size * count
        if parts[-1] and (size + own > _PROBED_BYTES or len(parts[-1]) >= _MOST_PROBES):
            parts.append([])
            size = 0
        parts[-1].append(tensor.name)
        size += own
    return [part for part in parts if part]
