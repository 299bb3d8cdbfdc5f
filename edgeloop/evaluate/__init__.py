"""Questions about models and about this machine: comparison, calibration, doctor."""

from __future__ import annotations

from edgeloop.evaluate.calibration import calibrate_profile
from edgeloop.evaluate.compare import Comparison, Variant, compare_model
from edgeloop.evaluate.doctor import Finding, examine

__all__ = [
    "Comparison",
    "Finding",
    "Variant",
    "calibrate_profile",
    "compare_model",
    "examine",
]
