"""Azure ML: the workspace, the login, and what Azure's errors mean.

The compute `azureml`, `azure setup` and `azure doctor` share this package. Azure's own packages are
imported only when something connects.
"""

from __future__ import annotations

from edgeloop.azure.connection import Connection, connect
from edgeloop.azure.doctor.checks import examine
from edgeloop.azure.errors import explained, is_missing
from edgeloop.azure.listing import KINDS, list_resources
from edgeloop.azure.provisioning.account import (
    AccountChoices,
    StorageEndpoints,
    apply_account,
    connection_string,
    default_storage,
    plan_account,
    storage_endpoints,
    workspace_storage,
)
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
from edgeloop.azure.provisioning.setup import (
    Step,
    StepResult,
    apply_plan,
    as_row,
    plan_setup,
    unchecked_plan,
)
from edgeloop.azure.services import AzureRun
from edgeloop.azure.workspace import (
    AzureKeys,
    WorkspaceAddress,
    WorkspaceKeys,
    find_workspace,
)
from edgeloop.project_files import read_project_files, write_workspace

__all__ = [
    "CREATION_S",
    "KINDS",
    "AccountChoices",
    "AzureKeys",
    "AzureRun",
    "ClusterDescription",
    "Connection",
    "DesiredCluster",
    "DesiredDatastore",
    "DesiredEnvironment",
    "Step",
    "StepResult",
    "StorageEndpoints",
    "StoreTarget",
    "WorkspaceAddress",
    "WorkspaceKeys",
    "WorkspaceRequirements",
    "apply_account",
    "apply_plan",
    "as_row",
    "connect",
    "connection_string",
    "default_storage",
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
    "plan_account",
    "plan_setup",
    "read_project_files",
    "storage_endpoints",
    "unchecked_plan",
    "workspace_storage",
    "write_workspace",
]
