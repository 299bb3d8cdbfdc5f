"""Fleets: runners that some engine starts, as many as the waiting work needs."""

from __future__ import annotations

from edgeloop.fleet.demand import (
    Demand,
    StageWork,
    WaitingWork,
    quick_demand,
    read_waiting_work,
    restore_hints,
    stage_work,
    summed_work,
    waiting_work,
)
from edgeloop.fleet.launcher import Launcher, RunnerOrder, RunnerState

__all__ = [
    "Demand",
    "Launcher",
    "RunnerOrder",
    "RunnerState",
    "StageWork",
    "WaitingWork",
    "quick_demand",
    "read_waiting_work",
    "restore_hints",
    "stage_work",
    "summed_work",
    "waiting_work",
]
