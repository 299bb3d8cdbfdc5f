"""One experiment of one store, opened: what the command line does, for programs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from edgeloop.models import (
    Catalog,
    Leases,
    Model,
    Uploaded,
    UploadOptions,
    default_plan,
)
from edgeloop.settings import Settings
from edgeloop.store import Record, Store, Values, open_store


class Workspace:
    """Use `Workspace.open()`. As a context manager it gives its connections back at the end."""

    def __init__(self, settings: Settings, store: Store | None = None) -> None:
        self.settings = settings
        self.store = store or open_store(settings.location)
        self.plan = default_plan(settings.benchmark_runs)
        self.catalog = Catalog(
            self.store,
            settings.experiment,
            self.plan,
            node=settings.node,
            margin_s=settings.clock_margin_seconds,
        )

    @classmethod
    def open(cls, store: str | None = None, experiment: str | None = None) -> Workspace:
        """The store and experiment that the settings name; the arguments win over those.

        Nothing is contacted or made before it is needed.
        """
        return cls(Settings.load(store=store, experiment=experiment))

    @property
    def experiment(self) -> str:
        return self.catalog.experiment

    def upload(
        self,
        path: Path | str,
        name: str | None = None,
        *,
        priority: int | None = None,
        benchmark_only: bool = False,
        tags: Sequence[str] = (),
    ) -> Model:
        """Check and store one model. The same content is recognised and not stored again."""
        options = UploadOptions(priority, benchmark_only, tags)
        return self.catalog.upload(path, name, options).model

    def upload_many(
        self, paths: Sequence[Path], options: UploadOptions | None = None
    ) -> Iterator[Uploaded | Exception]:
        return self.catalog.upload_many(paths, options)

    def model(self, name: str) -> Model:
        """A handle on a model that is there."""
        return Model(self.catalog.get(name).key, self.catalog)

    def status(self, *patterns: str, tag: str | None = None) -> list[Values]:
        """The rows, all of them or those whose names match."""
        return [row.values for row in self.catalog.rows(patterns, tag)]

    def find(self, patterns: Collection[str], tag: str | None = None) -> list[Record]:
        return list(self.catalog.rows(patterns, tag))

    def wait(self, *models: Model | str, timeout_s: float | None = None) -> None:
        """Until all of these are complete or rest in error."""
        names = [model if isinstance(model, str) else model.name for model in models]
        self.catalog.wait(names, timeout_s)

    def experiments(self) -> dict[str, int]:
        """Every experiment of the store, with the number of its models."""
        names = self.store.experiments()
        return {name: sum(1 for _ in self.store.models(name).query()) for name in names}

    def leases(self) -> Leases:
        """The claims on this experiment's work, with the limits that the settings give."""
        settings = self.settings
        return Leases(
            self.store.models(self.experiment),
            self.store.queue(self.experiment),
            self.plan,
            lease_s=settings.lease_seconds,
            margin_s=settings.clock_margin_seconds,
            max_attempts=settings.max_attempts,
        )

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
