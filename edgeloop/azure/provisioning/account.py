"""`azure create`: what comes before a workspace's own resources, from the resource group on.

Resource group, storage account with its container, key vault, logs, the workspace itself, and the
login's roles on the account. Each is looked for first, created if it is missing, and waited for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeloop.azure.connection import Connection, require_packages
from edgeloop.azure.errors import code_of, explain, explained, is_azure_error
from edgeloop.azure.provisioning.resources import CREATION_S
from edgeloop.azure.provisioning.setup import DesiredResource, Step, StepResult, failure
from edgeloop.azure.services import (
    PROVIDER_VERSION,
    ROLES_VERSION,
    SUBSCRIPTION_VERSION,
    WORKSPACE_VERSION,
)
from edgeloop.azure.workspace import WorkspaceAddress
from edgeloop.errors import BadSetting, ComputeRefused, EdgeloopError

GROUP_VERSION = "2021-04-01"
STORAGE_VERSION = "2023-05-01"
_VAULT_VERSION = "2023-07-01"
_LOGS_VERSION = "2022-10-01"
_INSIGHTS_VERSION = "2020-02-02"
_PROVIDERS = (
    *("Microsoft.Storage", "Microsoft.KeyVault", "Microsoft.OperationalInsights"),
    *("Microsoft.Insights", "Microsoft.MachineLearningServices"),
)
_ROLES = {
    "Storage Blob Data Contributor": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "Storage Table Data Contributor": "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3",
}
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True)
class AccountChoices:
    """How to create it: a region, names, and whether the account can be opened with its keys."""

    container: str
    location: str = ""
    storage: str = ""
    shared_key: bool = False


@dataclass(frozen=True)
class StorageEndpoints:
    """Where the files and tables of the new account are."""

    account: str
    blob: str
    table: str


def plan_account(connection: Connection, choices: AccountChoices) -> tuple[tuple[Step, ...], str]:
    """The steps to take, and the name of the storage account. Reads only."""
    require_packages()
    address = connection.address
    with explained("azureml", address):
        storage = choices.storage or default_storage(address)
        return tuple(_steps(connection, choices, storage)), storage


def default_storage(address: WorkspaceAddress) -> str:
    """The same for the same workspace, and unlikely to be anybody else's: the names of accounts are
    shared by all of Azure."""
    return f"edgeloop{hashlib.sha256(address.path.lower().encode()).hexdigest()[:12]}"


def apply_account(
    connection: Connection, plan: Sequence[Step], tell: Callable[[StepResult], None]
) -> None:
    """In order, since each needs those before it; the first that fails ends it. Raises
    SetupFailed."""
    done: list[StepResult] = []
    for step in plan:
        if not step.is_work:
            continue
        try:
            _create(connection, step)
            result = StepResult(step, "changed" if step.action == "change" else "created")
        except EdgeloopError as error:
            text = str(error.fields.get("reason") or error)
            result = StepResult(step, "failed", False, text)
        done.append(result)
        tell(result)
        if not result.ok:
            raise failure(done, len(plan), "azure create")


def workspace_storage(connection: Connection) -> str:
    """The storage account of an existing workspace."""
    with explained("azureml", connection.address):
        row = connection.manager.get(connection.address.path, WORKSPACE_VERSION)
    return str((row.get("properties") or {}).get("storageAccount") or "").rpartition("/")[2]


def storage_endpoints(connection: Connection, account: str) -> StorageEndpoints:
    path = _storage_path(connection.address, account)
    with explained("azureml", connection.address):
        row = connection.manager.get(path, STORAGE_VERSION)
    found = (row.get("properties") or {}).get("primaryEndpoints") or {}
    blob = str(found.get("blob") or "").rstrip("/")
    table = str(found.get("table") or blob.replace(".blob.", ".table.", 1)).rstrip("/")
    return StorageEndpoints(account, blob, table)


def connection_string(connection: Connection, account: str) -> str:
    """It holds the account's key: for the user who asks, and nobody else. Raises BadSetting if the
    account has no keys."""
    places = storage_endpoints(connection, account)
    path = f"{_storage_path(connection.address, account)}/listKeys"
    try:
        row = connection.manager.send("POST", path, STORAGE_VERSION)
    except Exception as error:
        if not is_azure_error(error):
            raise
        if code_of(error) == "KeyBasedAuthenticationNotPermitted":
            raise _without_keys(account) from None
        raise explain(error, "azureml", connection.address) from None
    keys = [str(item.get("value") or "") for item in row.get("keys") or ()]
    properties = connection.manager.get(path.removesuffix("/listKeys"), STORAGE_VERSION)
    is_refused = (properties.get("properties") or {}).get("allowSharedKeyAccess") is False
    if is_refused or not keys:
        raise _without_keys(account)
    fields = {
        "DefaultEndpointsProtocol": "https",
        "AccountName": account,
        "AccountKey": keys[0],
        "BlobEndpoint": places.blob,
        "TableEndpoint": places.table,
    }
    return ";".join(f"{name}={value}" for name, value in fields.items())


def _without_keys(account: str) -> BadSetting:
    reason = (
        f"the account {account} can only be opened by identity: 'edgeloop azure create "
        "--shared-key' enables its keys"
    )
    return BadSetting(where="connection string", reason=reason)


def _steps(connection: Connection, choices: AccountChoices, storage: str) -> Iterator[Step]:
    manager, address = connection.manager, connection.address
    subscription = f"/subscriptions/{address.subscription}"
    tenant = str(manager.get(subscription, SUBSCRIPTION_VERSION).get("tenantId") or "")
    for namespace in _PROVIDERS:
        path = f"{subscription}/providers/{namespace}"
        state = manager.get(path, PROVIDER_VERSION).get("registrationState")
        desired = DesiredResource(path, PROVIDER_VERSION, {}, "POST", "/register")
        if state != "Registered":
            yield Step("provider", namespace, "create", "register it", desired)
    group_path = f"{subscription}/resourceGroups/{address.resource_group}"
    group = _existing(connection, group_path, GROUP_VERSION)
    location = choices.location or str((group or {}).get("location") or "")
    if not location:
        reason = (
            f"the resource group {address.resource_group} does not exist: say where to create it, "
            "for example --location westeurope"
        )
        raise BadSetting(where="--location", reason=reason)
    for kind, name, desired in _resources(address, choices, storage, location, tenant):
        existing = _existing(connection, desired.path, desired.version)
        yield _step(kind, name, desired, existing, choices.shared_key)
    if not choices.shared_key:
        yield from _role_steps(connection, storage)


def _step(
    kind: str, name: str, desired: DesiredResource, existing: Any | None, shared_key: bool
) -> Step:
    if existing is None:
        where = str(desired.body.get("location") or "")
        keys = "keys enabled" if shared_key else "by identity only"
        text = f"{where}, {keys}" if kind == "storage" else where
        return Step(kind, name, "create", text, desired)
    has_keys = (existing.get("properties") or {}).get("allowSharedKeyAccess")
    if kind == "storage" and shared_key and has_keys is False:
        change = DesiredResource(
            desired.path, desired.version, {"properties": {"allowSharedKeyAccess": True}}, "PATCH"
        )
        return Step(kind, name, "change", "enable its keys", change)
    return Step(kind, name, "keep", str(existing.get("location") or ""), desired)


def _resources(
    address: WorkspaceAddress, choices: AccountChoices, storage: str, location: str, tenant: str
) -> Iterator[tuple[str, str, DesiredResource]]:
    """In the order in which they need each other."""
    group = f"/subscriptions/{address.subscription}/resourceGroups/{address.resource_group}"
    here = {"location": location}
    yield "group", address.resource_group, DesiredResource(group, GROUP_VERSION, here)
    account = _storage_path(address, storage)
    properties = {
        "accessTier": "Hot",
        "allowSharedKeyAccess": choices.shared_key,
        "allowBlobPublicAccess": False,
        "defaultToOAuthAuthentication": not choices.shared_key,
        "minimumTlsVersion": "TLS1_2",
        "supportsHttpsTrafficOnly": True,
    }
    kind = {"kind": "StorageV2", "sku": {"name": "Standard_LRS"}}
    body = {**here, **kind, "properties": properties}
    yield "storage", storage, DesiredResource(account, STORAGE_VERSION, body)
    container = f"{account}/blobServices/default/containers/{choices.container}"
    private = {"properties": {"publicAccess": "None"}}
    yield "container", choices.container, DesiredResource(container, STORAGE_VERSION, private)
    digest = hashlib.sha256(f"{group}/{address.workspace}".lower().encode()).hexdigest()[:12]
    vault = f"{group}/providers/Microsoft.KeyVault/vaults/edgeloop-{digest}"
    sku = {"family": "A", "name": "standard"}
    secured = {"tenantId": tenant, "sku": sku, "enableRbacAuthorization": True}
    body = {**here, "properties": {**secured, "enableSoftDelete": True}}
    yield "vault", f"edgeloop-{digest}", DesiredResource(vault, _VAULT_VERSION, body)
    name = f"{address.workspace}-logs"
    logs = f"{group}/providers/Microsoft.OperationalInsights/workspaces/{name}"
    body = {**here, "properties": {"sku": {"name": "PerGB2018"}, "retentionInDays": 30}}
    yield "logs", name, DesiredResource(logs, _LOGS_VERSION, body)
    name = f"{address.workspace}-insights"
    insights = f"{group}/providers/Microsoft.Insights/components/{name}"
    kept_in = {"Application_Type": "web", "WorkspaceResourceId": logs}
    body = {**here, "kind": "web", "properties": kept_in}
    yield "insights", name, DesiredResource(insights, _INSIGHTS_VERSION, body)
    uses = {"storageAccount": account, "keyVault": vault, "applicationInsights": insights}
    properties = {
        **uses,
        "friendlyName": address.workspace,
        "publicNetworkAccess": "Enabled",
        "systemDatastoresAuthMode": "accesskey" if choices.shared_key else "identity",
    }
    body = {**here, "identity": {"type": "SystemAssigned"}, "properties": properties}
    yield "workspace", address.workspace, DesiredResource(address.path, WORKSPACE_VERSION, body)


def _role_steps(connection: Connection, storage: str) -> Iterator[Step]:
    """Without keys, even the owner of an account needs a role to open its files and tables."""
    claims = _claims(connection.manager.token())
    principal = str(claims.get("oid") or "")
    if not principal:
        return
    kind = "ServicePrincipal" if claims.get("idtyp") == "app" else "User"
    scope = _storage_path(connection.address, storage)
    listing = f"{scope}/providers/Microsoft.Authorization/roleAssignments"
    has_account = _existing(connection, scope, STORAGE_VERSION) is not None
    rows = list(connection.manager.rows(listing, ROLES_VERSION)) if has_account else []
    given = {
        str((row.get("properties") or {}).get("roleDefinitionId", "")).rpartition("/")[2]
        for row in rows
        if (row.get("properties") or {}).get("principalId") == principal
    }
    for name, role in _ROLES.items():
        subscription = f"/subscriptions/{connection.address.subscription}"
        definition = f"{subscription}/providers/Microsoft.Authorization/roleDefinitions/{role}"
        whom = {"principalId": principal, "principalType": kind}
        body = {"properties": {"roleDefinitionId": definition, **whom}}
        number = uuid.uuid5(uuid.NAMESPACE_URL, f"{scope}/{role}/{principal}".lower())
        desired = DesiredResource(f"{listing}/{number}", ROLES_VERSION, body)
        action = "keep" if role in given else "create"
        yield Step("role", name, action, "for the login, on the account", desired)  # type: ignore[arg-type]


def _claims(token: str) -> Mapping[str, Any]:
    """What a token says about its owner; nothing if it cannot be read."""
    try:
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, Mapping) else {}


def _create(connection: Connection, step: Step) -> None:
    desired = step.desired
    assert isinstance(desired, DesiredResource)
    try:
        connection.manager.send(
            desired.method, desired.path + desired.action, desired.version, desired.body
        )
        _wait(connection, step, desired)
    except EdgeloopError:
        raise
    except Exception as error:
        if not is_azure_error(error):
            raise
        if code_of(error) != "RoleAssignmentExists":
            raise explain(error, step.name, connection.address) from None


def _wait(connection: Connection, step: Step, desired: DesiredResource) -> None:
    deadline, pause = time.monotonic() + CREATION_S, 0.1
    while True:
        row = _existing(connection, desired.path, desired.version)
        states = row or {"properties": {"provisioningState": "Creating"}}
        state = str((states.get("properties") or {}).get("provisioningState") or "Succeeded")
        if step.kind == "provider":
            state = "Succeeded" if states.get("registrationState") == "Registered" else "Creating"
        if state == "Succeeded":
            return
        if state in ("Failed", "Canceled"):
            raise ComputeRefused(compute=step.name, reason=f"Azure could not create it ({state})")
        if time.monotonic() > deadline:
            reason = "Azure is still working on it: check again in some minutes"
            raise ComputeRefused(compute=step.name, reason=reason)
        time.sleep(pause)
        pause = min(1.6 * pause, _LONGEST_PAUSE_S)


def _existing(connection: Connection, path: str, version: str) -> Mapping[str, Any] | None:
    """None if it, or the group that it would be in, does not exist."""
    from azure.core.exceptions import HttpResponseError

    try:
        return connection.manager.get(path, version)
    except HttpResponseError as error:
        if error.status_code == 404:
            return None
        raise


def _storage_path(address: WorkspaceAddress, account: str) -> str:
    group = f"/subscriptions/{address.subscription}/resourceGroups/{address.resource_group}"
    return f"{group}/providers/Microsoft.Storage/storageAccounts/{account}"
