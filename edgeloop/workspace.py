"""The public entry point for programs: one experiment of a store, opened."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from edgeloop.models.catalog import Catalog, Model, Uploaded, read_settings
from edgeloop.models.leases import Leases
from edgeloop.models.plan import default_plan
from edgeloop.models.runners import Registry, RunnerEntry
from edgeloop.models.upload import UploadOptions
from edgeloop.settings import Settings
from edgeloop.store import Record, Store, Values
from edgeloop.store.location import open_store

_MOST_COUNTED = 1_000


class Workspace:
    """One experiment of a store: the status table and the files of its models.

    Create it with [`open`][edgeloop.Workspace.open] and use it as a context manager, which closes
    its connections at the end.

    Args:
        settings: The settings to use, for example `Settings.load()`.
        store: A store that is already open. By default the one that the settings name is opened.

    Attributes:
        settings: The settings it was opened with.
        store: The store: tables, and `store.blobs` for files.
        plan: The stages of a model, with their priorities.
        catalog: Everything that can be done to models; the methods here are shortcuts.

    Examples:
        >>> from edgeloop import Workspace
        >>> with Workspace.open() as workspace:
        ...     model = workspace.upload("net.onnx", "calm-heron", tags=["unet"])
        ...     [row["status"] for row in workspace.status(tag="unet")]
        ['new']
    """

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
        """Open a store. Nothing is contacted or created before it is needed.

        Args:
            store: URL of the store, for example `sqlite:FOLDER` or `postgresql://…`. By default
                `EDGELOOP_STORE`, then `edgeloop.yaml`, then the folder `.edgeloop/`.
            experiment: Name of the experiment. By default `EDGELOOP_EXPERIMENT`, then
                `edgeloop.yaml`, then `default`.

        Returns:
            The workspace.

        Examples:
            >>> Workspace.open("sqlite:shared", "faces").experiment
            'faces'
        """
        return cls(Settings.load(store=store, experiment=experiment))

    @property
    def experiment(self) -> str:
        """Name of the experiment."""
        return self.catalog.experiment

    def upload(
        self,
        path: Path | str,
        name: str | None = None,
        *,
        priority: int | None = None,
        benchmark_only: bool = False,
        tags: Sequence[str] = (),
        architecture: str = "",
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        check: bool = True,
    ) -> Model:
        """Check an ONNX file and store it as a model.

        Content that is already in the experiment is recognized and not stored again.

        Args:
            path: The ONNX file; its external data is stored with it.
            name: Name of the model. By default a friendly one such as `calm-heron` is chosen.
            priority: Overrides the priorities of the stages; lower runs sooner.
            benchmark_only: Only convert and benchmark it, without measuring accuracy.
            tags: Labels to find it by.
            architecture: JSON of the architecture that it was built from. It is stored beside the
                model as `architecture.json`, from which `edgeloop arch train` builds it again.
            shapes: Shapes of inputs whose sizes the file leaves open, for example
                `{"image": (1, 3, 224, 224)}`. A free batch becomes 1 without them.
            check: Whether to read the graph first and refuse a model that no runner could use.
                The first check starts a process, which takes a moment.

        Returns:
            A handle on the model.

        Raises:
            BadModel: If the file is not a complete, valid ONNX model, or no runner could use it.
            NameTaken: If another model has this name.

        Examples:
            >>> model = Workspace.open().upload("net.onnx", "calm-heron", priority=0)
            >>> model.row["priority"]
            0
        """
        options = UploadOptions(
            priority, benchmark_only, tags, architecture, dict(shapes or {}), check
        )
        return self.catalog.upload(path, name, options).model

    def upload_many(
        self, paths: Sequence[Path], options: UploadOptions | None = None
    ) -> Iterator[Uploaded | Exception]:
        """Upload several files at once. One that fails does not stop the others.

        Args:
            paths: The ONNX files.
            options: Priority, tags and `benchmark_only` for all of them.

        Returns:
            For each path in order: what became of it, or the error.
        """
        return self.catalog.upload_many(paths, options)

    def model(self, name: str) -> Model:
        """Return a handle on an existing model.

        Args:
            name: Name of the model.

        Returns:
            The handle.

        Raises:
            NoSuchModel: If the experiment has no model of this name.
        """
        return Model(self.catalog.get(name).key, self.catalog)

    def status(self, *patterns: str, tag: str | None = None) -> list[Values]:
        """Read the status table.

        Args:
            *patterns: Names or globs such as `brave-*`. By default all models.
            tag: Only models with this tag.

        Returns:
            One dictionary per model, with the columns of the reference page "Rows and files".

        Examples:
            >>> workspace = Workspace.open()
            >>> model = workspace.upload("net.onnx", "calm-heron")
            >>> [(row["name"], row["status"]) for row in workspace.status("calm-*")]
            [('calm-heron', 'new')]
        """
        return [row.values for row in self.catalog.rows(patterns, tag)]

    def find(self, patterns: Collection[str], tag: str | None = None) -> list[Record]:
        """Read rows together with their keys and versions.

        Args:
            patterns: Names or globs. By default all models.
            tag: Only models with this tag.

        Returns:
            The records, which `Table.update` accepts.
        """
        return list(self.catalog.rows(patterns, tag))

    def wait(self, *models: Model | str, timeout_s: float | None = None) -> None:
        """Wait until runners have finished these models, successfully or not.

        Args:
            *models: Models or their names.
            timeout_s: Give up after this many seconds. By default it waits forever.

        Raises:
            WaitTimeout: If the time is over.

        Examples:
            >>> workspace = Workspace.open()
            >>> model = workspace.upload("net.onnx", "calm-heron")
            >>> workspace.wait(model)  # doctest: +SKIP
            >>> model.row["f1_1k"]  # doctest: +SKIP
            0.8389
        """
        names = [model if isinstance(model, str) else model.name for model in models]
        self.catalog.wait(names, timeout_s)

    def experiments(self) -> dict[str, int]:
        """Count the models of every experiment in the store.

        Returns:
            Number of models by name of the experiment.

        Examples:
            >>> workspace = Workspace.open()
            >>> model = workspace.upload("net.onnx")
            >>> workspace.experiments()
            {'default': 1}
        """
        names = self.store.experiments()
        return {name: sum(1 for _ in self.store.models(name).query()) for name in names}

    def leases(self) -> Leases:
        """Access the claims on this experiment's work, as a runner does.

        Returns:
            The leases, with the limits of the settings.
        """
        settings = self.settings
        return Leases(
            self.store.models(self.experiment),
            self.store.queue(self.experiment),
            self.plan,
            lease_s=settings.lease_seconds,
            margin_s=settings.clock_margin_seconds,
            max_attempts=settings.max_attempts,
            targets=lambda: read_settings(self.store, self.experiment).for_models(),
        )

    def runners(self) -> list[RunnerEntry]:
        """List the runners that serve this experiment, with their devices and current work.

        Returns:
            One entry per runner, sorted by machine. Those that died lately are included;
            `is_dead` tells.

        Examples:
            >>> [runner.node for runner in Workspace.open().runners() if not runner.is_dead]
            []
        """
        return Registry(self.store).entries(self.experiment)

    def close(self) -> None:
        """Close the connections to the store."""
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


def with_models(workspace: Workspace) -> Workspace:
    """The same store in the experiment that has models, if this one has none and no other has any:
    for people who look at results without naming an experiment."""
    if any(True for _ in workspace.store.models(workspace.experiment).query(limit=1)):
        return workspace
    others = list(models_elsewhere(workspace))
    if len(others) != 1:
        return workspace
    return Workspace(replace(workspace.settings, experiment=others[0]), workspace.store)


def models_elsewhere(workspace: Workspace) -> dict[str, str]:
    """How many models each other experiment of the store has, as text since counting ends at a
    thousand. For people who find none in this one; empty experiments are left out."""
    counts = {}
    for name in workspace.store.experiments():
        if name == workspace.experiment:
            continue
        count = sum(1 for _ in workspace.store.models(name).query(limit=_MOST_COUNTED + 1))
        if count:
            counts[name] = str(count) if count <= _MOST_COUNTED else f"over {_MOST_COUNTED:,}"
    return counts
