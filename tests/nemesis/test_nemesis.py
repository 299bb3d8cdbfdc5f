"""Rounds of the nemesis with every kind of fault that a store can have: a short one on PostgreSQL,
which has most of them, and longer ones on every store in `make soak`. `python -m bench nemesis`
goes on for as long as it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nemesis.arena import Round
from tests.nemesis.driver import run_round
from tests.nemesis.faults import faults_of

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("kind", "models", "seconds"),
    [
        ("postgresql", 4, 0),
        pytest.param("sqlite", 8, 20, marks=pytest.mark.soak),
        pytest.param("postgresql", 6, 20, marks=pytest.mark.soak),
        pytest.param("azurite", 4, 20, marks=pytest.mark.soak),
    ],
)
def test_every_stage_ends_once_and_nothing_stale_gets_in(
    kind: str, models: int, seconds: float, tmp_path: Path
) -> None:
    """Servers of its own: it stops and starts them while others' tests go on."""
    report = run_round(
        Round(kind, str(tmp_path), seconds=seconds, models=models, seed=7, workers=3)
    )

    assert report.violations == []
    assert report.inversions == []
    assert report.orphans_after == 0
    assert {fault.name for fault in faults_of(kind)} <= report.deeds.keys()
    assert report.seen["accepted"] > 0
