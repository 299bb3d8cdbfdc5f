"""Where studies are stored: beside the store, so that whoever can open the store can continue them.

SQLite and PostgreSQL hold Optuna's own tables, which its dashboard can open. On an Azure account a
study is a journal of small blobs: each is created only if nobody else created it first, which is
all that Optuna needs of a journal.
"""

from __future__ import annotations

import csv
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgeloop._util.files import make_folder
from edgeloop._util.retry import retry
from edgeloop._util.values import suggestion
from edgeloop._util.yaml import NotYaml, parse_yaml
from edgeloop.errors import BadInput, MissingExtra, StoreUnavailable
from edgeloop.jobs.records import RUNS_FOLDER
from edgeloop.search.config import SearchConfig, read_config
from edgeloop.search.sampler.trial import Choice, Distribution
from edgeloop.store import Blobs, Location, PostgresLocation, SqliteLocation, open_blobs

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage


STUDIES_FILE = "studies.db"
_READERS = 16
_CONNECT_S = 5
_BUSY_S = 30.0
_PREFIX = "_search/log/"
PATIENCE_S = 600.0

Result = TypeVar("Result")


def open_storage(location: Location) -> BaseStorage:
    """Optuna's storage beside a store."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra(what="A search", extra="train") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a search reports trials itself

    if isinstance(location, SqliteLocation):
        make_folder(location.folder)
        return _tables(f"sqlite:///{location.folder / STUDIES_FILE}", timeout=_BUSY_S)
    if isinstance(location, PostgresLocation):
        url = location.url.replace("postgresql:", "postgresql+psycopg:", 1)
        return _tables(url, connect_timeout=_CONNECT_S)
    return optuna.storages.JournalStorage(_journal(open_blobs(location)))


def storage_address(location: Location) -> str:
    """The address for Optuna's dashboard, without a password."""
    if isinstance(location, SqliteLocation):
        return f"sqlite:///{location.folder / STUDIES_FILE}"
    return str(location)


def _tables(url: str, **connecting: float) -> BaseStorage:
    import optuna

    return optuna.storages.RDBStorage(
        url,
        engine_kwargs={"pool_pre_ping": True, "connect_args": connecting},
        skip_compatibility_check=False,
    )


def _journal(blobs: Blobs) -> Any:
    from optuna.storages.journal import BaseJournalBackend

    class BlobJournal(BaseJournalBackend):
        """One blob per batch of entries, numbered consecutively."""

        def __init__(self) -> None:
            self._entries: list[dict[str, Any]] = []
            self._files = 0

        def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
            self._catch_up()
            return iter(self._entries[log_number_from:])

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            content = json.dumps(logs).encode()
            while not blobs.create(f"{_PREFIX}{self._files:09d}.json", content):
                self._catch_up()
            self._entries += json.loads(content)
            self._files += 1

        def _catch_up(self) -> None:
            """Blobs never change and leave no gaps, so only those after the last one are read."""
            keys = sorted(info.key for info in blobs.list(_PREFIX))[self._files :]
            with ThreadPoolExecutor(_READERS) as pool:
                for content in pool.map(blobs.read, keys):
                    self._entries += json.loads(content)
                    self._files += 1

    return BlobJournal()


def patiently(action: Callable[[], Result], patience_s: float = PATIENCE_S) -> Result:
    """Retry while the store is away: a search lasts longer than the restart of a database."""

    def attempt() -> Result:
        try:
            return action()
        except StoreUnavailable:
            raise
        except Exception as error:
            if not _is_away(error):
                raise
            reason = "its database does not answer"
            raise StoreUnavailable(store="with the study", reason=reason) from None

    return retry(attempt, StoreUnavailable, patience_s, longest_s=10.0, sleep=time.sleep)


def _is_away(error: Exception) -> bool:
    """Our stores raise StoreUnavailable; Optuna lets the errors of its database through."""
    from sqlalchemy.exc import DBAPIError, OperationalError

    return any(
        isinstance(found, OperationalError)
        or (isinstance(found, DBAPIError) and found.connection_invalidated)
        for found in (error, error.__cause__)
    )


def optuna_sampler(config: SearchConfig, number: int) -> BaseSampler:
    """One of Optuna's own, for the proposal of this number."""
    import warnings

    import optuna

    seed = (config.seed * 1_000_003 + number) % (2**31)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate TPE is experimental, and the best
        if config.sampler == "tpe":
            return optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed)
        if config.sampler == "nsga2":
            return optuna.samplers.NSGAIISampler(population_size=20, seed=seed)
        if config.sampler == "gp":
            return optuna.samplers.GPSampler(seed=seed)
        return optuna.samplers.RandomSampler(seed=seed)


def optuna_distributions(distributions: Mapping[str, Distribution]) -> dict[str, Any]:
    """As Optuna writes them."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    found: dict[str, Any] = {}
    for name, asked in distributions.items():
        if isinstance(asked, Choice):
            found[name] = CategoricalDistribution(list(asked.choices))
        elif asked.whole:
            step = int(asked.step or 1)
            found[name] = IntDistribution(int(asked.low), int(asked.high), asked.log, step)
        else:
            found[name] = FloatDistribution(asked.low, asked.high, asked.log, asked.step)
    return found


# Where the files of searches are: in a folder each, or among the results of a job that ran one.


SEARCHES, KEPT_CONFIG, LOCK = "searches", "search.yaml", ".lock"
CANDIDATES, PARETO = "candidates.csv", "pareto"
UTILISATION = "utilisation.json"  # of `trainers` and `gpu`, from 0 to 1, as far as it is known
_OUTPUTS = "outputs"


def found_searches(project: Path) -> dict[str, Path]:
    """The folders of searches by their names; those of jobs, whose results were fetched, by the
    names of the jobs."""
    fetched = sorted(project.glob(f"{RUNS_FOLDER}/*/{_OUTPUTS}/{KEPT_CONFIG}"))
    own = sorted(project.glob(f"{SEARCHES}/*/{KEPT_CONFIG}"))
    return {
        **{file.parents[1].name: file.parent for file in fetched},
        **{file.parent.name: file.parent for file in own},
    }


def find_search(name: str, project: Path) -> Path:
    """The folder of a search, by its name, by the name of the job that ran it, or by itself."""
    for folder in (Path(name), Path(name) / _OUTPUTS):
        if (folder / KEPT_CONFIG).is_file():
            return folder.resolve()
    known = found_searches(project)
    found = known.get(name) or fetched_search(name, project)
    if found is not None:
        return found
    if (project / RUNS_FOLDER / name).is_dir():
        reason = f"the results of the search {name!r} are not here: fetch them with "
        raise BadInput(reason=f"{reason}'edgeloop job results {name}'")
    there = suggestion(name, sorted(known), "there are") if known else "none was run or fetched yet"
    raise BadInput(reason=f"there is no search {name!r} in {project.absolute()}: {there}")


def fetched_search(name: str, project: Path) -> Path | None:
    """The newest fetched results of a search that ran as a job."""
    files = project.glob(f"{RUNS_FOLDER}/*/{_OUTPUTS}/{KEPT_CONFIG}")
    matching = [file for file in files if _name_in(file) == name]
    return max(matching, key=lambda file: file.stat().st_mtime).parent if matching else None


def kept_search(folder: Path, project: Path, overrides: Sequence[str] = ()) -> SearchConfig:
    """The configuration of a search that was run. It continues in its own folder; one whose
    results were fetched from a job continues in `searches/`."""
    config = read_config(folder / KEPT_CONFIG, overrides, any_folder=True)
    is_fetched = (project / RUNS_FOLDER).resolve() in folder.resolve().parents
    return replace(config, folder="" if is_fetched else str(folder.resolve()))


def arch_ids(folder: Path) -> set[str]:
    """The architectures that a search has evaluated."""
    found = {file.stem for file in (folder / PARETO).glob("id_*.json")}
    with suppress(OSError), (folder / CANDIDATES).open(newline="", encoding="utf-8") as file:
        found |= {row.get("arch_id") or "" for row in csv.DictReader(file)}
    return found - {""}


def adopt(folder: Path, name: str, project: Path) -> None:
    """Start from the results of a job, if the search was run as one and not here yet."""
    fetched = None if (folder / KEPT_CONFIG).is_file() else fetched_search(name, project)
    if fetched is not None and fetched.resolve() != folder.resolve():
        shutil.copytree(fetched, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK))


def _name_in(file: Path) -> str:
    try:
        document = parse_yaml(file.read_text(encoding="utf-8")).value
    except (OSError, UnicodeDecodeError, NotYaml):
        return ""
    search = document.get("search") if isinstance(document, dict) else None
    return str(search.get("name") or "") if isinstance(search, dict) else ""
