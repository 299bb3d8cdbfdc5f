"""The options of a compute of kind `azureml`, and what they come to together with the project's
`azure:`, the files of an older project and the environment. See docs/how-to/azureml.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool
from pydantic.json_schema import SkipJsonSchema

from edgeloop._util.schema import Origin
from edgeloop._util.values import TEXT, TIME, Reads, choice, whole
from edgeloop.azure import ClusterDescription, Place, WorkspaceKeys, place_of
from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.options import ComputeOptions, read_options

Hand = Literal["auto", "file", "variable"]
MOST_STEPS = 100
DEFAULT_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
_IDLE_S = 900.0
_START_S = 24 * 3600.0
_PATIENCE_S = 90.0


@dataclass(frozen=True)
class AzureMLOptions:
    place: Place
    cluster: ClusterDescription
    environment: str = ""  # a registered name, with a version or a label
    image: str = ""
    conda: Path | None = None
    packages: tuple[str, ...] = ()
    datastore: str = "edgeloop"
    is_datastore_named: bool = False
    hand: Hand = "auto"
    identity: bool = False
    client_id: str = ""
    shm: str = ""
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

    cluster: Annotated[str, TEXT] = Field(
        "", description="Its name in the workspace; by default the compute's own name."
    )
    size: Annotated[str, TEXT] = Field(
        "", description="Size of its nodes, to create it where it does not exist."
    )
    min_nodes: Annotated[int, whole()] = Field(0, description="Nodes that stay without work.")
    max_nodes: Annotated[int, whole(1)] = Field(1, description="Nodes at most.")
    spot: StrictBool = Field(False, description="Low-priority nodes.")
    idle: Annotated[float, TIME] = Field(
        _IDLE_S,
        description="Time until a node without work is given back.",
        json_schema_extra={"default": "15m"},
    )
    serverless: StrictBool = Field(False, description="Nodes of `size` without a cluster.")
    identity: Annotated[bool | str, Reads(_identity, {"type": ["boolean", "string"]})] = Field(
        False, description="`true` or a client id: a managed identity opens the store."
    )
    access: Annotated[Hand, choice("auto", "file", "variable")] = Field(
        "auto", description="How a job's order is delivered."
    )
    datastore: Annotated[str, TEXT] = Field(
        "", description="The workspace's name for the store's container; by default `edgeloop`."
    )
    environment: Annotated[str, TEXT] = Field(
        "", description="A registered environment: `name`, `name:3` or `name@latest`."
    )
    image: Annotated[str, TEXT] = Field("", description="A container image.")
    conda: Annotated[str, TEXT] = Field("", description="A conda file of the project.")
    shm: Annotated[str, TEXT] = Field("", description="Shared memory of the container: `16g`.")
    python: Annotated[str, TEXT] = Field("python", description="The interpreter in the image.")
    experiment: Annotated[str, TEXT] = Field(
        "", description="Groups runs; by default the job's experiment or the search's name."
    )
    pipeline: StrictBool = Field(False, description="Whether batches are always pipelines.")
    steps: Annotated[int, whole(1, MOST_STEPS)] = Field(
        MOST_STEPS, description="Steps of one pipeline at most."
    )
    start_limit: Annotated[float, TIME] = Field(
        _START_S,
        description="A job that has not started by then is ended.",
        json_schema_extra={"default": "24h"},
    )
    patience: Annotated[float, TIME] = Field(
        _PATIENCE_S,
        description="How long Azure may be unavailable before that is an error.",
        json_schema_extra={"default": "90s"},
    )
    project: SkipJsonSchema[str] = "."  # these two come from the settings
    azure: SkipJsonSchema[dict[str, Any]] = Field(default_factory=dict)


def read_azureml(name: str, config: Mapping[str, object]) -> AzureMLOptions:
    return resolved(name, read_options(AzureMLKeys, name, config))


def resolved(name: str, keys: AzureMLKeys) -> AzureMLOptions:
    """With the workspace and what an older project's files say. Contacts nobody."""
    project = Path(keys.project)
    place = place_of(keys, keys.azure, project, f"computes.{name}")
    files = place.files
    is_own = bool(keys.environment or keys.image or keys.conda)
    datastore = keys.datastore or files.datastore
    named = keys.cluster or files.compute_target or (name if keys.size else "")
    found = AzureMLOptions(
        place=place,
        cluster=ClusterDescription(
            name="" if keys.serverless else named,
            size=keys.size,
            least_nodes=keys.min_nodes,
            most_nodes=keys.max_nodes,
            spot=keys.spot,
            idle_s=keys.idle,
            managed_identity=bool(keys.identity),
        ),
        environment=keys.environment or ("" if is_own else files.environment),
        image=keys.image or ("" if is_own else files.image),
        conda=project / keys.conda if keys.conda else None,
        packages=() if is_own else files.packages,
        datastore=datastore or "edgeloop",
        is_datastore_named=bool(datastore),
        hand=keys.access,
        identity=bool(keys.identity),
        client_id=keys.identity if isinstance(keys.identity, str) else "",
        shm=keys.shm,
        python=keys.python or "python",
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
    if cluster.most_nodes < cluster.least_nodes:
        reason = f"must not be below min_nodes, not {cluster.most_nodes}"
        raise origin.wrong(("max_nodes",), reason)
    if found.conda is not None and not found.conda.is_file():
        raise origin.wrong(("conda",), f"names {found.conda.name}, which is not there")
    if found.environment and found.conda:
        raise origin.wrong(("environment",), "and conda are both there: choose one")
    return found
