"""Fleets: runners that some engine starts, as many as the waiting work needs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeloop.fleet.control import bring_up, completed_spec, ensure_supervisor
    from edgeloop.fleet.demand import (
        DEVICE,
        LINUX,
        Demand,
        DemandReader,
        StageWork,
        WaitingWork,
        group_of,
        group_of_pin,
        quick_demand,
        read_waiting_work,
        restore_hints,
        stage_work,
        summed_work,
        waiting_work,
    )
    from edgeloop.fleet.kubernetes import fleet_manifest, manifest_text
    from edgeloop.fleet.launcher import Launcher, RunnerOrder, RunnerState, StartedSupervisor
    from edgeloop.fleet.records import FleetObservation, FleetRecord, Fleets
    from edgeloop.fleet.spec import Bounds, ExperimentShare, FleetSpec, read_spec

__all__ = [
    "DEVICE",
    "LINUX",
    "Bounds",
    "Demand",
    "DemandReader",
    "ExperimentShare",
    "FleetObservation",
    "FleetRecord",
    "FleetSpec",
    "Fleets",
    "Launcher",
    "RunnerOrder",
    "RunnerState",
    "StageWork",
    "StartedSupervisor",
    "WaitingWork",
    "bring_up",
    "completed_spec",
    "ensure_supervisor",
    "fleet_manifest",
    "group_of",
    "group_of_pin",
    "manifest_text",
    "quick_demand",
    "read_spec",
    "read_waiting_work",
    "restore_hints",
    "stage_work",
    "summed_work",
    "waiting_work",
]

_WHERE = {
    "control": ("bring_up", "completed_spec", "ensure_supervisor"),
    "demand": (
        *("Demand", "DemandReader", "StageWork", "WaitingWork", "quick_demand"),
        "read_waiting_work",
        *("restore_hints", "stage_work", "summed_work", "waiting_work"),
        *("DEVICE", "LINUX", "group_of", "group_of_pin"),
    ),
    "kubernetes": ("fleet_manifest", "manifest_text"),
    "launcher": ("Launcher", "RunnerOrder", "RunnerState", "StartedSupervisor"),
    "records": ("FleetObservation", "FleetRecord", "Fleets"),
    "spec": ("Bounds", "ExperimentShare", "FleetSpec", "read_spec"),
}


def __getattr__(name: str) -> Any:
    """`edgeloop queue` starts instantly, and needs none of the models that check a fleet's
    settings: what a name needs is loaded when it is first used."""
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"edgeloop.fleet.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
