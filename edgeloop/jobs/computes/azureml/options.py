"""The options of a compute of kind `azureml`, and what they come to together with the project's
`azure:`, the files of an older project and the environment. See docs/how-to/azureml.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool
from pydantic.json_schema import SkipJsonSchema

from edgeloop._util.schema import Count, Seconds, Text, Whole, key
from edgeloop._util.values import Reads, choice, matching, whole
from edgeloop._util.yaml import Origin
from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.azureml.resources import ClusterDescription
from edgeloop.jobs.computes.azureml.workspace import WorkspaceAddress, WorkspaceKeys, find_workspace
from edgeloop.jobs.computes.base import ComputeOptions, read_options

Delivery = Literal["auto", "file", "variable"]
MOST_STEPS = 100
DEFAULT_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
_CLUSTER_NAME = r"[A-Za-z][A-Za-z0-9-]{1,30}[A-Za-z0-9]"  # Azure's own rule
DEFAULT_NODE_CACHE = "/mnt/edgeloop"  # /mnt is the large temporary disk of Azure's machines
_NODE_CACHE = matching(r"none|(/[A-Za-z0-9._-]+)+", "a folder such as /mnt/edgeloop, or none")
_IDLE_S = 900.0
_START_S = 24 * 3600.0
_PATIENCE_S = 90.0


@dataclass(frozen=True)
class AzureMLOptions:
    address: WorkspaceAddress
    cluster: ClusterDescription
    environment: str = ""  # a registered name, with a version or a label
    image: str = ""
    conda: Path | None = None
    packages: tuple[str, ...] = ()
    conda_text: str = ""  # what the file of an older project says
    dockerfile: str = ""  # its text, instead of an image
    variables: tuple[tuple[str, str], ...] = ()
    datastore: str = "edgeloop"
    is_datastore_named: bool = False
    delivery: Delivery = "auto"
    identity: bool = False
    client_id: str = ""
    shm: str = ""
    node_cache: str = ""
    python: str = "python"
    experiment: str = ""
    pipeline: bool = False
    steps: int = MOST_STEPS
    start_limit_s: float = _START_S
    patience_s: float = _PATIENCE_S

    @property
    def is_serverless(self) -> bool:
        return not self.cluster.name


def _identity(value: object) -> bool | str:
    if isinstance(value, bool | str):
        return value
    raise ValueError("must be true, false or a client id")


class AzureMLKeys(ComputeOptions, WorkspaceKeys):
    """A cluster of an Azure ML workspace."""

    cluster: Text = key("", "Its name in the workspace; by default the compute's.")
    size: Text = key("", "Size of its nodes, to create it where it does not exist.")
    min_nodes: Whole = key(0, "Nodes that stay without work.")
    max_nodes: Count = key(1, "Nodes at most.")
    spot: StrictBool = key(False, "Low-priority nodes.")
    idle: Seconds = key(_IDLE_S, "After that an idle node is given back.", shown="15m")
    serverless: StrictBool = key(False, "Nodes of `size` without a cluster.")
    identity: Annotated[bool | str, Reads(_identity, {"type": ["boolean", "string"]})] = key(
        False, "`true`, or the client id of an identity: it is the cluster's and opens the store."
    )
    access: Annotated[Delivery, choice("auto", "file", "variable")] = key(
        "auto", "How a job's order is delivered."
    )
    datastore: Text = key("", "The store's container in the workspace; by default `edgeloop`.")
    environment: Text = key("", "A registered one: `name`, `name:3` or `name@latest`.")
    image: Text = key("", "A container image.")
    conda: Text = key("", "A conda file of the project.")
    shm: Text = key("", "Shared memory of the container: `16g`.")
    node_cache: Annotated[str, _NODE_CACHE] = key(
        DEFAULT_NODE_CACHE,
        "A folder of each node's disk for datasets, shared by its jobs; `none` for none.",
    )
    python: Text = key("", "The interpreter in the image.", shown="python")
    experiment: Text = key("", "Groups runs; by default the job's experiment.")
    pipeline: StrictBool = key(False, "Whether batches are always pipelines.")
    steps: Annotated[int, whole(1, MOST_STEPS)] = key(MOST_STEPS, "Steps of one pipeline at most.")
    start_limit: Seconds = key(_START_S, "A job that waits longer is ended.", shown="24h")
    patience: Seconds = key(_PATIENCE_S, "How long Azure may be away.", shown="90s")
    project: SkipJsonSchema[str] = "."  # these two come from the settings
    azure: SkipJsonSchema[dict[str, Any]] = Field(default_factory=dict)


def read_azureml(name: str, config: Mapping[str, object]) -> AzureMLOptions:
    return resolved(name, read_options(AzureMLKeys, name, config))


def resolved(name: str, keys: AzureMLKeys) -> AzureMLOptions:
    """With the workspace and what an older project's files say. Makes no request."""
    project = Path(keys.project)
    address = find_workspace(keys, keys.azure, project, f"computes.{name}")
    files = address.files
    is_own = bool(keys.environment or keys.image or keys.conda)
    datastore = keys.datastore or files.datastore
    named = keys.cluster or files.compute_target or (name if keys.size else "")
    found = AzureMLOptions(
        address=address,
        cluster=ClusterDescription(
            name="" if keys.serverless else named,
            size=keys.size,
            least_nodes=keys.min_nodes,
            most_nodes=keys.max_nodes,
            spot=keys.spot,
            idle_s=keys.idle,
            managed_identity=bool(keys.identity),
            client_id=keys.identity if isinstance(keys.identity, str) else "",
        ),
        environment=keys.environment or ("" if is_own else files.environment),
        image=keys.image or ("" if is_own else files.image),
        conda=project / keys.conda if keys.conda else None,
        packages=() if is_own else files.packages,
        conda_text="" if is_own else files.conda,
        dockerfile="" if is_own else files.dockerfile,
        variables=() if is_own else files.variables,
        datastore=datastore or "edgeloop",
        is_datastore_named=bool(datastore),
        delivery=keys.access,
        identity=bool(keys.identity),
        client_id=keys.identity if isinstance(keys.identity, str) else "",
        shm=keys.shm or ("" if is_own else files.shm),
        node_cache="" if keys.node_cache == "none" else keys.node_cache,
        python=keys.python or ("" if is_own else files.python) or "python",
        experiment=keys.experiment,
        pipeline=keys.pipeline,
        steps=keys.steps,
        start_limit_s=keys.start_limit,
        patience_s=keys.patience,
    )
    return _checked(found, Origin(f"computes.{name}", BadSetting))


def _checked(found: AzureMLOptions, origin: Origin) -> AzureMLOptions:
    cluster = found.cluster
    if found.is_serverless and not cluster.size:
        raise origin.wrong(("cluster",), "is missing: name one, or the 'size' to make it of")
    if cluster.name and not re.fullmatch(_CLUSTER_NAME, cluster.name):
        reason = (
            "must have 3 to 32 letters, digits and '-', begin with a letter and end with a letter "
            f"or digit, not {cluster.name!r}"
        )
        raise origin.wrong(("cluster",), reason)
    if cluster.most_nodes < cluster.least_nodes:
        reason = f"must not be below min_nodes, not {cluster.most_nodes}"
        raise origin.wrong(("max_nodes",), reason)
    if found.conda is not None and not found.conda.is_file():
        raise origin.wrong(("conda",), f"names {found.conda.name}, which is not there")
    if found.environment and found.conda:
        raise origin.wrong(("environment",), "and conda are both there: choose one")
    return found
