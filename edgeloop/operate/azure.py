"""`azure setup`: plans what a workspace lacks, and creates it step by step."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal
from uuid import uuid4

from edgeloop._util.health import HealthCheck
from edgeloop._util.redact import redact
from edgeloop._util.values import did_you_mean
from edgeloop.errors import (
    BadSetting,
    ComputeRefused,
    ComputeUnavailable,
    EdgeloopError,
    SetupFailed,
)
from edgeloop.jobs.computes.azureml.connection import (
    Connection,
    code_of,
    connect,
    explain,
    explained,
    is_azure_error,
    require_packages,
)
from edgeloop.jobs.computes.azureml.resources import (
    CREATION_S,
    ClusterDescription,
    DesiredCluster,
    DesiredDatastore,
    DesiredEnvironment,
    WorkspaceRequirements,
    change_cluster,
    figure,
    find_cluster,
    find_datastore,
    find_environment,
    has_identity,
    list_sizes,
    make_cluster,
    make_datastore,
    make_environment,
    none_if_missing,
    spelled,
    state_of,
    storage_suffix,
)
from edgeloop.jobs.computes.azureml.services import (
    PROVIDER_VERSION,
    ROLES_VERSION,
    SUBSCRIPTION_VERSION,
    WORKSPACE_VERSION,
)
from edgeloop.jobs.computes.azureml.workspace import WorkspaceAddress

Action = Literal["create", "keep", "change", "differs", "missing"]
_SECONDS_OFF = 1.0
TRIAL_FOLDER = "doctor"


@dataclass(frozen=True)
class DesiredResource:
    """Any other resource, as its REST interface takes it: see `account`."""

    path: str
    version: str
    body: Mapping[str, Any]
    method: str = "PUT"
    action: str = ""  # behind the path


@dataclass(frozen=True)
class Step:
    """`differs`: it exists, but not as described; `missing`: it cannot be created as described."""

    kind: str
    name: str
    action: Action
    text: str
    desired: DesiredCluster | DesiredDatastore | DesiredEnvironment | DesiredResource = field(
        repr=False
    )

    @property
    def is_work(self) -> bool:
        return self.action in ("create", "change")


def unchecked_plan(required: WorkspaceRequirements) -> tuple[Step, ...]:
    """All that would be created in a workspace that does not exist yet."""
    return (
        *(
            Step("cluster", each.cluster.name, "create", str(each.cluster), each)
            for each in required.clusters
        ),
        *(
            Step("datastore", each.name, "create", f"container {each.container}", each)
            for each in required.datastores
        ),
        *(
            Step("environment", str(each), "create", each.image, each)
            for each in required.environments
        ),
    )


def make_plan(
    connection: Connection, required: WorkspaceRequirements, change: bool = False
) -> tuple[Step, ...]:
    """Reads only. `change`: update what can be updated in place."""
    plan = _Planner(connection, change)
    return (
        *(plan.cluster(desired) for desired in required.clusters),
        *(plan.datastore(desired) for desired in required.datastores),
        *(plan.environment(desired) for desired in required.environments),
    )


class _Planner:
    def __init__(self, connection: Connection, change: bool) -> None:
        self._connection = connection
        self._change = change
        self._sizes: dict[str, Any] | None = None

    def cluster(self, desired: DesiredCluster) -> Step:
        description = desired.cluster
        existing = find_cluster(self._connection, description.name)
        if existing is None:
            reason = self._cannot_be_created(description)
            if reason:
                return Step("cluster", description.name, "missing", reason, desired)
            return Step("cluster", description.name, "create", str(description), desired)
        fixed = list(_fixed_differences(desired, existing))
        loose = list(_loose_differences(desired, existing))
        if not fixed and not loose:
            size, spot = getattr(existing, "size", ""), ", spot" if is_spot(existing) else ""
            least = getattr(existing, "min_instances", 0)
            nodes = f"{least} to {getattr(existing, 'max_instances', 0)} nodes"
            return Step("cluster", description.name, "keep", f"{size}, {nodes}{spot}", desired)
        differences = "; ".join((*fixed, *loose))
        if fixed:
            fix = "size, tier and identity are fixed; delete it, or choose another name"
            text = f"{differences}: {fix}"
            return Step("cluster", description.name, "differs", text, desired)
        if self._change:
            return Step("cluster", description.name, "change", differences, desired)
        text = f"{differences}: 'edgeloop azure setup --change' applies it"
        return Step("cluster", description.name, "differs", text, desired)

    def datastore(self, desired: DesiredDatastore) -> Step:
        existing = find_datastore(self._connection, desired.name)
        address = f"container {desired.container} of account {desired.account}"
        if existing is None:
            how = "with its key" if desired.key else "by identity"
            return Step("datastore", desired.name, "create", f"{address}, {how}", desired)
        target = (getattr(existing, "account_name", ""), getattr(existing, "container_name", ""))
        if target == (desired.account, desired.container):
            return Step("datastore", desired.name, "keep", address, desired)
        text = f"it points to container {target[1]} of account {target[0]}, not to {address}"
        text = f"{text}: name another one with 'datastore:' in the compute's settings"
        return Step("datastore", desired.name, "differs", text, desired)

    def environment(self, desired: DesiredEnvironment) -> Step:
        existing = find_environment(self._connection, desired)
        name = str(desired)
        if existing is not None:
            return Step("environment", name, "keep", "registered", desired)
        if not desired.image:
            text = "it is not registered: correct its name, or name a conda file instead"
            return Step("environment", name, "missing", text, desired)
        text = f"{desired.image}{' and packages' if desired.conda else ''}"
        return Step("environment", name, "create", text, desired)

    def _cannot_be_created(self, cluster: ClusterDescription) -> str:
        if not cluster.size:
            return "it does not exist, and no 'size' says how to create it"
        if self._sizes is None:
            self._sizes = list_sizes(self._connection)
        if not self._sizes or cluster.size.upper() in self._sizes:
            return ""
        hint = did_you_mean(cluster.size.upper(), self._sizes)
        return f"unknown size {cluster.size} in the workspace's region{': ' if hint else ''}{hint}"


def _fixed_differences(desired: DesiredCluster, existing: Any) -> Iterator[str]:
    cluster = desired.cluster
    size = str(getattr(existing, "size", "") or "")
    if "size" in desired.explicit and size and size.upper() != cluster.size.upper():
        yield f"its nodes are {size}, not {cluster.size}"
    spot = is_spot(existing)
    if "spot" in desired.explicit and spot != cluster.spot:
        yield "it is spot, not dedicated" if spot else "it is dedicated, not spot"
    needs_identity = "identity" in desired.explicit and cluster.managed_identity
    if needs_identity and not has_identity(existing, cluster.client_id):
        yield (
            f"it lacks the identity {cluster.client_id}"
            if cluster.client_id
            else ("it has no managed identity")
        )


def _loose_differences(desired: DesiredCluster, existing: Any) -> Iterator[str]:
    cluster = desired.cluster
    nodes = (getattr(existing, "min_instances", None), getattr(existing, "max_instances", None))
    asked = (cluster.least_nodes, cluster.most_nodes)
    if "nodes" in desired.explicit and nodes != asked:
        yield f"it has {nodes[0]} to {nodes[1]} nodes, not {asked[0]} to {asked[1]}"
    idle = getattr(existing, "idle_time_before_scale_down", None)
    if "idle" in desired.explicit and abs(float(idle or 0) - cluster.idle_s) > _SECONDS_OFF:
        yield f"its idle time is {idle:g} s, not {cluster.idle_s:g} s"


def is_spot(existing: Any) -> bool:
    return str(getattr(existing, "tier", "") or "").lower().replace("_", "") == "lowpriority"


def as_row(step: Step) -> Mapping[str, object]:
    """For programs; `desired` may hold a key, so it is left out."""
    return {"kind": step.kind, "name": step.name, "action": step.action, "text": step.text}


@dataclass(frozen=True)
class StepResult:
    """`ok` is false for what failed; what differs from its description is reported and left
    alone."""

    step: Step
    did: str
    ok: bool = True
    text: str = ""


def plan_setup(
    connection: Connection, required: WorkspaceRequirements, change: bool = False
) -> tuple[Step, ...]:
    """The steps to take; Azure's errors become ours."""
    require_packages()
    with explained("azureml", required.address):
        # In a workspace that does not exist, everything would be missing.
        connection.manager.get(required.address.path, WORKSPACE_VERSION)
        return make_plan(connection, required, change)


def apply_plan(
    connection: Connection,
    required: WorkspaceRequirements,
    plan: Sequence[Step],
    tell: Callable[[StepResult], None],
) -> list[StepResult]:
    """Every step is tried: a cluster without quota does not prevent the environment. Only a cloud
    that no longer responds ends it at once. Raises SetupFailed at the end if a step failed."""
    done: list[StepResult] = []
    for step in plan:
        try:
            result = _perform(connection, required, step)
        except ComputeUnavailable as error:
            tell(failed := StepResult(step, "failed", False, _reason(error)))
            raise failure([*done, failed], len(plan)) from None
        except EdgeloopError as error:
            result = StepResult(step, "failed", False, _reason(error))
        done.append(result)
        tell(result)
    if any(not each.ok for each in done):
        raise failure(done, len(plan))
    return done


def _perform(connection: Connection, required: WorkspaceRequirements, step: Step) -> StepResult:
    if step.action == "keep":
        return StepResult(step, "kept", text=step.text)
    if not step.is_work:
        return StepResult(step, step.action, step.action == "differs", step.text)
    begun: list[str] = []
    try:
        return _make(connection, required, step, lambda: begun.append(step.name))
    except EdgeloopError:
        raise
    except Exception as error:
        note = f"{step.kind} {step.name} was started and may exist" if begun else ""
        if not is_azure_error(error):
            raise
        raise explain(error, step.name, required.address, note) from None


def _make(
    connection: Connection, required: WorkspaceRequirements, step: Step, began: Callable[[], None]
) -> StepResult:
    desired = step.desired
    if isinstance(desired, DesiredCluster):
        if step.action == "change":
            return _waited(step, "changed", change_cluster(connection, desired.cluster))
        return _waited(step, "created", make_cluster(connection, desired.cluster, began))
    if isinstance(desired, DesiredDatastore):
        store = required.store
        is_own = (store.account, store.container) == (desired.account, desired.container)
        if is_own and not store.is_made:
            key = f"{TRIAL_FOLDER}/{uuid4().hex}"  # the first file creates the container
            store.files.put(key, b"created by 'edgeloop azure setup'")
            store.files.delete([key])
        make_datastore(connection, desired, storage_suffix(connection))
    elif isinstance(desired, DesiredEnvironment):
        make_environment(connection, desired)
    return StepResult(step, "created", text=step.text)


def _waited(step: Step, did: str, is_done: bool) -> StepResult:
    if is_done and isinstance(step.desired, DesiredCluster):
        return StepResult(step, did, text=str(step.desired.cluster))
    return StepResult(
        step, "failed", False, "Azure is still working on it: check again in some minutes"
    )


def failure(done: Sequence[StepResult], steps: int, command: str = "azure setup") -> SetupFailed:
    """What failed, what exists by now, and how to continue."""
    bad = [each for each in done if not each.ok]
    reason = "; ".join(f"{each.step.kind} {each.step.name}: {each.text}" for each in bad)
    made = [f"{d.step.kind} {d.step.name}" for d in done if d.did in ("created", "changed")]
    created = f"Created: {', '.join(made)}" if made else "Nothing was created"
    left = f"; {steps - len(done)} more steps were not tried" if len(done) < steps else ""
    advice = f"{created}{left}. Run 'edgeloop {command}' again to continue"
    return SetupFailed(reason=reason.rstrip("."), there=f"{advice}.")


def _reason(error: EdgeloopError) -> str:
    """Without 'The compute X refused', since the step is named."""
    return str(error.fields.get("reason") or error)


# `azure create`: what comes before a workspace's own resources, from the resource group on.
#
# Resource group, storage account with its container, key vault, logs, the workspace itself, and the
# login's roles on the account. Each is looked for first, created if it is missing, and waited for.


GROUP_VERSION = "2021-04-01"
STORAGE_VERSION = "2023-05-01"
_VAULT_VERSION = "2023-07-01"
_LOGS_VERSION = "2022-10-01"
_INSIGHTS_VERSION = "2020-02-02"
_PROVIDERS = (
    "Microsoft.Storage",
    "Microsoft.KeyVault",
    "Microsoft.OperationalInsights",
    "Microsoft.Insights",
    "Microsoft.MachineLearningServices",
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
    endpoints = (row.get("properties") or {}).get("primaryEndpoints") or {}
    blob = str(endpoints.get("blob") or "").rstrip("/")
    table = str(endpoints.get("table") or blob.replace(".blob.", ".table.", 1)).rstrip("/")
    return StorageEndpoints(account, blob, table)


def connection_string(connection: Connection, account: str) -> str:
    """It holds the account's key, so show it only to the user who asked. Raises BadSetting if the
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
    assigned = {
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
        action = "keep" if role in assigned else "create"
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


# `azure list`: what a workspace has, as rows of plain values.


Row = Mapping[str, object]


def list_resources(connection: Connection, kind: str) -> list[Row]:
    """`kind` is one of KINDS; Azure's errors become ours."""
    require_packages()
    with explained("azureml", connection.address):
        return list(_LISTERS[kind](connection))


def _computes(connection: Connection) -> Iterator[Row]:
    for each in connection.ml.compute.list():
        least, most = getattr(each, "min_instances", None), getattr(each, "max_instances", None)
        yield {
            "name": each.name,
            "kind": spelled(each.type),
            "size": str(getattr(each, "size", "") or ""),
            "nodes": f"{least or 0} to {most}" if most is not None else "",
            "tier": spelled(getattr(each, "tier", "")),
            "state": state_of(each),
        }


def _environments(connection: Connection) -> Iterator[Row]:
    for each in connection.ml.environments.list():
        yield {
            "name": each.name,
            "version": str(each.version or getattr(each, "latest_version", "") or ""),
            "description": str(each.description or ""),
        }


def _datastores(connection: Connection) -> Iterator[Row]:
    for each in connection.ml.datastores.list():
        credentials = getattr(getattr(each, "credentials", None), "type", "") or ""
        yield {
            "name": each.name,
            "kind": str(getattr(each.type, "value", each.type)),
            "account": str(getattr(each, "account_name", "") or ""),
            "container": str(
                getattr(each, "container_name", "")
                or getattr(each, "file_share_name", "")
                or getattr(each, "filesystem", "")
                or ""
            ),
            "access": _access(str(getattr(credentials, "value", credentials))),
        }


def _access(credentials: str) -> str:
    return "identity" if credentials.lower().replace("_", "") in ("", "none") else credentials


def _experiments(connection: Connection) -> Iterator[Row]:
    """The SDK lists jobs, not experiments."""
    by_name: dict[str, dict[str, Any]] = {}
    for job in connection.ml.jobs.list():
        created = getattr(job.creation_context, "created_at", None)
        at = created.isoformat() if created is not None else ""
        name = str(job.experiment_name or "")
        row = by_name.setdefault(
            name, {"name": name, "jobs": 0, "newest": "", "at": "", "state": ""}
        )
        row["jobs"] += 1
        if at >= row["at"]:
            newest = str(job.display_name or job.name)
            row |= {"newest": newest, "at": at, "state": spelled(job.status)}
    yield from sorted(by_name.values(), key=lambda row: str(row["at"]), reverse=True)


_LISTERS: dict[str, Callable[[Connection], Iterator[Row]]] = {
    "computes": _computes,
    "environments": _environments,
    "datastores": _datastores,
    "experiments": _experiments,
}
KINDS = tuple(_LISTERS)


# `azure doctor`: what works, what does not, and how to fix it; one line each, never an exception.
#
# A check that depends on a failed one is reported as not checked; only `needed` findings count.


# Permissions: the login on the workspace and the store, the clusters' identities on the store.
#
# Azure lists which actions the login may do at a scope; for others, it lists who has which role.


_ML = "Microsoft.MachineLearningServices/workspaces"
_FOR_JOBS = (
    f"{_ML}/jobs/write",
    f"{_ML}/jobs/cancel/action",
    f"{_ML}/environments/versions/write",
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
    with_identity = [
        desired.cluster for desired in required.clusters if desired.cluster.managed_identity
    ]
    if not with_identity or not required.store.account:
        return
    scope = _account_scope(connection, required)
    if not scope:
        yield _unknown_account(required, "cluster's role")
        return
    for cluster in with_identity:
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
    rights: Iterable[Mapping[str, Any]], actions: Iterable[str], yes: str, no: str
) -> Iterator[str]:
    """Each role allows its actions except its own exclusions; the roles of a login add up."""
    roles = list(rights)
    for action in actions:
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
    workspace_account = str(getattr(connection.workspace, "storage_account", "") or "")
    if workspace_account.rpartition("/")[2].lower() == required.store.account.lower():
        return workspace_account
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


_LONGEST_PATIENCE_S = 20.0  # a person waits for it
_CLOCK_LIMIT_S = 240.0  # Azure allows five minutes
_PROVIDER = "Microsoft.MachineLearningServices"
_SETUP = "'edgeloop azure setup' creates it"

Check = Callable[[Connection, WorkspaceRequirements], Iterator[HealthCheck]]


@dataclass(frozen=True)
class _Stage:
    """A check that depends on all earlier stages; if one with `stops` fails, later ones are
    skipped."""

    what: str
    check: Check
    stops: bool = False


def examine(needs_of: Callable[[], WorkspaceRequirements]) -> Iterator[HealthCheck]:
    """A finding as soon as it is known. `needs_of` reads the settings, which may be wrong too."""
    try:
        required = needs_of()
        require_packages()
    except Exception as error:  # noqa: BLE001 - it reports every error
        yield needed("settings", False, redact(str(error)).partition("\n")[0])
        return
    connection = connect(required.address, min(required.patience_s, _LONGEST_PATIENCE_S))
    yield needed("settings", True, str(required.address))
    failed = ""
    for stage in _STAGES:
        if failed:
            yield needed(stage.what, None, f"not checked, because {failed} failed")
            continue
        try:
            for finding in stage.check(connection, required):
                yield finding
                if stage.stops and finding.ok is False:
                    failed = finding.what
        except Exception as error:  # noqa: BLE001 - it reports every error
            yield needed(stage.what, False, _sentence(error, required))
            failed = stage.what if stage.stops else ""


def _sentence(error: Exception, required: WorkspaceRequirements) -> str:
    if is_azure_error(error):
        error = explain(error, "azureml", required.address)
    if isinstance(error, EdgeloopError):
        return redact(str(error.fields.get("reason") or error))
    first = redact(str(error)).partition("\n")[0]
    return f"unexpected {type(error).__name__}: {first}"


def _who(token: str) -> str:
    """Whom a token is for; it is read, not trusted."""
    try:
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    except (IndexError, ValueError):
        return "logged in"
    names = ("upn", "preferred_username", "unique_name", "app_displayname", "oid", "appid")
    who = next((claims[name] for name in names if claims.get(name)), "unknown")
    return f"as {who}, tenant {claims.get('tid', 'unknown')}"


def _subscription(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    name = required.address.subscription
    details = connection.manager.get(f"/subscriptions/{name}", SUBSCRIPTION_VERSION)
    state = str(details.get("state") or "Enabled")
    title = str(details.get("displayName") or name)
    if state in ("Enabled", "Warned", "PastDue"):
        yield needed("subscription", True, title)
    else:
        text = f"{title} is {state}: nothing can be created in it; ask its owner"
        yield needed("subscription", False, text)


def _clock(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    off = connection.manager.clock_off_s
    if off is None:
        yield HealthCheck("clock", None, "Azure did not report its time")
    elif abs(off) <= _CLOCK_LIMIT_S:
        yield needed("clock", True, f"{abs(off):.0f} s from Azure's")
    else:
        way = "ahead of" if off > 0 else "behind"
        text = f"{abs(off):.0f} s {way} Azure's: tokens and signatures will be refused"
        yield needed("clock", False, f"{text}; set this machine's clock (ntp)")


def _provider(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    path = f"/subscriptions/{required.address.subscription}/providers/{_PROVIDER}"
    state = str(connection.manager.get(path, PROVIDER_VERSION).get("registrationState") or "")
    if state == "Registered":
        yield needed("provider", True, _PROVIDER)
    else:
        text = f"{_PROVIDER} is {state or 'not registered'} in the subscription"
        yield needed("provider", False, f"{text}: az provider register --namespace {_PROVIDER}")


def _workspace(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    workspace = connection.workspace
    yield needed("workspace", True, f"{workspace.name} in {workspace.location}")


def _store(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    store = required.store
    if not store.is_reachable:
        text = f"{store.description} is on this machine, where no node can reach it: set "
        text += "EDGELOOP_STORE=azure:https://ACCOUNT.blob.core.windows.net"
        yield needed("store", False, text)
        return
    key, content = f"{TRIAL_FOLDER}/{uuid4().hex}", uuid4().bytes
    store.files.put(key, content)
    try:
        is_same = store.files.read(key) == content
    finally:
        store.files.delete([key])
    if is_same:
        yield needed("store", True, f"{store.description}: written, read and deleted")
    else:
        yield needed("store", False, f"{store.description} returned different content")


def _quotas(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    """A cluster above its quota is refused, or gets fewer nodes than it should."""
    wanted = [_as_it_is(connection, desired) for desired in required.clusters]
    sized = [cluster for cluster in wanted if cluster is not None and cluster.size]
    if not sized:
        return
    sizes = list_sizes(connection)
    families: dict[str, list[ClusterDescription]] = {}
    for cluster in sized:
        size = sizes.get(cluster.size.upper())
        if size is None:
            text = f"unknown size {cluster.size} ({cluster.name}) in the workspace's region: "
            yield needed("quota", False, f"{text}choose another with 'size:'")
        elif cluster.spot:
            text = f"{cluster.name}: spot nodes have a separate quota, which is not checked"
            yield HealthCheck("quota", None, text)
        else:
            families.setdefault(str(figure(size, "family")), []).append(cluster)
    usages = {_family(usage): usage for usage in connection.ml.compute.list_usage()}
    for family, members in families.items():
        cores = sum(
            float(figure(sizes[each.size.upper()], "v_cp_us", "vCPUs") or 0) * each.most_nodes
            for each in members
        )
        yield _quota(connection, family, members, cores, usages.get(family.lower()))


def _as_it_is(connection: Connection, desired: DesiredCluster) -> ClusterDescription | None:
    """An existing cluster has its own size, whatever a new one would get. None for a proposal that
    nothing needs yet."""
    cluster = desired.cluster
    existing = find_cluster(connection, cluster.name) if cluster.name else None
    if existing is None:
        return None if desired.is_optional else cluster
    nodes = getattr(existing, "max_instances", None) or cluster.most_nodes
    return replace(
        cluster,
        size=str(getattr(existing, "size", "") or cluster.size),
        spot=is_spot(existing),
        most_nodes=cluster.most_nodes if "nodes" in desired.explicit else int(nodes),
    )


def _quota(
    connection: Connection,
    family: str,
    members: Sequence[ClusterDescription],
    cores: float,
    usage: Any,
) -> HealthCheck:
    described = " and ".join(f"{each.name} ({each.most_nodes} × {each.size})" for each in members)
    if usage is None:
        return HealthCheck("quota", None, f"Azure reports none for {family}: {described}")
    limit = float(figure(usage, "limit") or 0)
    used = float(figure(usage, "current_value", "currentValue") or 0)
    if any(find_cluster(connection, each.name) is not None for each in members):
        used = 0.0  # the used cores may be its own nodes
    described = f"{described}: {cores:g} cores, {family} has {limit - used:g} free of {limit:g}"
    if used + cores <= limit:
        return needed("quota", True, described)
    text = f"{described}: ask for more in the portal under Quotas, or use fewer or smaller nodes"
    return needed("quota", False, text)


def _clusters(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    only = WorkspaceRequirements(required.address, required.store, clusters=required.clusters)
    for step, desired in zip(make_plan(connection, only), required.clusters, strict=True):
        if step.action == "create" and desired.is_optional:
            text = f"{step.name} does not exist, and only a search in the cloud needs one: {_SETUP}"
            yield HealthCheck("cluster", None, f"{text} ({step.text})")
            continue
        if step.action != "keep":
            yield _of_step(step)
            continue
        existing = find_cluster(connection, step.name)
        state = state_of(existing)
        if state == "Failed":
            why = getattr(existing, "provisioning_errors", "") or "Azure gives no reason"
            text = f"{step.name} failed ({why}): delete it in the studio; {_SETUP} again"
            yield needed("cluster", False, text)
        else:
            suffix = "" if state == "Succeeded" else f", {state.lower()}"
            yield needed("cluster", True, f"{step.name}: {step.text}{suffix}")


def _check_datastores(
    connection: Connection, required: WorkspaceRequirements
) -> Iterator[HealthCheck]:
    only = WorkspaceRequirements(required.address, required.store, datastores=required.datastores)
    yield from map(_of_step, make_plan(connection, only))


def _check_environments(
    connection: Connection, required: WorkspaceRequirements
) -> Iterator[HealthCheck]:
    """The image is built for the first job that uses it; that job's log has the result."""
    only = WorkspaceRequirements(
        required.address, required.store, environments=required.environments
    )
    for step, desired in zip(make_plan(connection, only), required.environments, strict=True):
        if step.action != "keep":
            yield _of_step(step)
            continue
        if state_of(find_environment(connection, desired)) == "Failed":
            text = f"{step.name}: its image could not be built; the studio shows the log"
            yield needed("environment", False, text)
        else:
            yield needed("environment", True, f"{step.name}: registered")


def _of_step(step: Step) -> HealthCheck:
    if step.action == "keep":
        return needed(step.kind, True, f"{step.name}: {step.text}")
    if step.action == "create":
        return needed(step.kind, False, f"{step.name} does not exist: {_SETUP} ({step.text})")
    is_needed = step.action == "missing"
    return HealthCheck(step.kind, False, f"{step.name}: {step.text}", needed=is_needed)


def _family(usage: Any) -> str:
    name = getattr(usage, "name", None)
    value = name.get("value") if isinstance(name, dict) else getattr(name, "value", name)
    return str(value or "").lower()


_STAGES = (
    _Stage(
        "login", lambda c, _: iter([needed("login", True, _who(c.manager.token()))]), stops=True
    ),
    _Stage("subscription", _subscription, stops=True),
    _Stage("clock", _clock),
    _Stage("provider", _provider),
    _Stage("workspace", _workspace, stops=True),
    _Stage("role", workspace_role),
    _Stage("storage role", store_role),
    _Stage("store", _store),
    _Stage("quota", _quotas),
    _Stage("cluster", _clusters),
    _Stage("cluster's role", cluster_roles),
    _Stage("datastore", _check_datastores),
    _Stage("environment", _check_environments),
)
