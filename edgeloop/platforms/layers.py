"""The cost of every layer of a model, from devices that can tell it without running the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class LayerCost:
    """What a layer adds to the latency, and its share of the whole.

    Layers that cannot be told apart are one entry: `members` has their names in the order of the
    graph, `name` is that of the one that computes most. What writing the outputs takes is an entry
    without members."""

    name: str
    operator: str
    output: tuple[int, ...]
    time_us: float
    share: float
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerCosts:
    """The latency of a model, by layer. The entries and `unattributed_us` add up to `total_us`:
    what a compiler would say of the whole, `raw_us`, corrected by the device's profile if it has
    one. `notes` are reasons to trust it less. The time on the chip is expected from `low_us` to
    `high_us`, with the probability `coverage`; None where no data supports one. `missing_ops` are
    steps that the total leaves out: it is a lower bound then."""

    device: str
    total_us: float
    raw_us: float
    layers: tuple[LayerCost, ...]
    unattributed_us: float = 0.0
    is_calibrated: bool = False
    notes: tuple[str, ...] = ()
    compiles: int = 0
    missing_ops: int = 0
    low_us: float | None = None
    high_us: float | None = None
    coverage: float | None = None


@runtime_checkable
class AttributesLatency(Protocol):
    """A device that can say which layers of a model take the time, without running it."""

    def attribute(
        self,
        model: Path,
        workers: int | None = None,
        cache: Path | None = None,
        limit_s: float = 60.0,
        progress: Callable[[int, int], None] | None = None,
    ) -> LayerCosts:
        """`model` is a float model or one that the toolchain quantized. At most `workers` processes
        work at once. What was found is kept in `cache`, also if this is killed. After `limit_s`
        the result is what is known by then; the next call continues."""
