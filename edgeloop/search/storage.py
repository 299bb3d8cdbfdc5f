"""Where studies are stored: beside the store, so that whoever can open the store can continue them.

SQLite and PostgreSQL hold Optuna's own tables, which its dashboard can open. On an Azure account a
study is a journal of small blobs: each is created only if nobody else created it first, which is
all that Optuna needs of a journal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from edgeloop._util.files import make_folder
from edgeloop._util.retry import retry
from edgeloop.errors import MissingExtra, StoreUnavailable
from edgeloop.search.config import SearchConfig
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
