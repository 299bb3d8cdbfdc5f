"""What the computes of kind `azureml` need in their workspace: cluster, environment, datastore.

Jobs find or create their cluster and environment; `azure setup` and `azure doctor` handle all. An
environment's name and version follow from its content, so it is registered once. A project that
only names a workspace gets a small cluster for searches and one with GPUs for training.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeloop._util.yaml import NotYaml, parse_yaml
from edgeloop.errors import BadJob, BadSetting, ComputeRefused, Infeasible
from edgeloop.jobs.bundle import edgeloop_requirements, pinned
from edgeloop.jobs.computes.azureml.connection import Connection
from edgeloop.jobs.computes.azureml.options import DEFAULT_IMAGE, AzureMLOptions, read_azureml
from edgeloop.jobs.computes.azureml.resources import (
    ClusterDescription,
    DesiredCluster,
    DesiredDatastore,
    DesiredEnvironment,
    StoreTarget,
    WorkspaceRequirements,
    figure,
    find_cluster,
    find_environment,
    list_sizes,
    make_cluster,
    make_environment,
)
from edgeloop.jobs.computes.azureml.workspace import WorkspaceAddress, WorkspaceKeys, find_workspace
from edgeloop.jobs.computes.base import JobOrder
from edgeloop.jobs.computes.queue import missing
from edgeloop.node.ticket import Resources
from edgeloop.settings import AZUREML, Settings, read_project_files
from edgeloop.store.location import AzureLocation, PostgresLocation, SqliteLocation, open_blobs

_GIGABYTE = 10**9
NAME = "edgeloop-jobs"
_PYTHON = "python=3.11"
_PIP = "pip=25"
_CHANNELS = ["conda-forge"]  # without any, conda takes `defaults`, which has terms of its own
_LEAST_PYTHON = 11
_EXTRAS = ("train", "azureml", "qnn")
CPU_CLUSTER, CPU_SIZE = "cpu-cluster", "STANDARD_DS3_V2"
GPU_CLUSTER, GPU_SIZE = "gpu-cluster", "STANDARD_NC4AS_T4_V3"
_SEARCH_COMPUTE = "cpu"  # of the two that are proposed, the one for whole searches
_DEFAULT_NODES = 4
_DESCRIBED = {
    "size": "size",
    "min_nodes": "nodes",
    "max_nodes": "nodes",
    "spot": "spot",
    "idle": "idle",
    "identity": "identity",
}


class Cluster:
    """The cluster that jobs wait for: found, or created at the first submission. `made` names what
    was created, for later errors."""

    def __init__(
        self, compute: str, connection: Connection, description: ClusterDescription
    ) -> None:
        self._compute = compute
        self._connection = connection
        self._description = description
        self._sizes: dict[str, Any] | None = None
        self.made = ""

    def check(self, required: Resources) -> None:
        """Raises Infeasible. A job without special requirements is not checked, which saves
        calls."""
        if required == Resources(cpus=required.cpus) and required.cpus <= 1 and not required.custom:
            return
        size, nodes = self._nodes()
        totals = {**self._size(size), "nodes": float(nodes)}
        lacking = missing(required, totals)
        if lacking:
            name = self._description.name or "serverless"
            reason = f"{', '.join(lacking)}; {name} has {nodes} × {size}"
            raise Infeasible(compute=self._compute, reason=reason)

    def ensure(self) -> None:
        """Create it if it does not exist, and wait until it accepts jobs."""
        wanted = self._description
        if self._find() is not None:
            return
        if not wanted.size:
            raise self.absent()

        def began() -> None:
            self.made = f"the cluster {wanted.name} was created and exists"

        if not make_cluster(self._connection, wanted, began):
            reason = f"the cluster {wanted.name} is still being created: try again later"
            raise ComputeRefused(compute=self._compute, reason=reason)

    def absent(self) -> BadSetting:
        address = self._connection.address
        reason = (
            f"there is no cluster {self._description.name!r} in the workspace {address.workspace}: "
            "add its 'size', so that it is created, or run 'edgeloop azure setup'"
        )
        return BadSetting(where=f"computes.{self._compute}", reason=reason)

    def _nodes(self) -> tuple[str, int]:
        """The size of its nodes and their maximum number."""
        wanted = self._description
        found = self._find() if wanted.name else None
        if found is None:
            if not wanted.size:
                raise self.absent()
            return wanted.size, wanted.most_nodes
        most = getattr(found, "max_instances", None)
        return str(getattr(found, "size", "") or wanted.size), int(most or wanted.most_nodes)

    def _find(self) -> Any | None:
        return find_cluster(self._connection, self._description.name)

    def _size(self, name: str) -> dict[str, float]:
        """What one node has. A size that Azure does not list is not checked."""
        if self._sizes is None:
            self._sizes = list_sizes(self._connection)
        found = self._sizes.get(name.upper())
        if found is None:
            if not self._description.name or self._find() is None:
                reason = f"unknown instance type {name!r} in the workspace's region"
                raise BadSetting(where=f"computes.{self._compute}", reason=reason)
            return dict.fromkeys(("cpus", "gpus", "memory"), float("inf"))
        return {
            "cpus": float(figure(found, "v_cp_us", "vCPUs") or 0),
            "gpus": float(figure(found, "gpus") or 0),
            "memory": float(figure(found, "memory_gb", "memoryGB") or 0) * _GIGABYTE,
        }


@dataclass(frozen=True)
class EnvironmentRecipe:
    """An image (or the text of a Dockerfile) and what conda adds to it, or the name of a registered
    environment."""

    name: str = ""
    image: str = ""
    conda: str = ""  # JSON, keys in order
    dockerfile: str = ""

    @property
    def version(self) -> str:
        parts = [self.image, self.conda, *([self.dockerfile] if self.dockerfile else [])]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def recipe_for(order: JobOrder, options: AzureMLOptions) -> EnvironmentRecipe:
    """The job's own environment takes precedence over the compute's."""
    kind = order.environment.kind
    if kind == "image":
        return EnvironmentRecipe(image=order.environment.file)
    if kind == "name":
        return EnvironmentRecipe(name=order.environment.file)
    if kind == "conda":
        conda = _completed(order.recipe, order.requires)
        return EnvironmentRecipe("", options.image or DEFAULT_IMAGE, conda)
    return default_recipe(options, order.requires)


def default_recipe(options: AzureMLOptions, requires: Sequence[str] = ()) -> EnvironmentRecipe:
    """For jobs without an environment of their own: what the settings name, else all that
    Edgeloop's own jobs need, PyTorch among it. Whole searches and trainings run in it."""
    if options.environment:
        return EnvironmentRecipe(name=options.environment)
    if options.conda is not None:
        text = options.conda.read_text("utf-8")
        return EnvironmentRecipe("", options.image or DEFAULT_IMAGE, _completed(text, requires))
    if options.dockerfile:
        conda = _completed(options.conda_text, requires) if options.conda_text else ""
        return EnvironmentRecipe(conda=conda, dockerfile=options.dockerfile)
    if options.conda_text:
        image = options.image or DEFAULT_IMAGE
        return EnvironmentRecipe("", image, _completed(options.conda_text, requires))
    if options.image and not options.packages:
        return EnvironmentRecipe(image=options.image)
    packages = options.packages or pinned(edgeloop_requirements(*_EXTRAS))
    own = json.dumps(
        {"channels": _CHANNELS, "dependencies": [_PYTHON, _PIP, {"pip": list(packages)}]}
    )
    return EnvironmentRecipe("", options.image or DEFAULT_IMAGE, _completed(own, requires))


def ensure_environment(connection: Connection, recipe: EnvironmentRecipe) -> str:
    """Register it if needed; returns its name for a job."""
    if recipe.name:
        has_version = ":" in recipe.name.removeprefix("azureml:") or "@" in recipe.name
        return recipe.name if has_version else f"{recipe.name}@latest"
    desired = desired_environment(recipe)
    if find_environment(connection, desired) is None:
        make_environment(connection, desired)
    return f"azureml:{desired}"


def desired_environment(recipe: EnvironmentRecipe) -> DesiredEnvironment:
    """For `azure setup` and `azure doctor`."""
    if not recipe.name:
        made_of = {"image": recipe.image, "conda": recipe.conda, "dockerfile": recipe.dockerfile}
        return DesiredEnvironment(NAME, recipe.version, **made_of)
    name, at, label = recipe.name.removeprefix("azureml:").partition("@")
    name, _, version = name.partition(":")
    return DesiredEnvironment(name, version, label=label if at else "" if version else "latest")


def _completed(text: str, requires: Sequence[str] = ()) -> str:
    """A conda file with a Python, pip and what the job needs, in one canonical form."""
    try:
        document = parse_yaml(text).value
    except NotYaml:
        document = None
    if not isinstance(document, Mapping) or not isinstance(document.get("dependencies"), list):
        reason = "is not a conda file: it needs a list of 'dependencies'"
        raise BadJob(where="environment", reason=reason)
    plain = [item for item in document["dependencies"] if isinstance(item, str)]
    pips = [item.get("pip") for item in document["dependencies"] if isinstance(item, Mapping)]
    packages = [str(name) for group in pips for name in group or ()]
    names = {_package(text) for text in plain}
    plain += [text for text in (_PYTHON, "pip") if _package(text) not in names]
    names |= {_package(text) for text in packages}
    packages += [text for text in requires if _package(text) not in names]
    if requires:
        _check_python(plain)
    kept = {key: value for key, value in document.items() if key not in ("name", "prefix")}
    dependencies = [*plain, *([{"pip": packages}] if packages else [])]
    return json.dumps({**kept, "dependencies": dependencies}, sort_keys=True)


def _package(text: str) -> str:
    """`python` of `python=3.10`, `python >=3.8` and `conda-forge::python`."""
    return re.split(r"[\s=<>!~\[]", text.strip().rpartition("::")[2], maxsplit=1)[0].lower()


def _check_python(dependencies: Sequence[str]) -> None:
    for text in dependencies:
        found = re.match(r"python\s*[=~]=?\s*3\.(\d+)", text)
        if found and int(found[1]) < _LEAST_PYTHON:
            reason = (
                f"Edgeloop itself runs in this job and needs Python 3.{_LEAST_PYTHON} or newer, "
                f"not {text!r}: change that line of the conda file"
            )
            raise BadJob(where="environment", reason=reason)


@dataclass(frozen=True)
class SetupChoices:
    """Options of the command line; they take precedence over the settings. `is_new`: the store's
    container was created just now."""

    cpu_size: str = ""
    gpu_size: str = ""
    nodes: int = 0
    spot: bool = False
    conda: Path | None = None
    is_new: bool = False


def azure_requirements(
    settings: Settings, choices: SetupChoices | None = None
) -> WorkspaceRequirements:
    """Makes no request. Raises BadSetting if no workspace is given."""
    choices = choices or SetupChoices()
    described = {
        name: settings.compute_settings(name)
        for name, config in settings.computes.items()
        if config.get("kind") == AZUREML
    }
    configs = described or _default_computes(settings)
    trains_only = not described and read_project_files(settings.project).compute_target
    optional = frozenset((_SEARCH_COMPUTE,)) if trains_only else frozenset[str]()
    read = {name: _options(name, config, choices) for name, config in configs.items()}
    address = _workspace(settings, [options.address for options in read.values()])
    here = {name: options for name, options in read.items() if _same(options.address, address)}
    hints = ["computes:"]
    for name, options in here.items():
        conda = f", conda: {options.conda}" if options.conda else ""
        hints.append(f"  {name}: {{kind: azureml, cluster: {options.cluster.name}{conda}}}")
    return WorkspaceRequirements(
        address=address,
        store=replace(_store(settings), is_made=choices.is_new),
        clusters=tuple(_clusters(here, described, choices, optional)),
        datastores=tuple(_datastores(settings, address, here.values())),
        environments=tuple(
            dict.fromkeys(desired_environment(default_recipe(each)) for each in here.values())
        ),
        elsewhere=tuple(name for name in read if name not in here),
        hints=() if described else tuple(hints),
        patience_s=min(options.patience_s for options in here.values()),
    )


def _workspace(settings: Settings, candidates: Sequence[WorkspaceAddress]) -> WorkspaceAddress:
    """The project's own workspace if a compute is in it, else the first compute's."""
    with suppress(BadSetting):
        own = find_workspace(WorkspaceKeys.model_validate({}), settings.azure, settings.project)
        return next((address for address in candidates if _same(address, own)), candidates[0])
    return candidates[0]


def _default_computes(settings: Settings) -> dict[str, dict[str, object]]:
    """For a project without computes; an older one names the cluster that it trains on."""
    base = {**settings.compute_settings(AZUREML), "max_nodes": _DEFAULT_NODES}
    target = read_project_files(settings.project).compute_target or GPU_CLUSTER
    return {
        _SEARCH_COMPUTE: {**base, "cluster": CPU_CLUSTER, "size": CPU_SIZE},
        "gpu": {**base, "cluster": target, "size": GPU_SIZE},
    }


def _options(name: str, config: Mapping[str, object], choices: SetupChoices) -> AzureMLOptions:
    options = read_azureml(name, config)
    if choices.conda is None:
        return options
    if not choices.conda.is_file():
        raise BadSetting(where="--conda", reason=f"there is no file {choices.conda}")
    plain = replace(options, environment="", packages=(), conda_text="", dockerfile="")
    return replace(plain, conda=choices.conda)


def _clusters(
    read: Mapping[str, AzureMLOptions],
    described: Mapping[str, Mapping[str, object]],
    choices: SetupChoices,
    optional: frozenset[str],
) -> Iterable[DesiredCluster]:
    found: dict[str, DesiredCluster] = {}
    for name, options in read.items():
        if options.is_serverless:
            continue
        explicit = frozenset(
            _DESCRIBED[key] for key in described.get(name, {}) if key in _DESCRIBED
        )
        desired = DesiredCluster(options.cluster, explicit, (name,), name in optional)
        desired = _with_choice(desired, choices)
        key = desired.cluster.name.lower()
        if key in found:  # several computes may share a cluster: the first describes it
            is_optional = found[key].is_optional and desired.is_optional
            computes = (*found[key].computes, name)
            desired = replace(found[key], computes=computes, is_optional=is_optional)
        found[key] = desired
    return found.values()


def _with_choice(desired: DesiredCluster, choices: SetupChoices) -> DesiredCluster:
    cluster, explicit = desired.cluster, set(desired.explicit)
    is_gpu = is_gpu_size(cluster.size) or not cluster.size
    size = choices.gpu_size if is_gpu else choices.cpu_size
    if size:
        cluster, explicit = replace(cluster, size=size), explicit | {"size"}
    if choices.nodes:
        least = min(cluster.least_nodes, choices.nodes)
        cluster = replace(cluster, least_nodes=least, most_nodes=choices.nodes)
        explicit |= {"nodes"}
    if choices.spot and is_gpu:
        cluster, explicit = replace(cluster, spot=True), explicit | {"spot"}
    return replace(desired, cluster=cluster, explicit=frozenset(explicit))


def is_gpu_size(size: str) -> bool:
    """Azure's names of those start with N."""
    return size.upper().removeprefix("STANDARD_").startswith("N")


def _datastores(
    settings: Settings, address: WorkspaceAddress, read: Iterable[AzureMLOptions]
) -> Iterable[DesiredDatastore]:
    """One for the store's own container, and the one of an older project."""
    location, files = settings.location, address.files
    found: dict[str, DesiredDatastore] = {}
    if files.datastore and files.account and files.container:
        key = files.account_key
        desired = DesiredDatastore(files.datastore, files.account, files.container, key)
        found[files.datastore] = desired
    if isinstance(location, AzureLocation):
        key = (location.key or "") if settings.azure.get("datastore_key") is True else ""
        for options in read:
            own = DesiredDatastore(options.datastore, location.account, location.container, key)
            found.setdefault(options.datastore, own)
    return found.values()


def _store(settings: Settings) -> StoreTarget:
    location = settings.location
    files = open_blobs(location)
    if isinstance(location, AzureLocation):
        by_identity = location.key is None and location.sas is None
        named = (location.account, location.container)
        return StoreTarget(str(location), files, *named, by_identity=by_identity)
    is_folder = isinstance(location, SqliteLocation) or (
        isinstance(location, PostgresLocation) and location.blobs.startswith("file:")
    )
    return StoreTarget(str(location), files, is_reachable=not is_folder)


def _same(one: WorkspaceAddress, other: WorkspaceAddress) -> bool:
    return one.path.lower() == other.path.lower() and one.cloud == other.cloud
