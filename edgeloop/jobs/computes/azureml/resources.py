"""What a workspace should have, and how each resource is found and created.

The settings of the computes determine it (`requirements.azure_requirements`); `setup` compares it
with what exists and creates what is missing, and `doctor` reports what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.azureml.connection import Connection, is_missing
from edgeloop.jobs.computes.azureml.services import IDENTITY_VERSION, PATIENCE_S
from edgeloop.jobs.computes.azureml.workspace import WorkspaceAddress

CREATION_S = 600.0
_IDLE_S = 900.0
_CONDA_FILE = "conda.yaml"


@dataclass(frozen=True)
class ClusterDescription:
    """How to create a cluster. An empty name means serverless nodes."""

    name: str
    size: str = ""
    least_nodes: int = 0
    most_nodes: int = 1
    spot: bool = False
    idle_s: float = _IDLE_S
    managed_identity: bool = False
    client_id: str = ""  # of a user-assigned identity; otherwise the cluster's own is used

    def __str__(self) -> str:
        nodes = f"{self.least_nodes} to {self.most_nodes} nodes"
        kind = ", spot" if self.spot else ""
        return f"{self.size}, {nodes}{kind}, released after {self.idle_s:g} s idle"


@dataclass(frozen=True)
class DesiredCluster:
    """`explicit` are the fields that are set: only those are compared with what exists, since a
    default is not a requirement. One that `is_optional` is a proposal: the project names a cluster
    to train on, and this one would only run whole searches."""

    cluster: ClusterDescription
    explicit: frozenset[str] = frozenset()
    computes: tuple[str, ...] = ()
    is_optional: bool = False


@dataclass(frozen=True)
class DesiredDatastore:
    """A name in the workspace for a container. Without a key, access is by the user's identity."""

    name: str
    account: str
    container: str
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class DesiredEnvironment:
    """An image, or a Dockerfile, and what conda adds; none if it is registered elsewhere."""

    name: str
    version: str = ""
    label: str = ""
    image: str = ""
    conda: str = ""  # JSON
    dockerfile: str = ""  # its text

    def __str__(self) -> str:
        version = f":{self.version}" if self.version else f"@{self.label}"
        return f"{self.name}{version}"


class Files(Protocol):
    """The part of a store's files that is needed to test them."""

    def put(self, key: str, source: Path | bytes) -> None: ...
    def read(self, key: str) -> bytes: ...
    def delete(self, keys: Iterable[str]) -> None: ...


@dataclass(frozen=True)
class StoreTarget:
    """The store, as seen from the cloud. Without an account it is not on Azure."""

    description: str
    files: Files = field(repr=False)
    account: str = ""
    container: str = ""
    by_identity: bool = False
    is_reachable: bool = True  # from a node: not a local folder
    is_made: bool = False  # its container was created just now


@dataclass(frozen=True)
class WorkspaceRequirements:
    """All resources. `elsewhere` are computes of other workspaces, which are left alone."""

    address: WorkspaceAddress
    store: StoreTarget
    clusters: tuple[DesiredCluster, ...] = ()
    datastores: tuple[DesiredDatastore, ...] = ()
    environments: tuple[DesiredEnvironment, ...] = ()
    elsewhere: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()  # missing lines of edgeloop.yaml
    patience_s: float = PATIENCE_S


def spelled(value: Any) -> str:
    """As Azure spells it, whether the SDK returns a string or an enumeration member."""
    return str(getattr(value, "value", value) or "")


def state_of(thing: Any) -> str:
    return spelled(getattr(thing, "provisioning_state", ""))


def list_sizes(connection: Connection) -> dict[str, Any]:
    """The sizes of nodes in the workspace's region, by name in upper case."""
    return {str(size.name).upper(): size for size in connection.ml.compute.list_sizes()}


def figure(thing: Any, *names: str) -> Any:
    """The SDK has figures under its own names, or (1.35) under those of the service."""
    values = (vars(thing).get(name) for name in names)
    return next((value for value in values if value is not None), None)


def none_if_missing(ask: Callable[[], Any]) -> Any | None:
    """None if it does not exist; other errors are raised."""
    try:
        return ask()
    except Exception as error:
        if is_missing(error):
            return None
        raise


def find_cluster(connection: Connection, name: str) -> Any | None:
    return none_if_missing(lambda: connection.ml.compute.get(name))


def find_datastore(connection: Connection, name: str) -> Any | None:
    return none_if_missing(lambda: connection.ml.datastores.get(name))


def find_environment(connection: Connection, desired: DesiredEnvironment) -> Any | None:
    which = (
        {"version": desired.version} if desired.version else {"label": desired.label or "latest"}
    )
    return none_if_missing(lambda: connection.ml.environments.get(desired.name, **which))


def make_cluster(
    connection: Connection, wanted: ClusterDescription, began: Callable[[], None] = lambda: None
) -> bool:
    """Create it and wait; False if that takes longer than CREATION_S. `began` is called as soon as
    Azure has accepted the request: from then on the cluster may exist."""
    from azure.ai.ml.entities import AmlCompute

    entity = AmlCompute(
        name=wanted.name,
        size=wanted.size,
        min_instances=wanted.least_nodes,
        max_instances=wanted.most_nodes,
        idle_time_before_scale_down=int(wanted.idle_s),
        tier="low_priority" if wanted.spot else "dedicated",
        identity=_cluster_identity(connection, wanted),
    )
    poller = connection.ml.compute.begin_create_or_update(entity)
    began()
    poller.result(CREATION_S)
    return bool(poller.done())


def _cluster_identity(connection: Connection, wanted: ClusterDescription) -> Any | None:
    from azure.ai.ml.entities import IdentityConfiguration, ManagedIdentityConfiguration

    if not wanted.managed_identity:
        return None
    if not wanted.client_id:
        return IdentityConfiguration(type="system_assigned")
    own = ManagedIdentityConfiguration(resource_id=find_identity(connection, wanted.client_id))
    return IdentityConfiguration(type="user_assigned", user_assigned_identities=[own])


def find_identity(connection: Connection, client_id: str) -> str:
    """The resource id of a user-assigned identity, which a cluster is given it by."""
    subscription = f"/subscriptions/{connection.address.subscription}"
    path = f"{subscription}/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
    for row in connection.manager.rows(path, IDENTITY_VERSION):
        if str((row.get("properties") or {}).get("clientId", "")).lower() == client_id.lower():
            return str(row["id"])
    reason = (
        f"the subscription has no user-assigned identity with the client id {client_id}: correct "
        "it, or write 'identity: true' for the cluster's own"
    )
    raise BadSetting(where="identity", reason=reason)


def has_identity(existing: Any, client_id: str) -> bool:
    """Whether an existing cluster has an identity; with a client id, whether it is that one."""
    identity = getattr(existing, "identity", None)
    if identity is None or not client_id:
        return identity is not None
    several = getattr(identity, "user_assigned_identities", None) or ()
    return any(str(getattr(one, "client_id", "")).lower() == client_id.lower() for one in several)


def change_cluster(connection: Connection, wanted: ClusterDescription) -> bool:
    """Update its nodes and idle time; size and tier cannot change."""
    existing = connection.ml.compute.get(wanted.name)
    existing.min_instances = wanted.least_nodes
    existing.max_instances = wanted.most_nodes
    existing.idle_time_before_scale_down = int(wanted.idle_s)
    poller = connection.ml.compute.begin_update(existing)
    poller.result(CREATION_S)
    return bool(poller.done())


def make_datastore(connection: Connection, desired: DesiredDatastore, endpoint: str) -> None:
    """`endpoint` is the cloud's suffix, for example `core.windows.net`."""
    from azure.ai.ml.entities import AccountKeyConfiguration, AzureBlobDatastore

    entity = AzureBlobDatastore(
        name=desired.name,
        account_name=desired.account,
        container_name=desired.container,
        endpoint=endpoint or None,
        protocol="https",
        description="created by edgeloop: data and results",
        credentials=AccountKeyConfiguration(account_key=desired.key) if desired.key else None,
    )
    connection.ml.datastores.create_or_update(entity)


def make_environment(connection: Connection, desired: DesiredEnvironment) -> None:
    from azure.ai.ml.entities import BuildContext, Environment

    about: dict[str, Any] = {
        "name": desired.name,
        "version": desired.version,
        "description": "created by edgeloop; the version is the hash of image and packages",
    }
    if not desired.dockerfile:
        conda: Any = json.loads(desired.conda) if desired.conda else None
        entity = Environment(**about, image=desired.image, conda_file=conda)
        connection.ml.environments.create_or_update(entity)
        return
    with TemporaryDirectory() as place:
        folder = Path(place) / desired.name
        folder.mkdir()
        (folder / "Dockerfile").write_text(_dockerfile(desired), "utf-8")
        if desired.conda:
            (folder / _CONDA_FILE).write_text(desired.conda, "utf-8")
        entity = Environment(**about, build=BuildContext(path=folder))
        connection.ml.environments.create_or_update(entity)


def _dockerfile(desired: DesiredEnvironment) -> str:
    """The service adds packages to an image, not to a Dockerfile: so that does it itself."""
    if not desired.conda:
        return desired.dockerfile
    place = f"/azureml-envs/{desired.name}"
    return (
        f"{desired.dockerfile.rstrip()}\n"
        f"COPY {_CONDA_FILE} /tmp/{_CONDA_FILE}\n"
        f"RUN conda env create -p {place} -f /tmp/{_CONDA_FILE}\n"
        f"ENV PATH={place}/bin:$PATH CONDA_PREFIX={place}\n"
    )


def storage_suffix(connection: Connection) -> str:
    """That of the workspace's own datastore, so no list of clouds is needed."""
    default = none_if_missing(connection.ml.datastores.get_default)
    return str(getattr(default, "endpoint", "") or "")
