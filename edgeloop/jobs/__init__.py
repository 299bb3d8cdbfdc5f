"""Jobs: run a script elsewhere, with its data, and fetch its results.

The wrapper that runs inside jobs is part of this package, on machines that have only Python
3.8, so each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.jobs.client import Jobs
    from edgeloop.jobs.computes import (
        Compute,
        ComputeOptions,
        JobOrder,
        ObservedState,
        Resources,
        ServedPlace,
        compute_kinds,
        compute_options,
        make_compute,
    )
    from edgeloop.jobs.computes.azureml.requirements import SetupChoices, azure_requirements
    from edgeloop.jobs.computes.ray import RayCompute
    from edgeloop.jobs.fields import ENVIRONMENT, JobFile
    from edgeloop.jobs.ignore import may_hold_secrets
    from edgeloop.jobs.package import edgeloop_requirements, package_snapshot
    from edgeloop.jobs.protocol.bundle import bootstrap_command, packed
    from edgeloop.jobs.protocol.resources import listed, missing
    from edgeloop.jobs.protocol.ticket import (
        FINAL_STATES,
        EarlierOutputs,
        Environment,
        State,
        order_variables,
    )
    from edgeloop.jobs.records import RUNS_FOLDER, JobRecord, Listing, Run, RunRecords, select
    from edgeloop.jobs.secrets.patterns import find_secrets, is_placeholder, is_secret_variable
    from edgeloop.jobs.shared import (
        StoredJob,
        ended_jobs,
        has_record,
        shared_runs,
        stored_code,
        stored_jobs,
        used_code,
    )
    from edgeloop.jobs.spec import JobSpec, read_spec, spec_of_script
    from edgeloop.jobs.sweep import parse_sweep
    from edgeloop.jobs.transfer import Fetched, discard_outputs, outputs_of
    from edgeloop.jobs.watch import Status

__all__ = [
    "ENVIRONMENT",
    "FINAL_STATES",
    "RUNS_FOLDER",
    "Compute",
    "ComputeOptions",
    "EarlierOutputs",
    "Environment",
    "Fetched",
    "JobFile",
    "JobOrder",
    "JobRecord",
    "JobSpec",
    "Jobs",
    "Listing",
    "ObservedState",
    "RayCompute",
    "Resources",
    "Run",
    "RunRecords",
    "ServedPlace",
    "SetupChoices",
    "State",
    "Status",
    "StoredJob",
    "azure_requirements",
    "bootstrap_command",
    "compute_kinds",
    "compute_options",
    "discard_outputs",
    "edgeloop_requirements",
    "ended_jobs",
    "find_secrets",
    "has_record",
    "is_placeholder",
    "is_secret_variable",
    "listed",
    "make_compute",
    "may_hold_secrets",
    "missing",
    "order_variables",
    "outputs_of",
    "package_snapshot",
    "packed",
    "parse_sweep",
    "read_spec",
    "select",
    "shared_runs",
    "spec_of_script",
    "stored_code",
    "stored_jobs",
    "used_code",
]

_WHERE = {
    "client": ("Jobs",),
    "computes.azureml.requirements": ("SetupChoices", "azure_requirements"),
    "computes": (
        *("Compute", "ComputeOptions", "JobOrder", "Resources", "ObservedState"),
        "ServedPlace",
        *("compute_kinds", "compute_options", "make_compute"),
    ),
    "computes.ray": ("RayCompute",),
    "records": ("RUNS_FOLDER", "JobRecord", "Listing", "Run", "RunRecords", "select"),
    "shared": (
        *("StoredJob", "ended_jobs", "has_record", "shared_runs", "stored_code", "stored_jobs"),
        "used_code",
    ),
    "fields": ("ENVIRONMENT", "JobFile"),
    "ignore": ("may_hold_secrets",),
    "secrets.patterns": ("find_secrets", "is_placeholder", "is_secret_variable"),
    "package": ("edgeloop_requirements", "package_snapshot"),
    "transfer": ("Fetched", "discard_outputs", "outputs_of"),
    "spec": ("JobSpec", "read_spec", "spec_of_script"),
    "sweep": ("parse_sweep",),
    "protocol.bundle": ("bootstrap_command", "packed"),
    "protocol.resources": ("listed", "missing"),
    "protocol.ticket": (
        *("FINAL_STATES", "EarlierOutputs", "Environment", "State", "order_variables"),
    ),
    "watch": ("Status",),
}


def __getattr__(name: str) -> object:
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"edgeloop.jobs.{module}"), name)
    raise AttributeError(f"module 'edgeloop.jobs' has no attribute {name!r}")
