"""The settings of a compute of kind `azureml`, checked.

```yaml
computes:
  gpu:
    kind: azureml
    cluster: gpu-cluster        # as in the workspace; without it, the compute's own name
    size: STANDARD_NC6S_V3      # the cluster is made of these where it is not there yet
    min_nodes: 0                # that many stay when nothing is to do
    max_nodes: 4
    spot: false
    idle: 15m                   # until a node without work is given back
    identity: true              # the nodes open the store by the cluster's managed identity
```

Which workspace: `subscription`, `resource_group`, `workspace`, `login`, `cloud`, or where
`edgeloop.azure` finds them. The others: docs/how-to/azureml.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from edgeloop._util.units import seconds_of
from edgeloop.azure import ClusterDescription, Place, place_of
from edgeloop.jobs.computes.options import Options

Hand = Literal["auto", "file", "variable"]
MOST_STEPS = 100
DEFAULT_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
_IDLE_S = 900.0
_START_S = 24 * 3600.0
_PATIENCE_S = 90.0
_PLACE = ("subscription", "resource_group", "workspace")


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


def read_options(name: str, options: Options) -> AzureMLOptions:
    """Everything that can be checked without a network."""
    project = Path(options.text("project", "."))
    own = {key: options.text(key, "") for key in _PLACE} | {"login": options.text("login", "")}
    own_cloud = options.mapping_or_text("cloud")
    shared = options.plain_mapping("azure")
    place = place_of({**own, "cloud": own_cloud}, shared, project, f"computes.{name}")
    files = place.files
    least, most = _nodes(options)
    size = options.text("size", "")
    identity, client_id = _identity(options)
    conda = options.text("conda", "")
    datastore = options.text("datastore", files.datastore)
    own_environment = options.text("environment", "")
    own_image = options.text("image", "")
    found = AzureMLOptions(
        place=place,
        cluster=ClusterDescription(
            name=_cluster(options, files.compute_target or (name if size else "")),
            size=size,
            least_nodes=least,
            most_nodes=most,
            spot=options.flag("spot", False),
            idle_s=_seconds(options, "idle", _IDLE_S),
            managed_identity=identity,
        ),
        environment=own_environment or ("" if own_image or conda else files.environment),
        image=own_image or ("" if own_environment or conda else files.image),
        conda=project / conda if conda else None,
        packages=files.packages if not (own_environment or own_image or conda) else (),
        datastore=datastore or "edgeloop",
        is_datastore_named=bool(datastore),
        hand=_hand(options),
        identity=identity,
        client_id=client_id,
        shm=options.text("shm", ""),
        python=options.text("python", "python"),
        experiment=options.text("experiment", ""),
        pipeline=options.flag("pipeline", False),
        steps=int(options.number("steps") or MOST_STEPS),
        start_limit_s=_seconds(options, "start_limit", _START_S),
        patience_s=_seconds(options, "patience", _PATIENCE_S),
    )
    options.done()
    return _checked(found, options)


def _checked(found: AzureMLOptions, options: Options) -> AzureMLOptions:
    if found.is_serverless and not found.cluster.size:
        raise options.bad("cluster", "is missing: name one, or the 'size' to make it of")
    if not 1 <= found.steps <= MOST_STEPS:
        raise options.bad("steps", f"must be 1 to {MOST_STEPS}")
    if found.conda is not None and not found.conda.is_file():
        raise options.bad("conda", f"names {found.conda.name}, which is not there")
    if sum(map(bool, (found.environment, found.conda))) > 1:
        raise options.bad("environment", "and conda are both there: choose one")
    return found


def _nodes(options: Options) -> tuple[int, int]:
    least, most = options.whole("min_nodes", 0), options.whole("max_nodes", 1)
    if most < max(1, least):
        raise options.bad("max_nodes", f"must be 1 or more and not below min_nodes, not {most}")
    return least, most


def _cluster(options: Options, usual: str) -> str:
    """Nothing where nodes are serverless."""
    named = options.text("cluster", usual)
    return "" if options.flag("serverless", False) else named


def _identity(options: Options) -> tuple[bool, str]:
    """`true`, or the client id of one of several identities."""
    value = options.flag_or_text("identity")
    return bool(value), value if isinstance(value, str) else ""


def _hand(options: Options) -> Hand:
    value = options.text("access", "auto")
    if value not in ("auto", "file", "variable"):
        raise options.bad("access", f"must be auto, file or variable, not {value!r}")
    return cast("Hand", value)


def _seconds(options: Options, key: str, usual: float) -> float:
    text = options.text(key, "")
    seconds = seconds_of(text) if text else usual
    if seconds is None:
        raise options.bad(key, f"must be a time as 90s, 30m or 2h, not {text!r}")
    return seconds
