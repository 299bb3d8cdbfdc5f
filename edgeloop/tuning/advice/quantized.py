"""How well the quantized model agrees with its float form, before and after rewrites.

Rewrites that are exact for floats can change the ranges that are quantized. So both models are
calibrated and simulated on the same inputs, against the float model as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.platforms import (
    Device,
    Toolchain,
    calibration_batch,
    converter_of,
    cut,
    open_device,
    open_toolchain,
    sample_count,
)
from edgeloop.tasks import AgreementScorer

if TYPE_CHECKING:
    from edgeloop.graph import GraphInfo
    from edgeloop.settings import Settings
    from edgeloop.tasks import Samples, Tensors

LARGEST_LOSS_DB = 1.0


@dataclass(frozen=True)
class QuantizedAgreement:
    """SQNR of the quantized model against the float one, and the latency of both as calibrated."""

    samples: int
    before_db: float
    after_db: float
    before_ms: float
    after_ms: float


class QuantizedCheck:
    """Of models that were made from one by rewrites. Each is quantized and simulated once, by
    processes that stay until `close`."""

    def __init__(
        self,
        base: Path,
        info: GraphInfo,
        samples: Samples,
        device: str,
        settings: Settings,
        folder: Path,
    ) -> None:
        self._base, self._info, self._samples = base, info, samples
        self._name, self._settings, self._folder = device, settings, folder
        self._stack = ExitStack()
        self._opened: tuple[Toolchain, Device] | None = None
        self._expected: list[Tensors] = []
        self._known: dict[Path, tuple[float, float] | None] = {}

    def agreement(self, after: Path) -> QuantizedAgreement | None:
        """None where the rewritten model has other outputs, which cannot be compared, or where
        nothing was rewritten."""
        first = self._found(self._base)
        second = self._found(after) if after != self._base else None
        if first is None or second is None:
            return None
        return QuantizedAgreement(len(self._samples), first[0], second[0], first[1], second[1])

    def first_loss(self, paths: Sequence[Path]) -> tuple[int, float] | None:
        """Of models with one rewrite more each: the place of the one that costs more than a
        decibel, and how much; None where all of them together do not."""
        whole = self.agreement(paths[-1])
        if whole is None or whole.before_db - whole.after_db <= LARGEST_LOSS_DB:
            return None
        losses = [
            (before[0] - after[0], place)
            for place in range(len(paths) - 1)
            if (before := self._found(paths[place])) and (after := self._found(paths[place + 1]))
        ]
        largest, place = max(losses)
        return place, largest

    def close(self) -> None:
        self._stack.close()

    def _found(self, model: Path) -> tuple[float, float] | None:
        """The SQNR in dB, and the latency in ms."""
        if model not in self._known:
            self._known[model] = self._simulated(model)
        return self._known[model]

    def _simulated(self, model: Path) -> tuple[float, float] | None:
        if not self._expected:
            with closing(open_device("host", self._settings)) as host:
                self._expected = list(host.infer(self._base, self._info, "float", self._runs()))
        toolchain, device = self._tools()
        info = self._info
        made = toolchain.convert(model, self._samples, self._folder / f"made-{len(self._known)}")
        if [one.name for one in made.info.outputs] != [one.name for one in info.outputs]:
            return None
        scorer = AgreementScorer(info)
        quantized = made.files[made.quantized]
        outputs = device.infer(quantized, made.info, "quantized", self._runs())
        for given, wanted in zip(outputs, self._expected, strict=True):
            scorer.add(given, wanted)
        latency_ms = 1000 * device.measure(quantized, made.info).seconds
        return scorer.worst().sqnr_db, latency_ms

    def _tools(self) -> tuple[Toolchain, Device]:
        if self._opened is None:
            toolchain = open_toolchain(converter_of(self._name), self._settings)
            self._stack.callback(toolchain.close)
            device = open_device(self._name, self._settings)
            self._stack.callback(device.close)
            self._opened = toolchain, device
        return self._opened

    def _runs(self) -> Iterator[Tensors]:
        batch = calibration_batch(self._info, self._samples)
        for start in range(0, sample_count(batch), self._info.batch):
            yield cut(batch, start, start + self._info.batch)
