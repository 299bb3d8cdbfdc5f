"""The loop that looks for work and does it, on any number of machines at once."""

from __future__ import annotations

from edgeloop.runner.calibration import calibrate_profile
from edgeloop.runner.compare import Comparison, Variant, compare_model
from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.runner.stages import Sizes
from edgeloop.runner.usage import Activity, DeviceUse, activities, record_use, utilisation
from edgeloop.runner.worker import RunnerEvent

__all__ = [
    "Activity",
    "Comparison",
    "DeviceUse",
    "RunnerEvent",
    "RunnerOptions",
    "Sizes",
    "Variant",
    "activities",
    "calibrate_profile",
    "compare_model",
    "record_use",
    "run",
    "utilisation",
]
