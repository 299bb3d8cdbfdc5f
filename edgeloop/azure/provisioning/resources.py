"""What a workspace should have, as values; and how each of them is found and made.

The settings of the computes say it (`edgeloop.jobs.azure_needs`); `plan` compares it with what is
there, `setup` makes what is missing, and `doctor` says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edgeloop.azure.connection import Connection
from edgeloop.azure.errors import is_missing
from edgeloop.azure.retry import PATIENCE_S
from edgeloop.azure.workspace import Place

MAKING_S = 600.0
_TOLD_IDLE_S = 900.0


@dataclass(frozen=True)
class ClusterDescription:
    """What a cluster is made like, where it has to be made. An empty name: serverless nodes."""

    name: str
    size: str = ""
    least_nodes: int = 0
    most_nodes: int = 1
    spot: bool = False
    idle_s: float = _TOLD_IDLE_S
    managed_identity: bool = False

    def __str__(self) -> str:
        nodes = f"{self.least_nodes} to {self.most_nodes} nodes"
        kind = ", spot" if self.spot else ""
        return f"{self.size}, {nodes}{kind}, released after {self.idle_s:g} s idle"


@dataclass(frozen=True)
class ClusterWish:
    """`said` are the fields that somebody wrote down: only those are compared with what is there,
    since a usual value is no wish."""

    cluster: ClusterDescription
    said: frozenset[str] = frozenset()
    computes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DatastoreWish:
    """A name in the workspace for a container. Without a key: by the identity of who asks."""

    name: str
    account: str
    container: str
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class EnvironmentWish:
    """An image and what conda adds; neither: it is registered by somebody else."""

    name: str
    version: str = ""
    label: str = ""
    image: str = ""
    conda: str = ""  # JSON

    def __str__(self) -> str:
        version = f":{self.version}" if self.version else f"@{self.label}"
        return f"{self.name}{version}"


class Files(Protocol):
    """As much of a store's files as is needed to try them."""

    def put(self, key: str, source: Path | bytes) -> None: ...
    def read(self, key: str) -> bytes: ...
    def delete(self, keys: Iterable[str]) -> None: ...


@dataclass(frozen=True)
class StorePlace:
    """Where our store is, as far as the cloud has to do with it. No account: not on Azure."""

    description: str
    files: Files = field(repr=False)
    account: str = ""
    container: str = ""
    by_identity: bool = False
    is_reachable: bool = True  # from a node: not a folder of this machine


@dataclass(frozen=True)
class Needs:
    """All of it. `elsewhere` are computes of other workspaces, which are left alone."""

    place: Place
    store: StorePlace
    clusters: tuple[ClusterWish, ...] = ()
    datastores: tuple[DatastoreWish, ...] = ()
    environments: tuple[EnvironmentWish, ...] = ()
    elsewhere: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()  # lines for edgeloop.yaml that are not there yet
    patience_s: float = PATIENCE_S


def state_of(thing: Any) -> str:
    """As Azure spells it, whether the SDK gives a text or a member of an enumeration."""
    state = getattr(thing, "provisioning_state", "") or ""
    return str(getattr(state, "value", state))


def found(ask: Callable[[], Any]) -> Any | None:
    """None where there is no such thing; every other error stays one."""
    try:
        return ask()
    except Exception as error:
        if is_missing(error):
            return None
        raise


def find_cluster(connection: Connection, name: str) -> Any | None:
    return found(lambda: connection.ml.compute.get(name))


def find_datastore(connection: Connection, name: str) -> Any | None:
    return found(lambda: connection.ml.datastores.get(name))


def find_environment(connection: Connection, wish: EnvironmentWish) -> Any | None:
    which = {"version": wish.version} if wish.version else {"label": wish.label or "latest"}
    return found(lambda: connection.ml.environments.get(wish.name, **which))


def make_cluster(
    connection: Connection, wanted: ClusterDescription, began: Callable[[], None] = lambda: None
) -> bool:
    """Made and waited for; False when it is still being made after MAKING_S. `began` is called as
    soon as Azure has taken the order: from then on there is something to name."""
    from azure.ai.ml.entities import AmlCompute, IdentityConfiguration

    identity = IdentityConfiguration(type="system_assigned") if wanted.managed_identity else None
    entity = AmlCompute(
        name=wanted.name,
        size=wanted.size,
        min_instances=wanted.least_nodes,
        max_instances=wanted.most_nodes,
        idle_time_before_scale_down=int(wanted.idle_s),
        tier="low_priority" if wanted.spot else "dedicated",
        identity=identity,
    )
    poller = connection.ml.compute.begin_create_or_update(entity)
    began()
    poller.result(MAKING_S)
    return bool(poller.done())


def change_cluster(connection: Connection, wanted: ClusterDescription) -> bool:
    """Its nodes and idle time, on what is there; size and tier stay as they were made."""
    there = connection.ml.compute.get(wanted.name)
    there.min_instances = wanted.least_nodes
    there.max_instances = wanted.most_nodes
    there.idle_time_before_scale_down = int(wanted.idle_s)
    poller = connection.ml.compute.begin_update(there)
    poller.result(MAKING_S)
    return bool(poller.done())


def make_datastore(connection: Connection, wish: DatastoreWish, endpoint: str) -> None:
    """`endpoint` is the cloud's own suffix, as `core.windows.net`."""
    from azure.ai.ml.entities import AccountKeyConfiguration, AzureBlobDatastore

    entity = AzureBlobDatastore(
        name=wish.name,
        account_name=wish.account,
        container_name=wish.container,
        endpoint=endpoint or None,
        protocol="https",
        description="made by edgeloop: data and results",
        credentials=AccountKeyConfiguration(account_key=wish.key) if wish.key else None,
    )
    connection.ml.datastores.create_or_update(entity)


def make_environment(connection: Connection, wish: EnvironmentWish) -> None:
    from azure.ai.ml.entities import Environment

    conda: Any = json.loads(wish.conda) if wish.conda else None
    entity = Environment(
        name=wish.name,
        version=wish.version,
        image=wish.image,
        conda_file=conda,
        description="made by edgeloop; the version is the hash of image and packages",
    )
    connection.ml.environments.create_or_update(entity)


def storage_suffix(connection: Connection) -> str:
    """As the workspace's own datastore has it: no list of clouds is needed."""
    default = found(connection.ml.datastores.get_default)
    return str(getattr(default, "endpoint", "") or "")
