"""What the computes of kind `azureml` need in their workspace, for `azure setup` and `doctor`.

A project that describes its clusters gets those. One that describes none, only a workspace, gets a
small cluster for the search and one with GPUs for training, by usual names and sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgeloop.azure import (
    ClusterWish,
    DatastoreWish,
    EnvironmentWish,
    Needs,
    Place,
    StorePlace,
    WorkspaceKeys,
    place_of,
    read_project_files,
)
from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.azureml.environment import usual_recipe, wish_of
from edgeloop.jobs.computes.azureml.options import AzureMLOptions, read_azureml
from edgeloop.settings import AZUREML, Settings
from edgeloop.store import AzureLocation, PostgresLocation, SqliteLocation, open_blobs

CPU_CLUSTER, CPU_SIZE = "cpu-cluster", "STANDARD_DS3_V2"
GPU_CLUSTER, GPU_SIZE = "gpu-cluster", "STANDARD_NC4AS_T4_V3"
USUAL_NODES = 4
_DESCRIBED = {
    "size": "size",
    "min_nodes": "nodes",
    "max_nodes": "nodes",
    "spot": "spot",
    "idle": "idle",
    "identity": "identity",
}


@dataclass(frozen=True)
class Chosen:
    """What a person asks for on the command line; it wins over the settings."""

    cpu_size: str = ""
    gpu_size: str = ""
    nodes: int = 0
    spot: bool = False
    conda: Path | None = None


def azure_needs(settings: Settings, chosen: Chosen | None = None) -> Needs:
    """Contacts nobody. Raises BadSetting where no workspace is named."""
    chosen = chosen or Chosen()
    described = {
        name: settings.compute_settings(name)
        for name, config in settings.computes.items()
        if config.get("kind") == AZUREML
    }
    configs = described or _usual(settings)
    read = {name: _options(name, config, chosen) for name, config in configs.items()}
    place = _place(settings, [options.place for options in read.values()])
    here = {name: options for name, options in read.items() if _same(options.place, place)}
    return Needs(
        place=place,
        store=_store(settings),
        clusters=tuple(_clusters(here, described, chosen)),
        datastores=tuple(_datastores(settings, place, here.values())),
        environments=tuple(_environments(here.values())),
        elsewhere=tuple(name for name in read if name not in here),
        hints=() if described else _hints(here),
        patience_s=min(options.patience_s for options in here.values()),
    )


def _place(settings: Settings, places: Sequence[Place]) -> Place:
    """The project's own workspace, where a compute is in it; else the first compute's."""
    with suppress(BadSetting):
        own = place_of(WorkspaceKeys.model_validate({}), settings.azure, settings.project)
        return next((place for place in places if _same(place, own)), places[0])
    return places[0]


def _usual(settings: Settings) -> dict[str, dict[str, object]]:
    """As somebody would write them down; an older project names the cluster that it trains on."""
    base = {**settings.compute_settings(AZUREML), "max_nodes": USUAL_NODES}
    target = read_project_files(settings.project).compute_target or GPU_CLUSTER
    return {
        "cpu": {**base, "cluster": CPU_CLUSTER, "size": CPU_SIZE},
        "gpu": {**base, "cluster": target, "size": GPU_SIZE},
    }


def _options(name: str, config: Mapping[str, object], chosen: Chosen) -> AzureMLOptions:
    options = read_azureml(name, config)
    if chosen.conda is None:
        return options
    if not chosen.conda.is_file():
        raise BadSetting(where="--conda", reason=f"there is no file {chosen.conda}")
    return replace(options, conda=chosen.conda, environment="", packages=())


def _clusters(
    read: Mapping[str, AzureMLOptions],
    described: Mapping[str, Mapping[str, object]],
    chosen: Chosen,
) -> Iterable[ClusterWish]:
    found: dict[str, ClusterWish] = {}
    for name, options in read.items():
        if options.is_serverless:
            continue
        said = frozenset(_DESCRIBED[key] for key in described.get(name, {}) if key in _DESCRIBED)
        wish = _with_choice(ClusterWish(options.cluster, said, (name,)), chosen)
        key = wish.cluster.name.lower()
        if key in found:  # several computes may share a cluster: the first describes it
            wish = replace(found[key], computes=(*found[key].computes, name))
        found[key] = wish
    return found.values()


def _with_choice(wish: ClusterWish, chosen: Chosen) -> ClusterWish:
    cluster, said = wish.cluster, set(wish.said)
    is_gpu = is_gpu_size(cluster.size) or not cluster.size
    size = chosen.gpu_size if is_gpu else chosen.cpu_size
    if size:
        cluster, said = replace(cluster, size=size), said | {"size"}
    if chosen.nodes:
        least = min(cluster.least_nodes, chosen.nodes)
        cluster = replace(cluster, least_nodes=least, most_nodes=chosen.nodes)
        said |= {"nodes"}
    if chosen.spot and is_gpu:
        cluster, said = replace(cluster, spot=True), said | {"spot"}
    return replace(wish, cluster=cluster, said=frozenset(said))


def is_gpu_size(size: str) -> bool:
    """Azure names all of those N…"""
    return size.upper().removeprefix("STANDARD_").startswith("N")


def _datastores(
    settings: Settings, place: Place, read: Iterable[AzureMLOptions]
) -> Iterable[DatastoreWish]:
    """A name for the store's own container, and the one that an older project names."""
    location, files = settings.location, place.files
    found: dict[str, DatastoreWish] = {}
    if files.datastore and files.account and files.container:
        key = files.account_key
        wish = DatastoreWish(files.datastore, files.account, files.container, key)
        found[files.datastore] = wish
    if isinstance(location, AzureLocation):
        key = (location.key or "") if settings.azure.get("datastore_key") is True else ""
        for options in read:
            own = DatastoreWish(options.datastore, location.account, location.container, key)
            found.setdefault(options.datastore, own)
    return found.values()


def _environments(read: Iterable[AzureMLOptions]) -> Iterable[EnvironmentWish]:
    return dict.fromkeys(wish_of(usual_recipe(options)) for options in read)


def _store(settings: Settings) -> StorePlace:
    location = settings.location
    files = open_blobs(location)
    if isinstance(location, AzureLocation):
        by_identity = location.key is None and location.sas is None
        named = (location.account, location.container)
        return StorePlace(str(location), files, *named, by_identity=by_identity)
    is_folder = isinstance(location, SqliteLocation) or (
        isinstance(location, PostgresLocation) and location.blobs.startswith("file:")
    )
    return StorePlace(str(location), files, is_reachable=not is_folder)


def _hints(read: Mapping[str, AzureMLOptions]) -> tuple[str, ...]:
    lines = ["computes:"]
    for name, options in read.items():
        conda = f", conda: {options.conda}" if options.conda else ""
        lines.append(f"  {name}: {{kind: azureml, cluster: {options.cluster.name}{conda}}}")
    return tuple(lines)


def _same(one: Place, other: Place) -> bool:
    return one.path.lower() == other.path.lower() and one.cloud == other.cloud
