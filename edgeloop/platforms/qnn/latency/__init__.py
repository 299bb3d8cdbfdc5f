"""The time on a chip, predicted from the compiler's estimate: a number with its interval."""

from edgeloop.platforms.qnn.latency.prediction import LatencyPrediction, predict

__all__ = ["LatencyPrediction", "predict"]
