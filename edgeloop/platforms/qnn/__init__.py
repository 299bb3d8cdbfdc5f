"""Qualcomm's compiler and HTP simulator, from the package onnxruntime-qnn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from edgeloop._util.health import HealthCheck, package_check
from edgeloop._util.schema import Section
from edgeloop.platforms.base import (
    LatencyProfile,
    ListedDevice,
    MeasuredModel,
    Platform,
)

if TYPE_CHECKING:
    from edgeloop.platforms.qnn.device import HtpDevice
    from edgeloop.platforms.qnn.toolchain import QnnEstimator, QnnToolchain
    from edgeloop.settings import Settings


class QnnSettings(Section):
    """Keys of `edgeloop.yaml`."""

    allow_cpu_fallback: bool = Field(
        False,
        description="Leave operators that the chip's compiler does not take to the CPU; also "
        "`--allow-cpu-fallback`.",
    )


class QnnPlatform(Platform):
    """`htp`, `htp:CHIP`, and `htp:PROFILE` for a board that was calibrated in this project."""

    name = "qnn"
    device_names = ("htp", "htp:CHIP")
    settings = QnnSettings
    file_suffixes = (".quant.onnx", ".ctx.onnx", ".dlc", ".bin", ".layers.csv")

    def open_toolchain(self, settings: Settings) -> QnnToolchain:
        from edgeloop.platforms.qnn.toolchain import QnnToolchain

        return QnnToolchain(may_split=settings.section(QnnSettings).allow_cpu_fallback)

    def open_device(self, name: str, settings: Settings, workers: int | None = None) -> HtpDevice:
        """`workers` is how many simulators run at once; by default one per core."""
        from edgeloop.platforms.qnn.device import HtpDevice
        from edgeloop.platforms.qnn.latency import find_target

        target, chip, profile = find_target(name, profiles_folder(settings))
        may_split = settings.section(QnnSettings).allow_cpu_fallback
        return HtpDevice(chip, profile, name=f"htp:{target}", workers=workers, may_split=may_split)

    def list_devices(self, settings: Settings) -> Iterable[ListedDevice]:
        from edgeloop.platforms.qnn.chips import chips
        from edgeloop.platforms.qnn.latency import find_profile

        for chip in chips().values():
            profile = find_profile(chip.name, profiles_folder(settings))
            yield ListedDevice(
                f"htp:{chip.name}",
                "compiler's estimate" if chip.estimate_soc else "none",
                _accuracy(profile) if profile else "uncalibrated",
                "simulated",
            )

    def health(self, settings: Settings) -> Iterable[HealthCheck]:
        from edgeloop.platforms.qnn.chips import missing_library

        purpose = "Qualcomm's compiler and HTP simulator"
        package = package_check("onnxruntime_qnn", "pip install 'edgeloop[qnn]'", purpose)
        if package.ok and (problem := missing_library()):
            return (replace(package, ok=False, text=problem),)
        return (package,)

    def check_benchmark(self, name: str, settings: Settings) -> None:
        from edgeloop.platforms.qnn.latency import find_target

        find_target(name, profiles_folder(settings))[1].require_estimate()

    def check_toolchain(self, settings: Settings) -> None:
        from importlib.util import find_spec

        from edgeloop.errors import MissingExtra, MissingLibrary
        from edgeloop.platforms.qnn.chips import missing_library

        if find_spec("onnxruntime") is None:
            raise MissingExtra(what="The qnn toolchain", extra="qnn")
        if problem := missing_library():
            raise MissingLibrary(reason=problem)

    def open_estimator(self, name: str, settings: Settings, limit_s: float) -> QnnEstimator:
        return self.open_estimators([name], settings, limit_s)[name]

    def open_estimators(
        self, names: Sequence[str], settings: Settings, limit_s: float
    ) -> Mapping[str, QnnEstimator]:
        """Chips that the compiler estimates by the same number share a compile."""
        from edgeloop.platforms.qnn.latency import find_target
        from edgeloop.platforms.qnn.toolchain import QnnEstimator, ScreenedModel

        targets = {name: find_target(name, profiles_folder(settings))[1:] for name in names}
        screened = ScreenedModel(targets.values(), limit_s)
        return {name: QnnEstimator(*target, screened) for name, target in targets.items()}

    def calibrate(
        self,
        name: str,
        chip: str,
        measured: Sequence[MeasuredModel],
        settings: Settings,
        source: str = "",
    ) -> LatencyProfile:
        from edgeloop.platforms.qnn.chips import find_chip
        from edgeloop.platforms.qnn.latency import fit_profile, save_profile
        from edgeloop.platforms.qnn.toolchain import QnnToolchain

        target = find_chip(chip)
        soc = target.require_estimate()
        with QnnToolchain() as toolchain:
            pairs = [
                (toolchain.estimate(model.quantized, target).raw_us, 1000.0 * model.latency_ms)
                for model in measured
            ]
        profile = fit_profile(pairs, name, soc, source)
        save_profile(profiles_folder(settings), profile)
        return profile


def _accuracy(profile: LatencyProfile) -> str:
    """`90 % within 0.7 to 2 × the estimate`."""
    interval = profile.intervals.get("any")
    if interval is None:
        return f"median error {profile.error_percent:.0f} %"
    stated = f"{100 * interval.coverage:.0f} % within" if interval.coverage else "range"
    return f"{stated} {interval.low:.2g} to {interval.high:.2g} × it"


def profiles_folder(settings: Settings) -> Path:
    """Profiles of boards that were calibrated in this project."""
    return settings.project / ".edgeloop" / "profiles"
