"""Advice: exact rewrites that make a model faster on a chip, each proven by its compiler."""

from edgeloop.tuning.advice.advise import Advice, AdviceOptions, advise_model
from edgeloop.tuning.advice.quantized import QuantizedAgreement
from edgeloop.tuning.advice.search import AdvisedRewrite

__all__ = [
    "Advice",
    "AdviceOptions",
    "AdvisedRewrite",
    "QuantizedAgreement",
    "advise_model",
]
