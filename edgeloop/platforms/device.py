"""The seam between a model's files and something that runs them, or knows how long that takes.

Work on batches by several hands at once, with results in the order of the batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from edgeloop.errors import BadInput
from edgeloop.graph import GraphInfo
from edgeloop.tasks import Images, Output

Kind = Literal["float", "quantized", "fp16"]
Artefacts = Mapping[Kind, str]
ONNX_ARTEFACTS: Artefacts = {"quantized": ".quant.onnx"}


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
    artefacts: Artefacts  # how the file of a kind ends; a kind not named: the uploaded model

    def probe(self) -> str:
        """A line about the device; raises when it is not there."""

    def measure(self, model: Path, info: GraphInfo) -> Measurement:
        """One benchmark run of the quantized model."""

    def infer(
        self, model: Path, info: GraphInfo, kind: Kind, images: Iterator[Images]
    ) -> Iterator[Output]:
        """Outputs of batches of images (n, H, W, 3) uint8, in order, as they become ready.

        `model` is the file that `artefacts` names for the kind.
        """

    def close(self) -> None: ...


@runtime_checkable
class GivesClasses(Protocol):
    """A device that hands back class maps (n, H, W) where a model has a graph that ends in them:
    they are a small part of the bytes of full outputs."""

    class_artefacts: Artefacts

    def infer_classes(
        self, model: Path, info: GraphInfo, kind: Kind, images: Iterator[Images]
    ) -> Iterator[Output]:
        """As `infer`, of the file that `class_artefacts` names; `info` is the whole model's."""


@runtime_checkable
class Shared(Protocol):
    """A device that must not wait for its host: several hands hold it at once, so that files
    travel and results are handed in while another hand's tool runs there. Hands line up inside
    the device; its owner holds it against other machines."""

    hands: int

    def share(self) -> Device:
        """Another hand on the same device, with a record of its own."""

    def hold(self) -> None:
        """Take it for this process, until it is closed; raises DeviceBusy."""

    def stop(self) -> None:
        """Stages that have run something there may go on; all others get DeviceUnavailable."""

    def take_uses(self) -> list[tuple[datetime, datetime]]:
        """When this hand's tools ran there, since the last question."""


_PIECES_A_HAND = 4


def in_order(
    images: Iterator[Images],
    info: GraphInfo,
    hands: int,
    work: Callable[[Images], Output],
    batches_ahead: int = 1,
) -> Iterator[Output]:
    """Each batch is cut into pieces for all hands; while its results are used, the next one is
    under way. Leaving the iterator early drops what has not begun."""
    pool = ThreadPoolExecutor(hands, thread_name_prefix="infer")
    waiting: deque[list[Future[Output]]] = deque()
    try:
        for batch in images:
            waiting.append([pool.submit(work, piece) for piece in _pieces(batch, info, hands)])
            if len(waiting) > batches_ahead:
                yield _whole(waiting.popleft())
        while waiting:
            yield _whole(waiting.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_batch(batch: Images, info: GraphInfo) -> Images:
    if batch.ndim != 4 or batch.shape[1:] != (info.height, info.width, 3) or not len(batch):
        size = "×".join(str(side) for side in batch.shape)
        reason = f"a batch is {size}, the model takes n×{info.height}×{info.width}×3"
        raise BadInput(reason=reason)
    return batch


def _pieces(batch: Images, info: GraphInfo, hands: int) -> list[Images]:
    check_batch(batch, info)
    length = max(1, len(batch) // (hands * _PIECES_A_HAND))
    return [batch[start : start + length] for start in range(0, len(batch), length)]


def _whole(pieces: list[Future[Output]]) -> Output:
    parts = [piece.result() for piece in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
