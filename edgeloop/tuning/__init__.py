"""Tuning: what makes a model faster or more accurate on a chip, by its compiler and simulator."""

from edgeloop.tuning.advice import (
    Advice,
    AdviceOptions,
    AdvisedRewrite,
    QuantizedAgreement,
    advise_model,
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
    "QuantizedAgreement",
    "Recovery",
    "TriedStep",
    "advise_model",
    "parse_steps",
    "recover",
]
