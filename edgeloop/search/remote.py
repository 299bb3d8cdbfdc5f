"""A whole search as one job, which submits the trainings from there.

The project's code is sent along. The store is opened with the identity of the machine, or by a
variable that the search file names, and the folder of the search becomes the job's outputs. A job
that is restarted, for example because its machine was preempted, continues the search.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgeloop._util.redact import redact
from edgeloop.errors import BadInput
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.records import RUNS_FOLDER, Run
from edgeloop.jobs.spec import JobSpec
from edgeloop.search.campaign import search_settings
from edgeloop.search.config import SearchConfig
from edgeloop.search.evaluators.jobs import pinned
from edgeloop.search.storage import open_storage
from edgeloop.search.study import is_begun
from edgeloop.search.training import HERE
from edgeloop.settings import LOCAL, SETTINGS_FILE, Settings, has_variable
from edgeloop.store import AzureLocation, Location, PostgresLocation, SqliteLocation

OUTPUTS = "outputs"
TAG = "search"
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_EXTRAS = ("azureml", "qnn", "train")


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
    if not path.is_file() or (project / RUNS_FOLDER) in path.parents:
        reason = f"{file} is not a file that is sent to the compute: name the configuration file "
        raise BadInput(reason=f"{reason}that the search was started with")
    if not path.is_relative_to(project):
        reason = (
            f"{file} is outside the project {project}, which is sent to the compute: move it there"
        )
        raise BadInput(reason=reason)
    _refuse_secrets(config, words)
    variables = _variables(config, settings)
    store = _store_words(config, settings, kind)
    if not resume and is_begun(open_storage(settings.location), config):
        reason = f"there is already a search {config.name!r}: continue it with --resume, or give "
        raise BadInput(reason=f"{reason}this one another search.name")
    return JobSpec(
        code=project,
        stem=config.name,
        command=("python", "-P", "-m", "edgeloop", "search"),
        args=(
            *(path.relative_to(project).as_posix(), *words, *_earlier_words(config, settings)),
            *(f"search.name={config.name}", f"search.folder={OUTPUTS}", "--resume"),
            *(*store, "--experiment", settings.experiment),
        ),
        variables=variables,
        compute=compute,
        data=_needed_there(config, settings),
        tags=(config.name, TAG),
        experiment=settings.experiment,
        edgeloop=_EXTRAS,
    )


def _earlier_words(config: SearchConfig, settings: Settings) -> list[str]:
    """The searches to start from, which a job finds in the store and not in folders."""
    if not config.earlier:
        return []
    import optuna

    names = optuna.study.get_all_study_names(open_storage(settings.location))
    for name in config.earlier:
        if name not in names:
            reason = f"a search on a compute cannot start from {name!r}, which is not a search in "
            raise BadInput(reason=f"{reason}the store: there are {', '.join(names) or 'none'}")
    return [f"search.earlier={json.dumps(list(config.earlier))}"]


def reachable(location: Location, kind: str) -> str:
    """The address of the store for another machine, without secrets."""
    if isinstance(location, AzureLocation):
        place = f"table={location.table_endpoint}&container={location.container}"
        return f"azure:{location.blob_endpoint}?{place}"
    if isinstance(location, SqliteLocation) and kind == LOCAL:
        return f"sqlite:{location.folder}"
    reason = (
        f"the store {location} cannot be opened by a search on another machine: use an Azure "
        "storage account, or name it by a variable: store: ${NAME}"
    )
    raise BadInput(reason=reason)


def earlier_job(config: SearchConfig, jobs: Jobs) -> Run | None:
    """The newest job that ran this search. It must have ended: two would take each other's
    candidates for abandoned ones."""
    here = str(jobs.settings.location)
    runs = [
        run
        for run in jobs.runs.list().runs
        if {config.name, TAG} <= set(run.record.tags) and run.record.store == here
    ]
    if not runs:
        return None
    [newest] = jobs.refresh([max(runs, key=lambda run: run.record.created)])
    if not newest.status.is_final:
        reason = f"the search {config.name!r} is running as the job {newest.name}: wait for it, or "
        raise BadInput(reason=f"{reason}end it with 'edgeloop job cancel {newest.name}'")
    return newest


def _store_words(config: SearchConfig, settings: Settings, kind: str) -> tuple[str, ...]:
    """None if the search file names the store by a variable, which travels as a secret: the file
    then opens the store there as it does here."""
    location = settings.location
    is_named = bool(_VARIABLE.search(str(config.document.get("store") or "")))
    is_reachable = isinstance(location, AzureLocation) or (
        isinstance(location, PostgresLocation) and not location.blobs.startswith("file:")
    )
    if is_named and is_reachable and search_settings(config).location == location:
        return ()
    return "--store", reachable(location, kind)


def _variables(config: SearchConfig, settings: Settings) -> dict[str, str]:
    """The variables that the search file and the project's settings refer to, as references: their
    values go into the job's ticket and nowhere else."""
    texts = [json.dumps(config.document, default=str)]
    with suppress(OSError):
        texts.append((settings.project / SETTINGS_FILE).read_text(encoding="utf-8"))
    needed, *optional = [set(_VARIABLE.findall(text)) for text in texts]
    known = {name for names in optional for name in names if has_variable(name)}
    for name in sorted(needed | known):
        if name.startswith("EDGELOOP_"):
            reason = f"the variable {name} cannot be sent with a job: give it a name that does not "
            raise BadInput(reason=f"{reason}begin with EDGELOOP_")
    return {name: f"${{{name}}}" for name in sorted(needed | known)}


def _refuse_secrets(config: SearchConfig, words: Sequence[str]) -> None:
    """The file becomes part of a snapshot, and the words of a record that others may read."""
    written = (str(config.document.get("store") or ""), *words)
    if any(redact(text) != text for text in written):
        reason = "the store has a password or key: write store: ${NAME} and set that variable"
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
