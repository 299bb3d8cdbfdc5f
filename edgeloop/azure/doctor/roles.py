"""Permissions: the login on the workspace and the store, the clusters' identities on the store.

Azure lists which actions the login may do at a scope; for others, it lists who has which role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from edgeloop._util.health import HealthCheck
from edgeloop.azure.connection import Connection
from edgeloop.azure.provisioning.resources import (
    WorkspaceRequirements,
    find_cluster,
    none_if_missing,
)
from edgeloop.azure.services import ROLES_VERSION

_ML = "Microsoft.MachineLearningServices/workspaces"
_FOR_JOBS = (
    *(f"{_ML}/jobs/write", f"{_ML}/jobs/cancel/action", f"{_ML}/environments/versions/write"),
    f"{_ML}/components/versions/write",
)
_FOR_SETUP = (f"{_ML}/computes/write", f"{_ML}/datastores/write")
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_FOR_FILES = (f"{_BLOBS}/read", f"{_BLOBS}/write", f"{_BLOBS}/delete")
_CONTRIBUTOR = "Storage Blob Data Contributor"
# Contributor and Owner of blobs, as Azure numbers its built-in roles.
_WRITERS = ("ba92f5b4-2d11-453d-a403-e96b0029c9fe", "b7e6dc6d-f1e8-4753-8033-0f276bb0955b")


needed = partial(HealthCheck, needed=True)


def workspace_role(
    connection: Connection, required: WorkspaceRequirements
) -> Iterator[HealthCheck]:
    rights = list(_permissions(connection, required.address.path))
    lacking = list(_lacking(rights, _FOR_JOBS, "actions", "notActions"))
    if lacking:
        text = f"the login lacks {', '.join(lacking)} on the workspace: ask its owner for "
        yield needed("role", False, f"{text}'AzureML Data Scientist'")
        return
    yield needed("role", True, "jobs may be submitted and canceled")
    lacking = list(_lacking(rights, _FOR_SETUP, "actions", "notActions"))
    if lacking:
        text = f"for 'azure setup' the login lacks {', '.join(lacking)}: ask the owner for "
        text += "'AzureML Compute Operator' or Contributor; existing resources work without it"
        yield HealthCheck("setup role", False, text)


def store_role(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    """Only if an identity opens the store: a key or a signature needs no role."""
    if not required.store.account or not required.store.by_identity:
        return
    scope = _account_scope(connection, required)
    if not scope:
        yield _unknown_account(required, "storage role")
        return
    lacking = list(
        _lacking(_permissions(connection, scope), _FOR_FILES, "dataActions", "notDataActions")
    )
    if lacking:
        verbs = ", ".join(action.rpartition("/")[2] for action in lacking)
        text = f"the login may not {verbs} files of {required.store.account}; "
        yield needed("storage role", False, text + _assign("YOU", scope))
    else:
        yield needed("storage role", True, f"files of {required.store.account} by identity")


def cluster_roles(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    """A node whose identity may not open the store fails only after it has started."""
    wanted = [desired.cluster for desired in required.clusters if desired.cluster.managed_identity]
    if not wanted or not required.store.account:
        return
    scope = _account_scope(connection, required)
    if not scope:
        yield _unknown_account(required, "cluster's role")
        return
    for cluster in wanted:
        existing = find_cluster(connection, cluster.name)
        principals = _principals(getattr(existing, "identity", None))
        if existing is None or not principals:
            text = f"{cluster.name} has no identity to open the store with"
            fix = "'edgeloop azure setup' creates it" if existing is None else "assign one to it"
            yield needed("cluster's role", False, f"{text}: {fix}")
        elif any(_may_write(connection, scope, principal) for principal in principals):
            yield needed("cluster's role", True, f"{cluster.name} may use the store")
        else:
            text = f"{cluster.name} may not use the store; "
            yield needed("cluster's role", False, text + _assign(principals[0], scope))


def _permissions(connection: Connection, scope: str) -> Iterator[Mapping[str, Any]]:
    path = f"{scope}/providers/Microsoft.Authorization/permissions"
    return connection.manager.rows(path, ROLES_VERSION)


def _lacking(
    rights: Iterable[Mapping[str, Any]], wanted: Iterable[str], yes: str, no: str
) -> Iterator[str]:
    """Each role allows its actions except its own exclusions; the roles of a login add up."""
    roles = list(rights)
    for action in wanted:
        allowed = (
            _fits(action, role.get(yes)) and not _fits(action, role.get(no)) for role in roles
        )
        if not any(allowed):
            yield action


def _fits(action: str, patterns: Iterable[str] | None) -> bool:
    lowered = action.lower()
    return any(fnmatchcase(lowered, str(pattern).lower()) for pattern in patterns or ())


def _account_scope(connection: Connection, required: WorkspaceRequirements) -> str:
    """The account's id: the workspace's own account, or one in the workspace's group."""
    own = str(getattr(connection.workspace, "storage_account", "") or "")
    if own.rpartition("/")[2].lower() == required.store.account.lower():
        return own
    address = required.address
    path = (
        f"/subscriptions/{address.subscription}/resourceGroups/{address.resource_group}"
        f"/providers/Microsoft.Storage/storageAccounts/{required.store.account}"
    )
    return path if none_if_missing(lambda: connection.manager.get(path, "2023-05-01")) else ""


def _unknown_account(required: WorkspaceRequirements, what: str) -> HealthCheck:
    text = f"{required.store.account} is not in the workspace's resource group: check its roles "
    return HealthCheck(what, None, f"{text}in the portal")


def _principals(identity: Any) -> list[str]:
    if identity is None:
        return []
    several = getattr(identity, "user_assigned_identities", None) or ()
    ids = [getattr(identity, "principal_id", None)]
    ids += [getattr(each, "principal_id", None) for each in several]
    return [str(each) for each in ids if each]


def _may_write(connection: Connection, scope: str, principal: str) -> bool:
    path = f"{scope}/providers/Microsoft.Authorization/roleAssignments"
    choices = {"$filter": f"principalId eq '{principal}'"}
    for row in connection.manager.rows(path, ROLES_VERSION, **choices):
        assignment = row.get("properties") or {}
        role = str(assignment.get("roleDefinitionId") or "").rpartition("/")[2].lower()
        if role in _WRITERS and str(assignment.get("principalId")) == principal:
            return True
    return False


def _assign(principal: str, scope: str) -> str:
    return (
        f"az role assignment create --assignee {principal} --role '{_CONTRIBUTOR}' --scope {scope}"
    )
