"""`azure doctor`: what works, what does not, and how to fix it; one line each, never an exception.

A check that depends on a failed one is reported as not checked; only `needed` findings count.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from uuid import uuid4

from edgeloop._util.health import HealthCheck
from edgeloop._util.redact import redact
from edgeloop.errors import EdgeloopError
from edgeloop.jobs.computes.azureml.connection import (
    Connection,
    connect,
    explain,
    is_azure_error,
    require_packages,
)
from edgeloop.jobs.computes.azureml.resources import (
    ClusterDescription,
    WorkspaceRequirements,
    figure,
    find_cluster,
    find_environment,
    list_sizes,
    none_if_missing,
    state_of,
)
from edgeloop.jobs.computes.azureml.services import (
    PROVIDER_VERSION,
    ROLES_VERSION,
    SUBSCRIPTION_VERSION,
)
from edgeloop.operate.azure import TRIAL_FOLDER, Step, make_plan

# Permissions: the login on the workspace and the store, the clusters' identities on the store.
#
# Azure lists which actions the login may do at a scope; for others, it lists who has which role.


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
    found = connection.workspace
    yield needed("workspace", True, f"{found.name} in {found.location}")


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
    wanted = [desired.cluster for desired in required.clusters if desired.cluster.size]
    if not wanted:
        return
    sizes = list_sizes(connection)
    families: dict[str, list[ClusterDescription]] = {}
    for cluster in wanted:
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
    for step in make_plan(connection, only):
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


def _datastores(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
    only = WorkspaceRequirements(required.address, required.store, datastores=required.datastores)
    yield from map(_of_step, make_plan(connection, only))


def _environments(connection: Connection, required: WorkspaceRequirements) -> Iterator[HealthCheck]:
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
    _Stage("datastore", _datastores),
    _Stage("environment", _environments),
)
