"""Tuning: what makes a model faster or more accurate on a chip, by its compiler and simulator."""

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
    "Judge",
    "Judged",
    "Recovery",
    "TriedStep",
    "parse_steps",
    "recover",
]
