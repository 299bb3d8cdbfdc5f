"""Recovery of accuracy that quantization lost: equalization, ranges, rounding, biases.

Works on the quantized ONNX model that a toolchain made and on the float graph it was made of. Each
step is kept only if the score on the device rises by more than its paired interval.
"""

from edgeloop.tuning.recovery.loop import (
    LIMIT_S,
    STEP_NAMES,
    Judge,
    Judged,
    Recovery,
    TriedStep,
    parse_steps,
    recover,
)

__all__ = [
    "LIMIT_S",
    "STEP_NAMES",
    "Judge",
    "Judged",
    "Recovery",
    "TriedStep",
    "parse_steps",
    "recover",
]
