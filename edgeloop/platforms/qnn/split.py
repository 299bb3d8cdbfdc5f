"""Graphs that are split between the chip and the CPU: which part runs where, and what that costs.

Only with `--allow-cpu-fallback`. The compiler knows the time of the chip's parts; nobody here knows
that of the CPU's, nor of the ways between, so the latency is that of the chip's parts and says so.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop.errors import ModelFailed
from edgeloop.graph import count_layers

if TYPE_CHECKING:
    from onnx import ModelProto

_CONVERTING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Division:
    """`layers` are (operator, layer) pairs that run on the CPU, `share` is theirs of all MACs."""

    parts: int
    layers: tuple[tuple[str, str], ...]
    share: float = 0.0

    def __str__(self) -> str:
        named = ", ".join(f"{kind} {name!r}" for kind, name in self.layers[:5])
        more = f" and {len(self.layers) - 5} more" if len(self.layers) > 5 else ""
        return (
            f"{named}{more} run on the CPU ({100 * self.share:.1f} % of the MACs), the rest in "
            f"{self.parts} parts on the chip: the latency is that of these parts alone."
        )


def division(session: Any, model: ModelProto, provider: str) -> Division:
    """How a session divides a model; it must have recorded that."""
    import onnx

    parts = session.get_provider_graph_assignment_info()
    layers = tuple(
        (node.op_type, node.name)
        for part in parts
        if part.ep_name != provider
        for node in part.get_nodes()
        if node.op_type not in _CONVERTING
    )
    counted = count_layers(onnx.shape_inference.infer_shapes(model))
    total = sum(layer.macs for layer in counted)
    names = {name for _, name in layers}
    own = sum(layer.macs for layer in counted if layer.name in names)
    count = sum(part.ep_name == provider for part in parts)
    return Division(count, layers, own / total if total else 0.0)


def events_of(profile: Path, parts: int, added: Sequence[str]) -> Mapping[str, float]:
    """What the compiler says of a graph; `added` are the events that add up over several parts.

    With every part that it compiles it writes all parts so far once more; the last ones are all.
    """
    with profile.open(newline="") as file:
        rows = [(row["Event Identifier"], row["Time"]) for row in csv.DictReader(file)]
    events = {name: float(value) for name, value in rows if name in added}
    if parts <= 1:
        return events
    for name in events:
        values = [float(value) for event, value in rows if event == name]
        if len(values) != parts * (parts + 1) // 2:
            reason = "the compiler gives no estimate of all parts of a graph that is split"
            raise ModelFailed(reason=reason)
        events[name] = sum(values[-parts:])
    return events
