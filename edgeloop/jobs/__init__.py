"""Jobs: a script of yours, run somewhere else, with its data, and its results back here.

The wrapper that runs inside jobs is part of this room, on machines that have nothing but Python and
obstore; so the door opens each thing when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.jobs.client import Jobs
    from edgeloop.jobs.computes import (
        Compute,
        ComputeOptions,
        Order,
        Resources,
        Seen,
        compute_kinds,
        compute_options,
        make_compute,
    )
    from edgeloop.jobs.computes.azureml.needs import Chosen, azure_needs
    from edgeloop.jobs.fields import JobFile
    from edgeloop.jobs.protocol.handover import bootstrap_command, hand_over
    from edgeloop.jobs.protocol.resources import listed, missing
    from edgeloop.jobs.protocol.ticket import FINAL_STATES, State
    from edgeloop.jobs.records import JobRecord, Run
    from edgeloop.jobs.spec import JobSpec, read_spec, spec_of_script
    from edgeloop.jobs.sweep import parse_sweep
    from edgeloop.jobs.transfer import Fetched
    from edgeloop.jobs.watch import Status

__all__ = [
    "FINAL_STATES",
    "Chosen",
    "Compute",
    "ComputeOptions",
    "Fetched",
    "JobFile",
    "JobRecord",
    "JobSpec",
    "Jobs",
    "Order",
    "Resources",
    "Run",
    "Seen",
    "State",
    "Status",
    "azure_needs",
    "bootstrap_command",
    "compute_kinds",
    "compute_options",
    "hand_over",
    "listed",
    "make_compute",
    "missing",
    "parse_sweep",
    "read_spec",
    "spec_of_script",
]

_WHERE = {
    "client": ("Jobs",),
    "computes.azureml.needs": ("Chosen", "azure_needs"),
    "computes": (
        *("Compute", "ComputeOptions", "Order", "Resources", "Seen"),
        *("compute_kinds", "compute_options", "make_compute"),
    ),
    "fields": ("JobFile",),
    "records": ("JobRecord", "Run"),
    "transfer": ("Fetched",),
    "spec": ("JobSpec", "read_spec", "spec_of_script"),
    "sweep": ("parse_sweep",),
    "protocol.handover": ("bootstrap_command", "hand_over"),
    "protocol.resources": ("listed", "missing"),
    "protocol.ticket": ("FINAL_STATES", "State"),
    "watch": ("Status",),
}


def __getattr__(name: str) -> object:
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"edgeloop.jobs.{module}"), name)
    raise AttributeError(f"module 'edgeloop.jobs' has no attribute {name!r}")
