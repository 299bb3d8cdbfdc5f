"""A whole search as one job, which submits the trainings from there.

The project's code is sent along, the store is opened with the identity of the machine, and the
folder of the search becomes the job's outputs. A job that is restarted, for example because its
machine was preempted, continues the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgeloop.errors import BadInput
from edgeloop.jobs import Jobs, JobSpec
from edgeloop.search.config import SearchConfig
from edgeloop.search.evaluators.jobs import pinned
from edgeloop.search.storage import open_storage
from edgeloop.search.study import is_begun
from edgeloop.search.training import HERE
from edgeloop.settings import LOCAL, Settings
from edgeloop.store import AzureLocation, Location, SqliteLocation

OUTPUTS = "outputs"


def search_job(
    config: SearchConfig,
    file: Path,
    words: Sequence[str],
    settings: Settings,
    compute: str,
    resume: bool = False,
) -> JobSpec:
    """The job to submit; mistakes are found here, before anything is sent."""
    kind = str(settings.compute_settings(compute).get("kind", compute))
    path = file.resolve()
    project = settings.project.resolve()
    if not path.is_relative_to(project):
        reason = (
            f"{file} is outside the project {project}, which is sent to the compute: move it there"
        )
        raise BadInput(reason=reason)
    store = reachable(settings.location, kind)
    if not resume and is_begun(open_storage(settings.location), config):
        reason = f"there is already a search {config.name!r}: continue it with --resume, or give "
        raise BadInput(reason=f"{reason}this one another search.name")
    return JobSpec(
        code=project,
        stem=config.name,
        command=(
            *("python", "-m", "edgeloop", "search", path.relative_to(project).as_posix(), *words),
            *(f"search.name={config.name}", f"search.folder={OUTPUTS}", "--resume"),
            *("--store", store, "--experiment", settings.experiment),
        ),
        compute=compute,
        data=_needed_there(config, settings),
        tags=(config.name, "search"),
        experiment=settings.experiment,
    )


def reachable(location: Location, kind: str) -> str:
    """The address of the store for another machine, without secrets."""
    if isinstance(location, AzureLocation):
        place = f"table={location.table_endpoint}&container={location.container}"
        return f"azure:{location.blob_endpoint}?{place}"
    if isinstance(location, SqliteLocation) and kind == LOCAL:
        return f"sqlite:{location.folder}"
    reason = (
        f"the store {location} cannot be opened by a search on another machine: use an Azure "
        "storage account, which is opened with the identity of the machine"
    )
    raise BadInput(reason=reason)


def _needed_there(config: SearchConfig, settings: Settings) -> tuple[str, ...]:
    """The dataset is an input of the job if the search trains on its own machine; otherwise the
    training jobs fetch it, and it is pushed now if the store does not have it yet."""
    train = config.train
    if train is None or not config.data:
        return ()
    if str(train.get("compute") or HERE) == HERE:
        return (config.data,)
    pinned(Jobs(settings), config.data)
    return ()
