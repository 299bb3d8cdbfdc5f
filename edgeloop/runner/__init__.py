"""The loop that looks for work and does it, on any number of machines at once."""

from __future__ import annotations

from edgeloop.runner.calibration import calibrate_profile
from edgeloop.runner.compare import Comparison, Variant, compare_model, fetched
from edgeloop.runner.loop import RunnerOptions, RunTotals, run
from edgeloop.runner.machines import HeldStage, MachineLine, held_stages, machine_lines
from edgeloop.runner.outlook import DrainSummary
from edgeloop.runner.stages import Sizes, run_test
from edgeloop.runner.usage import DeviceUse, UseToday, record_use, use_today, utilisation
from edgeloop.runner.workdir import MARK as WORKDIR_MARK
from edgeloop.runner.worker import RunnerEvent

__all__ = [
    "WORKDIR_MARK",
    "Comparison",
    "DeviceUse",
    "DrainSummary",
    "HeldStage",
    "MachineLine",
    "RunTotals",
    "RunnerEvent",
    "RunnerOptions",
    "Sizes",
    "UseToday",
    "Variant",
    "calibrate_profile",
    "compare_model",
    "fetched",
    "held_stages",
    "machine_lines",
    "record_use",
    "run",
    "run_test",
    "use_today",
    "utilisation",
]
