"""Azure ML as a whole: which workspace is meant, who logs in, and what its errors mean.

The compute `azureml`, `azure setup` and `azure doctor` share this room. Nothing of Azure's packages
is imported before somebody connects.
"""

from __future__ import annotations

from edgeloop.azure.connection import Connection, connect
from edgeloop.azure.doctor.checks import examine
from edgeloop.azure.doctor.findings import Finding
from edgeloop.azure.errors import explain, explained, is_missing
from edgeloop.azure.history import AzureRun, History
from edgeloop.azure.provisioning.plan import Step, as_row
from edgeloop.azure.provisioning.resources import (
    MAKING_S,
    ClusterDescription,
    ClusterWish,
    DatastoreWish,
    EnvironmentWish,
    Needs,
    StorePlace,
    find_cluster,
    find_environment,
    make_cluster,
    make_environment,
)
from edgeloop.azure.provisioning.setup import Done, carry_out, plan_setup
from edgeloop.azure.retry import PATIENCE_S, until
from edgeloop.azure.workspace import AzureKeys, Cloud, Login, Place, WorkspaceKeys, place_of
from edgeloop.project_files import ProjectFiles, read_project_files

__all__ = [
    "MAKING_S",
    "PATIENCE_S",
    "AzureKeys",
    "AzureRun",
    "Cloud",
    "ClusterDescription",
    "ClusterWish",
    "Connection",
    "DatastoreWish",
    "Done",
    "EnvironmentWish",
    "Finding",
    "History",
    "Login",
    "Needs",
    "Place",
    "ProjectFiles",
    "Step",
    "StorePlace",
    "WorkspaceKeys",
    "as_row",
    "carry_out",
    "connect",
    "examine",
    "explain",
    "explained",
    "find_cluster",
    "find_environment",
    "is_missing",
    "make_cluster",
    "make_environment",
    "place_of",
    "plan_setup",
    "read_project_files",
    "until",
]
