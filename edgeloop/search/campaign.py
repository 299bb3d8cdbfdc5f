"""A search from its configuration to its front: opens everything it needs, and closes it again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgeloop._util.files import try_lock, write_atomic
from edgeloop._util.redact import redact
from edgeloop._util.system import (
    announced_memory,
    announced_niceness,
    available_cpus,
    limited_memory,
    memory_bytes,
    memory_share_bytes,
    native_memory_bytes,
)
from edgeloop.errors import BadInput
from edgeloop.models.catalog import Candidates
from edgeloop.search.base import Evaluator, expected, value_of
from edgeloop.search.config import SearchConfig, read_config
from edgeloop.search.earlier import start_from_earlier
from edgeloop.search.evaluators import EvaluatorGroup, RemoteBenchmark, Screening
from edgeloop.search.evaluators.screening import check_devices
from edgeloop.search.evaluators.trainer import digest, source_of
from edgeloop.search.fronts import (
    ReferencePoint,
    VolumeCurve,
    front_of,
    fronts_of,
    read_reference,
    reference_from,
)
from edgeloop.search.keys import CHIP
from edgeloop.search.loop import Event, SearchLoop
from edgeloop.search.nets.spaces import find_space
from edgeloop.search.pool import BANK, Bank, conditions_of
from edgeloop.search.results import FoundModels, RunningTables, write_front, write_tables
from edgeloop.search.stopping import Rungs
from edgeloop.search.storage import (
    KEPT_CONFIG,
    LOCK,
    SEARCHES,
    UTILISATION,
    adopt,
    open_storage,
    patiently,
)
from edgeloop.search.study import Candidate, Study
from edgeloop.search.training import seconds, trainer_of, utilisation_of, with_classes, with_workers
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace

FARM = ("farm_latency_ms", "farm_f1")
SCREENED = ("params", "macs", "memory_bytes", "host_latency_ms", *CHIP)
SCREENING = "screening"  # untrained models, until their candidates have ended
NICENESS = 10  # of screening: a training on the same CPUs goes first
MOST_PROCESSES, PROCESS_BYTES = 8, 4 << 30  # for screening

Hear = Callable[[Event], None]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        candidates: Everything that was proposed, in order.
        front: The candidates that no other one dominates, on one chip at least.
        hypervolumes: The hypervolume after each candidate, in the order in which they ended.
        is_exhausted: Whether the space has no further members.
        folder: Folder with the tables and models of the search.
        published: Names of the models that were added to the status table.
        reference: The reference point of the hypervolumes; None without a result.
        fronts: The front of each chip, by its name; one without a name for a single chip.
        earlier: Results that were taken over from earlier searches.
        screened: Members of the space that were screened to choose candidates from.
        left_out: How many of these violate a constraint or cannot be built.
        utilisation: How busy `trainers` and `gpu` were, from 0 to 1, if known.

    Examples:
        >>> SearchResult([], [], [], False, Path("searches/laptop")).count("complete")
        0
    """

    candidates: Sequence[Candidate]
    front: Sequence[Candidate]
    hypervolumes: Sequence[float]
    is_exhausted: bool
    folder: Path
    published: Sequence[str] = field(default=())
    reference: ReferencePoint | None = None
    fronts: Mapping[str, Sequence[Candidate]] = field(default_factory=dict)
    earlier: Sequence[Candidate] = field(default=())
    screened: int = 0
    left_out: int = 0
    utilisation: Mapping[str, float] = field(default_factory=dict)

    def count(self, state: str) -> int:
        """Count the candidates in a state.

        Args:
            state: `complete`, `screened`, `stopped`, `failed` or `running`.

        Returns:
            The number of candidates.
        """
        return sum(item.state == state for item in self.candidates)

    def share_of_training(self, rungs: Rungs) -> float:
        """Tell how much of all trainings was done, if they are stopped early.

        Args:
            rungs: Where trainings pause.

        Returns:
            The share of the epochs, or steps, that training everything to its end would take.
        """
        reached = [
            rungs.total if item.state == "complete" else max(item.rungs, default=0)
            for item in self.candidates
            if item.state == "complete" or item.rungs
        ]
        return sum(reached) / (rungs.total * len(reached)) if reached else 1.0


class Search:
    """A search for architectures, from its configuration to its front.

    Create it with [`open`][edgeloop.Search.open] and use it as a context manager, which stops
    whatever it started at the end.

    Args:
        config: The checked configuration.
        settings: Settings of the project: store, experiment, computes.
        resume: Continue an interrupted search; otherwise its name must be new.

    Attributes:
        config: The configuration.
        workspace: The workspace whose status table gets the results.
        folder: Folder of the search, `searches/NAME` in the project.
        study: The Optuna study behind it.
        hypervolume: The hypervolume so far; None until there is a reference point.

    Examples:
        >>> from pathlib import Path
        >>> from edgeloop import Search
        >>> _ = Path("tiny.yaml").write_text(
        ...     "search: {space: small-classifier, size: 32, budget: 3}\\n"
        ...     "objectives: {params: {goal: min}, macs: {goal: min}}\\n"
        ... )
        >>> with Search.open("tiny.yaml") as search:
        ...     result = search.run()
        >>> result.count("complete")
        3
    """

    @classmethod
    def open(
        cls,
        file: Path | str,
        overrides: Sequence[str] = (),
        *,
        resume: bool = False,
        store: str | None = None,
        experiment: str | None = None,
    ) -> Search:
        """Read a configuration file and open everything the search needs.

        Args:
            file: The configuration, a YAML file.
            overrides: `key=value` words that override keys of the file.
            resume: Continue an interrupted search.
            store: URL of the store. By default that of the file, then that of the settings.
            experiment: Experiment for the results. By default that of the file, then the name of
                the search.

        Returns:
            The search, ready to run.

        Raises:
            BadInput: If the configuration is not valid, or the search is running.
        """
        config = read_config(Path(file), overrides)
        return cls(config, search_settings(config, store, experiment), resume)

    def __init__(self, config: SearchConfig, settings: Settings, resume: bool) -> None:
        self.config = config = with_workers(with_classes(config, settings.project))
        self.workspace = Workspace(settings)
        self.folder = search_folder(config, settings)
        self._closing = ExitStack()
        self._closing.callback(self.workspace.close)
        self._training: Evaluator | None = None
        self.hypervolume: float | None = None
        with ExitStack() as undoing:  # if a part cannot be opened, close the others
            undoing.callback(self._closing.close)
            self._closing.enter_context(announced_memory(settings.native_memory))
            self._open(settings, resume)
            undoing.pop_all()

    def _open(self, settings: Settings, resume: bool) -> None:
        config = self.config
        check_devices(config, settings)
        if resume:
            adopt(self.folder, config.name, settings.project)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._closing.enter_context(alone(self.folder / LOCK, config.name))
        space = find_space(config.space, config.options, settings.project)
        self.study = patiently(
            lambda: Study.open(config, space, open_storage(settings.location), resume), 0.0
        )
        write_atomic(self.folder / KEPT_CONFIG, written(config, settings.experiment))
        self._models = FoundModels(self.folder, self.workspace)
        store = self.workspace.store
        self.table = Candidates(store.models(settings.experiment), settings.experiment)

    def run(self, hear: Hear = lambda _: None, tell: Tell = lambda _: None) -> SearchResult:
        """Search until the budget is met, appending to the tables as results come.

        Args:
            hear: Called for every step of a candidate.
            tell: Called with a sentence about what delays it, such as a farm without a runner.

        Returns:
            The candidates and their front.
        """
        evaluators = self._evaluators(tell)
        bank = self._bank(evaluators)
        start_from_earlier(self.config, self.workspace.settings, self.study, evaluators, bank, tell)
        earlier, known = self.study.earlier(), patiently(self.study.candidates)
        ended = [item for item in known if item.state != "running"]
        ended = [*earlier, *sorted(ended, key=lambda item: (item.ended_at, item.number))]
        tables = RunningTables(
            *(self.folder, self.config, expected(evaluators), ended),
            known=reference_from(self.study.reference) or read_reference(self.folder),
            keep=self._keep_reference,
        )

        def heard(event: Event) -> None:
            if event.what != "begun" and event.what != "paused":  # noqa: PLR1714 - for mypy
                candidate, state = event.candidate, event.what
                ended.append(
                    replace(candidate, state=state, values=event.values, reason=event.reason)
                )
                tables.append(ended[-1])
                self.hypervolume = tables.curve.latest
                shutil.rmtree(self.folder / SCREENING / candidate.arch.id, ignore_errors=True)
            hear(event)

        loop = SearchLoop(
            *(self.config, self.study, evaluators, self.table, heard, self._models.keep),
            bank=bank,
            tell=tell,
        )
        try:
            candidates = loop.run()
        finally:  # also when it is interrupted or fails
            ended.sort(key=lambda item: item.number)
            write_tables(self.folder, self.config, ended)
            shutil.rmtree(self.folder / SCREENING, ignore_errors=True)
        tables.finish()
        return replace(
            self._finished(candidates, loop.is_exhausted, tables.curve, tell),
            screened=loop.screened[0],
            left_out=loop.screened[1],
        )

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _keep_reference(self, reference: ReferencePoint) -> None:
        if self.study.reference != reference.as_json():
            patiently(lambda: self.study.keep_reference(reference.as_json()))

    def _finished(
        self, candidates: Sequence[Candidate], is_exhausted: bool, curve: VolumeCurve, tell: Tell
    ) -> SearchResult:
        every = [*self.study.earlier(), *candidates]
        front = front_of(self.config, every)
        self._models.complete(front, self.study.taken, self._training, tell)
        write_front(self.folder, front, self._models.save)
        return SearchResult(
            candidates,
            front,
            curve.volumes,
            is_exhausted,
            self.folder,
            self._models.publish(front, self.config.name, self.config.iteration)
            if self.config.publish == "front"
            else (),
            curve.reference,
            fronts_of(self.config, every) if self.config.devices else {},
            self.study.earlier(),
            utilisation=self._utilisation(),
        )

    def _utilisation(self) -> dict[str, float]:
        """Also kept in the folder, for whoever asks later."""
        found = utilisation_of(self._training, self.config.workers, self._models.gpu_utilisation)
        if found:
            write_atomic(self.folder / UTILISATION, json.dumps(found) + "\n")
        return found

    def _evaluators(self, tell: Tell) -> list[Evaluator]:
        config, settings = self.config, self.workspace.settings
        found: list[Evaluator] = []
        screened = list(dict.fromkeys(map(value_of, config.wanted)))
        screened = [value for value in screened if value in SCREENED]
        if screened:
            found.append(self._screening_group(screened))
        conditions = ""
        if config.train is not None:
            trainer = trainer_of(config.train, config.data, settings, config.workers)
            training = trainer.evaluator(config.name, self.folder / "training", tell)
            self._training = training
            found.append(training)
            conditions = training.conditions
        for name in FARM:
            if name in config.wanted:
                found.append(self._farm(name, conditions, tell))
        for evaluator in found:
            self._closing.callback(evaluator.close)
        return found

    def _bank(self, evaluators: Sequence[Evaluator]) -> Bank:
        """What was screened before. An edited file of a user's space builds other models."""
        conditions = conditions_of(evaluators)
        source = source_of(self.study.architecture({}), self.workspace.settings.project)
        if source is not None:
            content = (self.workspace.settings.project / source).read_bytes()
            conditions = f"{conditions} | {source} {digest(content)}"
        return Bank.open(self.folder / BANK, conditions, self.study.architecture)

    def _screening_group(self, wanted: Sequence[str]) -> Evaluator:
        """Several at a time where a pool needs many; but latency of this CPU is measured alone."""
        if self.config.pool == 0 or "host_latency_ms" in wanted:
            return self._screening(wanted)
        count = min(available_cpus(), memory_bytes() // PROCESS_BYTES, MOST_PROCESSES)
        count = max(1, count)
        whole = native_memory_bytes()
        self._closing.enter_context(announced_niceness(NICENESS))
        self._closing.enter_context(limited_memory(memory_share_bytes(count)))
        several = [self._screening(wanted) for _ in range(count)]
        return EvaluatorGroup(several, lambda: limited_memory(whole))

    def _screening(self, wanted: Sequence[str]) -> Screening:
        host = self._options("host_latency_ms")
        settings = self.workspace.settings
        return Screening(
            wanted,
            self.config.chips[0],
            devices=self.config.devices,
            repeats=int(str(host.get("repeats", 20))),
            warm_up=int(str(host.get("warm_up", 3))),
            folder=self.folder / SCREENING,
            constraints=self.config.constraints,
            with_counts=self.config.pool > 0,
            proxies=self.config.proxies,
            project=settings.project,
            settings=settings,
        )

    def _farm(self, name: str, trained_with: str, tell: Tell) -> RemoteBenchmark:
        options = self._options(name)
        device = options.get("device")
        return RemoteBenchmark(
            self.workspace,
            (name,),
            seconds(options.get("timeout", "1h")),
            None if device is None else str(device),
            str(options.get("stage", "f1_1k")),
            trained_with=trained_with,
            tags=(self.config.name,),
            tell=tell,
        )

    def _options(self, name: str) -> Mapping[str, object]:
        """The options of an objective; `farm:` has defaults for all that runners measure."""
        usual = self.config.farm if name in FARM else {}
        found = [o.options for o in self.config.objectives if o.name == name]
        return {**usual, **(found[0] if found else {})}


def search_settings(
    config: SearchConfig, store: str | None = None, experiment: str | None = None
) -> Settings:
    """Precedence: arguments, the search's own file, the environment, edgeloop.yaml."""
    return Settings.load(
        store=store or config.store or None,
        experiment=experiment or config.experiment or config.name,
    )


@contextmanager
def alone(file: Path, name: str) -> Iterator[None]:
    """One process drives a search: two would take each other's candidates for abandoned ones."""
    lock = try_lock(file)
    if lock is None:
        reason = f"the search {name!r} is running: wait for it, or stop it and use --resume"
        raise BadInput(reason=reason)
    try:
        yield
    finally:
        os.close(lock)


def written(config: SearchConfig, experiment: str) -> str:
    """The configuration as a file, so that the search can be opened by its name and later commands
    find its results: with the goal of every objective, without a store address that has a password.
    """
    import yaml

    given = config.document.get("objectives")
    options = given if isinstance(given, Mapping) else {}
    objectives = {
        o.value: {**(options.get(o.value) or {}), "goal": o.goal} for o in config.objectives
    }
    document = {**config.document, "objectives": objectives, "experiment": experiment}
    if "store" in document and redact(str(document["store"])) != str(document["store"]):
        del document["store"]
    search = document.get("search")
    named = {**(search if isinstance(search, dict) else {}), "name": config.name}
    return str(yaml.safe_dump({**document, "search": named}, sort_keys=False, allow_unicode=True))


def search_folder(config: SearchConfig, settings: Settings) -> Path:
    return settings.project / (config.folder or f"{SEARCHES}/{config.name}")
