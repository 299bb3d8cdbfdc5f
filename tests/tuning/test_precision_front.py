"""Fronts of plans without a compiler: what is shown, chosen, and asked again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeloop.errors import BadInput
from edgeloop.platforms import PrecisionPlan
from edgeloop.tasks import Interval
from edgeloop.tuning.precision import PrecisionReport, choose_point
from edgeloop.tuning.precision.results import Divergence, PrecisionPoint

BASE = PrecisionPoint(PrecisionPlan(), 100.0, 30.0)
MIXED = PrecisionPoint(PrecisionPlan.of_bits({"a": 16}), 110.0, 38.0)
FULL = PrecisionPoint(PrecisionPlan.of_bits({}, activations=16), 150.0, 40.0)


def report(*points: PrecisionPoint, metric: str = "") -> PrecisionReport:
    return PrecisionReport("net", "htp:qcs8550", 8, metric, points, (), Divergence(()))


def scored(point: PrecisionPoint, score: float, lost: float) -> PrecisionPoint:
    return replace(point, score=score, difference=Interval(-lost, -lost, -lost))


def test_a_psnr_is_compared_in_decibels_and_a_share_in_points() -> None:
    loud = report(scored(BASE, 30.0, 0.8), scored(FULL, 30.6, 0.2), metric="PSNR")
    assert choose_point(loud, within=1.0) is loud.points[0]
    with pytest.raises(BadInput, match=r"within 0.1 dB of float: the best loses 0.20"):
        choose_point(loud, within=0.1)
    share = report(scored(BASE, 0.7, 0.02), scored(FULL, 0.717, 0.003), metric="F1")
    assert choose_point(share, within=1.0) is share.points[1]
    with pytest.raises(BadInput, match=r"within 0.1 points of float: the best loses 0.30"):
        choose_point(share, within=0.1)
