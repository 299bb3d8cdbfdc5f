"""The compiler's estimate of graphs that are not trained yet, for searches."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edgeloop.graph import GraphInfo
from edgeloop.isolation import NativeProcess
from edgeloop.platforms.base import LatencyProfile
from edgeloop.platforms.qnn.chips import Chip
from edgeloop.platforms.qnn.profiles import calibrated
from edgeloop.platforms.qnn.toolchain import NATIVE, QnnToolchain


class QnnEstimator:
    def __init__(self, chip: Chip, profile: LatencyProfile | None, limit_s: float) -> None:
        soc = chip.require_estimate()
        self._chip, self._profile = chip, profile
        self._process = NativeProcess(NATIVE)
        self._toolchain = QnnToolchain(limit_s, self._process)
        fit = f"{profile.name} {profile.a_us:g}+{profile.b:g}x" if profile else "none"
        try:
            installed = version("onnxruntime-qnn")
        except PackageNotFoundError:
            installed = "unknown"
        self.conditions = (
            f"estimate of soc {soc} for {chip.name}, profile {fit}, fixed scales, "
            f"onnxruntime-qnn {installed}"
        )

    def warm(self) -> None:
        self._process.warm()

    def inspect(self, model: Path) -> GraphInfo:
        return self._toolchain.inspect(model)

    def latency_ms(self, model: Path) -> float:
        raw_us = self._toolchain.screen(model, self._chip).raw_us
        return (raw_us if self._profile is None else calibrated(raw_us, self._profile)) / 1000

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._toolchain.close()
