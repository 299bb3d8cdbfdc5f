"""Azure ML: the workspace, the login, and what Azure's errors mean.

The compute `azureml`, `azure setup` and `azure doctor` share this package. Azure's own packages are
imported only when something connects.
"""

from __future__ import annotations

from edgeloop.azure.connection import Connection, connect
from edgeloop.azure.doctor.checks import examine
from edgeloop.azure.errors import explained, is_missing
from edgeloop.azure.listing import KINDS, list_resources
from edgeloop.azure.provisioning.resources import (
    CREATION_S,
    ClusterDescription,
    DesiredCluster,
    DesiredDatastore,
    DesiredEnvironment,
    StoreTarget,
    WorkspaceRequirements,
    figure,
    find_cluster,
    find_environment,
    list_sizes,
    make_cluster,
    make_environment,
)
from edgeloop.azure.provisioning.setup import Step, StepResult, apply_plan, as_row, plan_setup
from edgeloop.azure.services import AzureRun
from edgeloop.azure.workspace import (
    AzureKeys,
    WorkspaceAddress,
    WorkspaceKeys,
    find_workspace,
)
from edgeloop.project_files import read_project_files

__all__ = [
    "CREATION_S",
    "KINDS",
    "AzureKeys",
    "AzureRun",
    "ClusterDescription",
    "Connection",
    "DesiredCluster",
    "DesiredDatastore",
    "DesiredEnvironment",
    "Step",
    "StepResult",
    "StoreTarget",
    "WorkspaceAddress",
    "WorkspaceKeys",
    "WorkspaceRequirements",
    "apply_plan",
    "as_row",
    "connect",
    "examine",
    "explained",
    "figure",
    "find_cluster",
    "find_environment",
    "find_workspace",
    "is_missing",
    "list_resources",
    "list_sizes",
    "make_cluster",
    "make_environment",
    "plan_setup",
    "read_project_files",
]
