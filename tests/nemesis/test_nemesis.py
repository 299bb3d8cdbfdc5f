"""A short round of the nemesis on every store, with every kind of fault; `make bench` runs long
ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nemesis.arena import Round
from tests.nemesis.driver import run_round
from tests.nemesis.faults import faults_of

pytestmark = pytest.mark.server


@pytest.mark.parametrize(("kind", "models"), [("sqlite", 5), ("postgresql", 4), ("azurite", 3)])
def test_every_stage_ends_once_and_nothing_stale_gets_in(
    kind: str, models: int, tmp_path: Path
) -> None:
    """Servers of its own: it stops and starts them while others' tests go on."""
    report = run_round(Round(kind, str(tmp_path), seconds=0, models=models, seed=7, workers=3))

    assert report.violations == []
    assert report.inversions == []
    assert report.orphans_after == 0
    assert {fault.name for fault in faults_of(kind)} <= report.deeds.keys()
    assert report.seen["accepted"] > 0
