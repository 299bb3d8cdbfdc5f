"""Fleets: runners that some engine starts, as many as the waiting work needs."""

from __future__ import annotations

from edgeloop.fleet.launcher import Launcher, RunnerOrder, RunnerState

__all__ = ["Launcher", "RunnerOrder", "RunnerState"]
