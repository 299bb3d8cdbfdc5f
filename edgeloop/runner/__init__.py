"""The loop that looks for work and does it, on any number of machines at once."""

from __future__ import annotations

from edgeloop.runner.calibration import calibrate_profile
from edgeloop.runner.compare import Comparison, Variant, compare_model
from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.runner.overview import Activity, activities
from edgeloop.runner.stages import Sizes
from edgeloop.runner.usage import Use, record_use, utilisation
from edgeloop.runner.worker import Report

__all__ = [
    "Activity",
    "Comparison",
    "Report",
    "RunnerOptions",
    "Sizes",
    "Use",
    "Variant",
    "activities",
    "calibrate_profile",
    "compare_model",
    "record_use",
    "run",
    "utilisation",
]
