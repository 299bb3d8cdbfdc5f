"""Precision: which tensors deserve 16 bits and which weights can do with 4, on the simulator."""

from edgeloop.tuning.precision.divergence import find_divergence
from edgeloop.tuning.precision.lab import LabOptions, PrecisionLab, Progress, opened_lab
from edgeloop.tuning.precision.results import (
    Divergence,
    LayerAgreement,
    PrecisionPoint,
    TensorSensitivity,
)
from edgeloop.tuning.precision.tune import (
    PrecisionOptions,
    PrecisionReport,
    choose_point,
    tune_precision,
)

__all__ = [
    "Divergence",
    "LabOptions",
    "LayerAgreement",
    "PrecisionLab",
    "PrecisionOptions",
    "PrecisionPoint",
    "PrecisionReport",
    "Progress",
    "TensorSensitivity",
    "choose_point",
    "find_divergence",
    "opened_lab",
    "tune_precision",
]
