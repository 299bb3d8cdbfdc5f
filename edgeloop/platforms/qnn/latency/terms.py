"""The corrections of a profile: what the compiler's estimate misses, by shares of a graph.

A profile predicts (a + b · estimate) · exp(sum of weight · term). Every term is a share between 0
and 1, so a graph unlike any of the fit is corrected by no more than the weights allow. The weight
of the constant makes the correction of an average network of the fit 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_BYTES_PER_US = 30_000.0  # of the memory outside the chip: tens of gigabytes per second
_MACS_PER_US = 5_000_000.0  # of the matrix unit
_OPS_PER_US = 1.0
_MAP_BYTES = 2.0**22  # about half of the processor's own memory

TRAFFIC = ("input_fill_bytes", "fill_bytes", "spill_bytes", "output_spill_bytes")


def terms_of(raw_us: float, features: Mapping[str, float]) -> dict[str, float]:
    """By name; `features` are those of the graph and the compiler's own traffic."""

    def bytes_of(*kinds: str) -> float:
        return sum(features.get(f"bytes_{kind}", 0.0) for kind in kinds)

    moved = max(1.0, sum(value for name, value in features.items() if _is_kind(name)))
    macs = max(1.0, features.get("macs", 0.0))
    traffic = sum(features.get(name, 0.0) for name in TRAFFIC)
    return {
        "constant": 1.0,
        "ops": _share(features.get("ops", 0.0), _OPS_PER_US * raw_us),
        "external_traffic": _share(traffic, _BYTES_PER_US * raw_us),
        "weights": _share(features.get("weight_bytes", 0.0), _BYTES_PER_US * raw_us),
        "macs": _share(macs, _MACS_PER_US * raw_us),
        "large_map": _share(features.get("largest_map_bytes", 0.0), _MAP_BYTES),
        "depthwise": bytes_of("depthwise") / moved,
        "grouped": features.get("macs_grouped", 0.0) / macs,
        "few_channels": bytes_of("few_channels") / moved,
        "transposed": bytes_of("transposed") / moved,
        "matmul": bytes_of("matmul") / moved,
        "shuffle": bytes_of("shuffle") / moved,
        "dense_concat": bytes_of("dense_concat") / moved,
        "concat": bytes_of("concat", "cut") / moved,
        "resize": bytes_of("resize_nearest", "resize_linear", "resize_cubic") / moved,
        "normalisation": bytes_of("softmax", "norm", "reduce") / moved,
        "rearranged": bytes_of("transpose", "reshape", "space") / moved,
        "elementwise": bytes_of("elementwise", "activation") / moved,
    }


def correction(weights: Mapping[str, float], raw_us: float, features: Mapping[str, float]) -> float:
    """The factor on a + b · estimate."""
    if not weights or not features:
        return 1.0
    terms = terms_of(raw_us, features)
    return math.exp(sum(weight * terms[name] for name, weight in weights.items()))


def _is_kind(name: str) -> bool:
    """Bytes of a kind of layer: each layer is in one of them, and in no other sum."""
    extra = ("bytes_few_channels", "bytes_shuffle", "bytes_dense_concat")
    return name.startswith("bytes_") and name not in extra


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part > 0 else 0.0
