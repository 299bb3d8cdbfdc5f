"""The time on a chip, predicted from the compiler's estimate: a number with its interval."""

from edgeloop.platforms.qnn.latency.features import features_of, kind_of
from edgeloop.platforms.qnn.latency.prediction import LatencyPrediction, predict
from edgeloop.platforms.qnn.latency.profiles import (
    built_in_profiles,
    calibrated,
    constants_text,
    find_profile,
)

__all__ = [
    "LatencyPrediction",
    "built_in_profiles",
    "calibrated",
    "constants_text",
    "features_of",
    "find_profile",
    "kind_of",
    "predict",
]
