"""The cost of every layer, for a runner that was told to find it out: `runner --layers`.

Not knowing it fails no stage: what kept it from being found is said in the stage's line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgeloop.errors import EdgeloopError
from edgeloop.graph.count import LayerTiming, add_times
from edgeloop.platforms import AttributesLatency, LayerCost, LayerCosts, LayerTime, Measurement
from edgeloop.runner.stages.base import Equipment
from edgeloop.settings import cache_folder


def complete_table(equipment: Equipment, files: Mapping[str, Path], quantized: str) -> str:
    """Write the times of layers into the table that conversion made. Returns why not; empty where
    it was done, or not asked for."""
    table = next((path for name, path in files.items() if name.endswith(".layers.csv")), None)
    if equipment.attributor is None or table is None:
        return ""
    costs = _costs(equipment.attributor, files[quantized])
    if isinstance(costs, str):
        return costs
    timings = [
        LayerTiming(cost.name, cost.members, cost.time_us, cost.share) for cost in costs.layers
    ]
    add_times(table, timings, costs.device)
    return ""


def with_layers(measured: Measurement, equipment: Equipment, model: Path) -> Measurement:
    """A device that measures layers knows better; one that estimates them has done so before, for
    the table, and remembers it."""
    device = equipment.device
    if equipment.attributor is None or measured.layers or not isinstance(device, AttributesLatency):
        return measured
    costs = _costs(device, model)
    if isinstance(costs, str):
        return measured
    layers = tuple(LayerTime(_title(cost), cost.operator, cost.time_us) for cost in costs.layers)
    return replace(measured, layers=layers)


def _title(cost: LayerCost) -> str:
    others = len(cost.members) - 1
    return f"{cost.name} +{others}" if others > 0 else cost.name


def _costs(device: AttributesLatency, model: Path) -> LayerCosts | str:
    try:
        return device.attribute(model, cache=cache_folder() / "layers")
    except EdgeloopError as error:
        return f"no cost of layers: {error}"
