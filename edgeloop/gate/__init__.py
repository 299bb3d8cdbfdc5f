"""The gate for continuous integration: a model against a stored baseline.

    figures = measure_model(Path("net.onnx"), GateOptions(device="htp:qcs8550", dataset=faces))
    report = compare_figures(Baseline.read(Path("baseline.json")), figures, GateLimits())
    print(report.markdown())

Rule of every figure that has an interval (the score, and latency that is measured): a regression is
a change that is worse than what is allowed and whose 95 % interval leaves no change out.
"""

from edgeloop.gate.baseline import Baseline, BaselineScore
from edgeloop.gate.figures import GateFigures, GateOptions, GateScore, measure_model
from edgeloop.gate.verdict import (
    GateCheck,
    GateLimits,
    GateReport,
    compare_figures,
    refused_report,
)

__all__ = [
    "Baseline",
    "BaselineScore",
    "GateCheck",
    "GateFigures",
    "GateLimits",
    "GateOptions",
    "GateReport",
    "GateScore",
    "compare_figures",
    "measure_model",
    "refused_report",
]
