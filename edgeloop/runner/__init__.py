"""The loop that looks for work and does it, on any number of machines at once."""

from __future__ import annotations

from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.runner.overview import Activity, activities
from edgeloop.runner.usage import Use, record_use, utilisation
from edgeloop.runner.worker import Report

__all__ = [
    "Activity",
    "Report",
    "RunnerOptions",
    "Use",
    "activities",
    "record_use",
    "run",
    "utilisation",
]
