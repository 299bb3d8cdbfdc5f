"""The graph of a network, coloured by the cost of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeloop.graph import LARGEST_OUTLINE, MOST_LAYERS, OUTLINE_SUFFIX, Outline, parse_outline
from edgeloop.report.model_charts import read_file
from edgeloop.report.network.costs import NetworkTimes, match_times
from edgeloop.report.network.folding import MOST_BOXES, Box, fold
from edgeloop.report.network.layout import arrange
from edgeloop.report.network.picture import (
    NARROW,
    STEPS,
    WIDE,
    NamedLayer,
    Network,
    draw,
    layer_count,
    network_of,
    step_of,
)
from edgeloop.workspace import Workspace

__all__ = [
    "MOST_BOXES",
    "NARROW",
    "STEPS",
    "WIDE",
    "Box",
    "NamedLayer",
    "Network",
    "NetworkTimes",
    "PictureOfNetwork",
    "arrange",
    "draw",
    "fold",
    "match_times",
    "network_of",
    "outline_in_store",
    "picture_of",
    "step_of",
]


_MOST_EDGES = 1_000


@dataclass(frozen=True)
class PictureOfNetwork:
    """`wide` and `narrow` are SVGs, for screens and for phones; empty where a network is too large
    to be drawn, which `trouble` says then. `unmatched` layers were timed that the graph does not
    show; their time is a share of the whole. `folded` layers are in boxes with others."""

    layers: int
    boxes: int = 0
    folded: int = 0
    wide: str = ""
    narrow: str = ""
    named: tuple[NamedLayer, ...] = ()
    most_us: float = 0.0
    most_share: float = 0.0
    unmatched: int = 0
    unmatched_share: float = 0.0
    trouble: str = ""


def outline_in_store(workspace: Workspace, model: str) -> Outline | None:
    """None if the model has no such file, or one that is too large or not what it says."""
    files = workspace.catalog.files(model)
    file = next((file for file in files if file.name.endswith(OUTLINE_SUFFIX)), None)
    content = read_file(workspace, file, LARGEST_OUTLINE)
    return parse_outline(content) if content else None


def picture_of(
    outline: Outline, layers: Sequence[tuple[str, str, float]], prefix: str
) -> PictureOfNetwork:
    """`layers` are the lines of a table: names, operators and µs."""
    if not outline.layers:
        trouble = f"It has {outline.count:,} layers, and at most {MOST_LAYERS:,} are drawn."
        return PictureOfNetwork(outline.count, trouble=trouble)
    times = match_times(outline, layers)
    boxes = fold(outline, times.times_us)
    if boxes is None or sum(len(box.inputs) for box in boxes) > _MOST_EDGES:
        trouble = (
            f"It cannot be folded into {MOST_BOXES} boxes with {_MOST_EDGES:,} connections;"
            " more are not drawn."
        )
        return PictureOfNetwork(layer_count(outline), trouble=trouble)
    network = network_of(outline, times, boxes)
    total = times.total_us or 1.0
    return PictureOfNetwork(
        layers=layer_count(outline),
        boxes=len(boxes),
        folded=sum(len(box.layers) for box in boxes if len(box.layers) > 1),
        wide=draw(outline, times, network, WIDE, prefix),
        narrow=draw(outline, times, network, NARROW, f"{prefix}n-"),
        named=network.named,
        most_us=network.most_us,
        most_share=network.most_us / total,
        unmatched=times.unmatched,
        unmatched_share=times.unmatched_us / total,
    )
