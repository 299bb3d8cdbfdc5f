"""Who may do what: the login on the workspace and the store, the clusters' identities on the store.

Azure tells which actions whoever asks may do at a scope; of others, it lists who has which role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from edgeloop.azure.connection import Connection
from edgeloop.azure.doctor.findings import Finding
from edgeloop.azure.manager import ROLES_VERSION
from edgeloop.azure.provisioning.resources import Needs, find_cluster, found

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


def workspace_role(connection: Connection, needs: Needs) -> Iterator[Finding]:
    rights = list(_permissions(connection, needs.place.path))
    lacking = list(_lacking(rights, _FOR_JOBS, "actions", "notActions"))
    if lacking:
        text = f"the login lacks {', '.join(lacking)} on the workspace: ask its owner for "
        yield Finding("role", False, f"{text}'AzureML Data Scientist'")
        return
    yield Finding("role", True, "jobs may be submitted and canceled")
    lacking = list(_lacking(rights, _FOR_SETUP, "actions", "notActions"))
    if lacking:
        text = f"for 'azure setup' the login lacks {', '.join(lacking)}: ask the owner for "
        text += "'AzureML Compute Operator' or Contributor; jobs on what is there go without"
        yield Finding("setup role", False, text, needed=False)


def store_role(connection: Connection, needs: Needs) -> Iterator[Finding]:
    """Only where an identity opens the store: a key or a signature asks for no role."""
    if not needs.store.account or not needs.store.by_identity:
        return
    scope = _account_scope(connection, needs)
    if not scope:
        yield _unknown_account(needs, "storage role")
        return
    lacking = list(
        _lacking(_permissions(connection, scope), _FOR_FILES, "dataActions", "notDataActions")
    )
    if lacking:
        text = f"the login may not {_verbs(lacking)} files of {needs.store.account}; "
        yield Finding("storage role", False, text + _assign("YOU", scope))
    else:
        yield Finding("storage role", True, f"files of {needs.store.account} by identity")


def cluster_roles(connection: Connection, needs: Needs) -> Iterator[Finding]:
    """A node whose identity may not open the store fails after it was paid for."""
    wanted = [wish.cluster for wish in needs.clusters if wish.cluster.managed_identity]
    if not wanted or not needs.store.account:
        return
    scope = _account_scope(connection, needs)
    if not scope:
        yield _unknown_account(needs, "cluster's role")
        return
    for cluster in wanted:
        there = find_cluster(connection, cluster.name)
        principals = _principals(getattr(there, "identity", None))
        if there is None or not principals:
            text = f"{cluster.name} has no identity to open the store with"
            fix = "'edgeloop azure setup' creates it" if there is None else "assign one to it"
            yield Finding("cluster's role", False, f"{text}: {fix}")
        elif any(_may_write(connection, scope, principal) for principal in principals):
            yield Finding("cluster's role", True, f"{cluster.name} may use the store")
        else:
            text = f"{cluster.name} may not use the store; "
            yield Finding("cluster's role", False, text + _assign(principals[0], scope))


def _permissions(connection: Connection, scope: str) -> Iterator[Mapping[str, Any]]:
    path = f"{scope}/providers/Microsoft.Authorization/permissions"
    return connection.manager.rows(path, ROLES_VERSION)


def _lacking(
    rights: Iterable[Mapping[str, Any]], wanted: Iterable[str], yes: str, no: str
) -> Iterator[str]:
    """Each role allows its actions less its own exceptions; the roles of a login add up."""
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


def _account_scope(connection: Connection, needs: Needs) -> str:
    """The account's id: the workspace's own account, or one in the workspace's group."""
    own = str(getattr(connection.workspace, "storage_account", "") or "")
    if own.rpartition("/")[2].lower() == needs.store.account.lower():
        return own
    place = needs.place
    path = (
        f"/subscriptions/{place.subscription}/resourceGroups/{place.resource_group}"
        f"/providers/Microsoft.Storage/storageAccounts/{needs.store.account}"
    )
    return path if found(lambda: connection.manager.get(path, "2023-05-01")) else ""


def _unknown_account(needs: Needs, what: str) -> Finding:
    text = f"{needs.store.account} is not in the workspace's resource group: check its roles "
    return Finding(what, None, f"{text}in the portal", needed=False)


def _principals(identity: Any) -> list[str]:
    if identity is None:
        return []
    several = getattr(identity, "user_assigned_identities", None) or ()
    ids = [getattr(identity, "principal_id", None)]
    ids += [getattr(each, "principal_id", None) for each in several]
    return [str(each) for each in ids if each]


def _may_write(connection: Connection, scope: str, principal: str) -> bool:
    path = f"{scope}/providers/Microsoft.Authorization/roleAssignments"
    chosen = {"$filter": f"principalId eq '{principal}'"}
    for row in connection.manager.rows(path, ROLES_VERSION, **chosen):
        told = row.get("properties") or {}
        role = str(told.get("roleDefinitionId") or "").rpartition("/")[2].lower()
        if role in _WRITERS and str(told.get("principalId")) == principal:
            return True
    return False


def _assign(principal: str, scope: str) -> str:
    return (
        f"az role assignment create --assignee {principal} --role '{_CONTRIBUTOR}' --scope {scope}"
    )


def _verbs(actions: Iterable[str]) -> str:
    return ", ".join(action.rpartition("/")[2] for action in actions)
