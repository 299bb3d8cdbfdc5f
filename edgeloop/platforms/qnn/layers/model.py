"""The cost of every layer of one model on one chip, with several processes at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edgeloop._util.units import plural
from edgeloop.isolation import NativeProcess
from edgeloop.platforms.base import Measurement
from edgeloop.platforms.layers import LayerCosts
from edgeloop.platforms.qnn.layers.attribution import CutTimes, Progress, attribute_layers
from edgeloop.platforms.qnn.layers.costs import layer_costs
from edgeloop.platforms.qnn.layers.prefixes import GraphLayer

_MOST_IN_GROUP = 12

MeasuresModel = Callable[[Path], Measurement]
"""The estimate of a whole quantized model."""


@dataclass(frozen=True)
class Workshop:
    """What the work is done with: `borrow` gives a process that nobody else uses meanwhile."""

    device: str
    soc: int
    is_calibrated: bool
    borrow: Callable[[], AbstractContextManager[NativeProcess]]
    workers: int
    call_limit_s: float


def model_costs(
    model: Path,
    shop: Workshop,
    measure: MeasuresModel,
    cache: Path | None,
    limit_s: float,
    progress: Progress | None = None,
) -> LayerCosts:
    with TemporaryDirectory(prefix="edgeloop-layers-") as name:
        folder = Path(name).resolve()
        quantized, deployed = folder / "quantized.onnx", folder / "deployed.onnx"
        found = _call(
            *(shop, "layers"),
            model=str(model.resolve()),
            quantized=str(quantized),
            deployed_as=str(deployed),
        )
        layers = [_layer(*fields) for fields in found["layers"]]
        whole = measure(quantized)
        names = [layer.name for layer in layers]

        def time_cut(count: int, copies: int) -> float:
            fields = {"model": str(deployed), "names": names, "soc": shop.soc}
            answer = _call(shop, "prefix", **fields, count=count, copies=copies)
            return float(answer["cycles"])

        known = CutTimes.remembered(cache, f"{found['digest']}-{shop.soc}-{_compiler()}")
        missing = attribute_layers(layers, time_cut, known, shop.workers, limit_s, progress)
    total_us = 1e6 * whole.seconds
    costs = layer_costs(layers, known.cuts, known.whole, total_us)
    kept = tuple(cost for cost in costs if len(cost.members) <= _MOST_IN_GROUP)
    left = [cost for cost in costs if len(cost.members) > _MOST_IN_GROUP]
    reasons = [
        f"{cost.time_us:.3g} µs of the {len(cost.members)} layers from {cost.members[0]!r} to "
        f"{cost.members[-1]!r} could not be told apart"
        for cost in left
    ]
    if missing:
        parts = plural(missing, "more part")
        reasons.append(f"{limit_s:g} s were too short for {parts}: run it again for more detail")
    return LayerCosts(
        *(shop.device, total_us, whole.raw_us or 0.0, kept),
        unattributed_us=sum(cost.time_us for cost in left),
        is_calibrated=shop.is_calibrated,
        notes=(*_notes(whole), *reasons),
        compiles=known.compiles,
        missing_ops=whole.missing_ops,
        low_us=None if whole.low_s is None else 1e6 * whole.low_s,
        high_us=None if whole.high_s is None else 1e6 * whole.high_s,
        coverage=whole.coverage,
    )


def _notes(whole: Measurement) -> list[str]:
    """Reasons to doubt the total."""
    said = str(whole.conditions.get("note") or "")
    return [text for text in (said, "" if whole.coverage else whole.basis) if text]


def _layer(
    name: str, operator: str, output: list[int], macs: int, cut_bytes: int | None
) -> GraphLayer:
    return GraphLayer(name, operator, tuple(output), macs, cut_bytes)


def _call(shop: Workshop, work: str, **fields: Any) -> dict[str, Any]:
    with shop.borrow() as process:
        return process.call(work, limit_s=shop.call_limit_s, **fields)[0]


def _compiler() -> str:
    try:
        return version("onnxruntime-qnn")
    except PackageNotFoundError:
        return "unknown"
