"""A whole search as one job: it runs on a compute, and starts the trainings from there.

The project's code travels, the store is opened there by the machine's own identity, and what the
search writes into its folder comes back as the job's outputs. A job that is started again, because
its machine was taken away, goes on with the search where it was.
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
    """The job to submit. What is wrong is said here, before anything is sent."""
    kind = str(settings.compute_settings(compute).get("kind", compute))
    path = file.resolve()
    project = settings.project.resolve()
    if not path.is_relative_to(project):
        reason = f"{file} is outside the project {project}, which is what travels: move it there"
        raise BadInput(reason=reason)
    store = reachable(settings.location, kind)
    if not resume and is_begun(open_storage(settings.location), config):
        reason = f"There is a search {config.name!r} already. Go on with it by --resume, or give"
        raise BadInput(reason=f"{reason} this one another search.name")
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
    """The store's address as another machine opens it, without a secret."""
    if isinstance(location, AzureLocation):
        place = f"table={location.table_endpoint}&container={location.container}"
        return f"azure:{location.blob_endpoint}?{place}"
    if isinstance(location, SqliteLocation) and kind == LOCAL:
        return f"sqlite:{location.folder}"
    reason = (
        f"The store {location} cannot be opened by a search that runs elsewhere: use an Azure "
        "account, which it opens by its machine's own identity"
    )
    raise BadInput(reason=reason)


def _needed_there(config: SearchConfig, settings: Settings) -> tuple[str, ...]:
    """Pictures go along where the search trains beside itself; else the trainings fetch them, and
    what is here and not in the store yet is pushed now."""
    train = config.train
    if train is None or not config.data:
        return ()
    if str(train.get("compute") or HERE) == HERE:
        return (config.data,)
    pinned(Jobs(settings), config.data)
    return ()
