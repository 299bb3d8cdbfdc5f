"""What this machine can do, what is missing, and how to get it."""

from __future__ import annotations

import platform
import sys
from contextlib import suppress

from edgeloop._util.redact import redact
from edgeloop._util.system import available_cpus
from edgeloop.errors import EdgeloopError
from edgeloop.models.catalog import read_settings
from edgeloop.platforms import HealthCheck, health, package_check
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace

EVALUATING_MACHINES = ("x86_64", "aarch64")
ELSEWHERE = (
    "the catalog, jobs, reports and the portal work here; models are evaluated on Linux, "
    "x86-64 or aarch64"
)
_EXTRAS = (
    ("azure.data.tables", "azure", "stores in an Azure storage account"),
    ("torch", "train", "training"),
)


def examine(store: str | None, experiment: str | None) -> list[HealthCheck]:
    """Each platform says for itself what it needs."""
    version = ".".join(map(str, sys.version_info[:3]))
    settings = Settings.load()
    named = _named_dataset(store, experiment)
    dataset = f"{named}, which the experiment names" if named else settings.dataset
    hint = "set INPUT_DATASET, or make one: edgeloop data faces faces/"
    return [
        _system(),
        HealthCheck("python", sys.version_info >= (3, 11), version, needed=True),
        _store(store, experiment),
        *health(settings),
        *(
            package_check(module, f"pip install 'edgeloop[{extra}]'", purpose)
            for module, extra, purpose in _EXTRAS
        ),
        HealthCheck("dataset", bool(dataset), dataset or hint),
        HealthCheck("cores", True, f"{available_cpus()}"),
    ]


def _system() -> HealthCheck:
    """Models are evaluated on Linux; all else also works elsewhere, so this is no failure."""
    name = f"{platform.system() or 'unknown'} {platform.machine()}".strip()
    is_linux = sys.platform == "linux" and platform.machine() in EVALUATING_MACHINES
    rest = "models can be evaluated here" if is_linux else ELSEWHERE
    return HealthCheck("system", is_linux, f"{name}: {rest}")


def _named_dataset(store: str | None, experiment: str | None) -> str:
    """The one that runners of the experiment fetch, whatever this machine has."""
    with suppress(EdgeloopError), Workspace.open(store, experiment) as workspace:
        return read_settings(workspace.store, workspace.experiment).dataset
    return ""


def _store(store: str | None, experiment: str | None) -> HealthCheck:
    try:
        with Workspace.open(store, experiment) as workspace:
            count = sum(workspace.experiments().values())
            return HealthCheck(
                "store", True, f"{workspace.store.description}: {count} models", True
            )
    except EdgeloopError as error:
        return HealthCheck("store", False, redact(str(error)), needed=True)
