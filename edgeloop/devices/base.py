"""The seam between a model's files and something that runs them, or knows how long that takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from edgeloop.tasks import Images, Output
from edgeloop.toolchains import GraphInfo

Kind = Literal["float", "quantized", "fp16"]


@dataclass(frozen=True)
class Layer:
    name: str
    operator: str
    time_us: float | None = None


@dataclass(frozen=True)
class Measurement:
    """One benchmark run. `seconds` is what goes into the row: the median of the samples, or the
    calibrated estimate. An estimate says so, with its raw value, bounds and margin."""

    seconds: float
    samples_s: tuple[float, ...]
    is_estimate: bool = False
    raw_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    margin_percent: float | None = None
    profile: str = ""
    is_calibrated: bool = False
    layers: tuple[Layer, ...] = ()
    conditions: Mapping[str, str | float] = field(default_factory=dict)


class Device(Protocol):
    """`name` is what stands in the table: host, htp:snapdragon-888, adb:SERIAL."""

    name: str
    chip: str  # what to compile for; empty where nothing is compiled
    float_kind: Kind  # how it runs the model that was not quantized: float, or fp16 on HTP

    def probe(self) -> str:
        """A line about the device; raises when it is not there."""

    def measure(self, model: Path, info: GraphInfo) -> Measurement:
        """One benchmark run of the quantized ONNX model (QDQ)."""

    def infer(
        self, model: Path, info: GraphInfo, kind: Kind, images: Iterator[Images]
    ) -> Iterator[Output]:
        """Outputs of batches of images (n, H, W, 3) uint8, in order, as they become ready.

        `float` takes the uploaded model, `quantized` the QDQ model, `fp16` the uploaded one.
        """

    def close(self) -> None: ...
