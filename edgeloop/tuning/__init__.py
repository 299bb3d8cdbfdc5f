"""Tuning: what makes a model faster or more accurate on a chip, by its compiler and simulator."""

from edgeloop.tuning.advice import (
    Advice,
    AdviceOptions,
    AdvisedRewrite,
    QuantizedAgreement,
    advise_model,
)
from edgeloop.tuning.precision import (
    PrecisionOptions,
    PrecisionPoint,
    PrecisionReport,
    Progress,
    TensorSensitivity,
    choose_point,
    tune_precision,
)
from edgeloop.tuning.recovery import (
    STEP_NAMES,
    Judge,
    Judged,
    Recovery,
    TriedStep,
    parse_steps,
    recover,
)

__all__ = [
    "STEP_NAMES",
    "Advice",
    "AdviceOptions",
    "AdvisedRewrite",
    "Judge",
    "Judged",
    "PrecisionOptions",
    "PrecisionPoint",
    "PrecisionReport",
    "Progress",
    "QuantizedAgreement",
    "Recovery",
    "TensorSensitivity",
    "TriedStep",
    "advise_model",
    "choose_point",
    "parse_steps",
    "recover",
    "tune_precision",
]
