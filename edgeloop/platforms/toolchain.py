"""The seam between an ONNX file and what a chip runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from edgeloop.graph import GraphInfo
from edgeloop.tasks import Samples

Precision = Literal["a8w8", "a8w8-per-channel", "a16w8", "fp16"]
DEFAULT_PRECISION: Precision = "a8w8-per-channel"


@dataclass(frozen=True)
class Converted:
    """The files that conversion made, by the names they get in the model's folder."""

    info: GraphInfo
    precision: Precision
    files: Mapping[str, Path]
    quantized: str  # its name in `files`: QDQ ONNX with float ends from qnn, a DLC from snpe
    notes: tuple[str, ...] = field(default=())


class Toolchain(Protocol):
    name: str

    def inspect(self, model: Path) -> GraphInfo:
        """Check that the model can be used; raises BadModel with the reason in plain words."""

    def convert(
        self,
        model: Path,
        calibration: Samples,
        folder: Path,
        precision: Precision = DEFAULT_PRECISION,
        chips: tuple[str, ...] = (),
    ) -> Converted:
        """Quantized model, .dlc and .quant.dlc, a context binary a chip, the layer table."""

    def close(self) -> None: ...
