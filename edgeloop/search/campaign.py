"""A search from its configuration to its front: opens everything it needs, and closes it again."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
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
from edgeloop._util.values import TIME_FORMS, bytes_of, seconds_of
from edgeloop.errors import BadInput, NoSuchDataset
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.records import Run
from edgeloop.jobs.spec import ENVIRONMENT, JobSpec
from edgeloop.models.catalog import Candidates
from edgeloop.node.ledger import find_local
from edgeloop.node.ticket import Environment, Resources, escaped
from edgeloop.paths import runs_folder
from edgeloop.search.base import Evaluation, Evaluator, expected, value_of
from edgeloop.search.config import CHIP, Rungs, SearchConfig, read_config
from edgeloop.search.evaluators.farm import RemoteBenchmark
from edgeloop.search.evaluators.jobs import PartialTraining, pinned
from edgeloop.search.evaluators.local import LocalTraining
from edgeloop.search.evaluators.screening import COUNTS, Screening, ScreeningPlan, check_devices
from edgeloop.search.evaluators.threads import EvaluatorGroup
from edgeloop.search.loop import Event, SearchListener, SearchLoop
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.device import usable_cards
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan
from edgeloop.search.nets.spaces import BUILT_IN, digest, find_space, source_of
from edgeloop.search.nets.train import USUAL_AT_ONCE
from edgeloop.search.pool import Bank, conditions_of
from edgeloop.search.results import (
    FoundModels,
    ReferencePoint,
    RunningTables,
    VolumeCurve,
    copy_atomic,
    front_of,
    fronts_of,
    publish,
    read_reference,
    reference_from,
    write_front,
    write_tables,
)
from edgeloop.search.study import (
    BANK,
    KEPT_CONFIG,
    LOCK,
    PARETO,
    SEARCHES,
    UTILISATION,
    Candidate,
    Study,
    adopt,
    is_begun,
    open_storage,
    patiently,
    start_from_earlier,
)
from edgeloop.settings import LOCAL, SETTINGS_FILE, Settings, has_variable
from edgeloop.store import Record, Value
from edgeloop.store.location import AzureLocation, Location, PostgresLocation, SqliteLocation
from edgeloop.tasks import open_task
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
        candidates = patiently(self.study.candidates)
        ended = [item for item in candidates if item.state != "running"]
        ended.sort(key=lambda item: (item.ended_at, item.number))
        ended = [*self.study.earlier(), *ended]
        tables = RunningTables(
            self.folder,
            self.config,
            expected(evaluators),
            ended,
            known=reference_from(self.study.reference) or read_reference(self.folder),
            keep=self._keep_reference,
            name_of=self.name_of,
        )

        def heard(event: Event) -> None:
            if event.what == "begun" or event.what == "paused":  # noqa: PLR1714 - for mypy
                hear(event)
                return
            candidate = event.candidate
            shutil.rmtree(self.folder / SCREENING / candidate.arch.id, ignore_errors=True)
            if event.what != "dropped":
                state, values, reason = event.what, event.values, event.reason
                ended.append(replace(candidate, state=state, values=values, reason=reason))
                tables.append(ended[-1])
                self.hypervolume = tables.curve.latest
            hear(event)

        listener = SearchListener(heard, self._models.keep, tell)
        loop = SearchLoop(self.config, self.study, evaluators, self.table, listener, bank)
        if self._training is not None and len(ended) < self.config.budget:
            self._training.warm()
        try:
            candidates = loop.run()
        finally:  # also when it is interrupted or fails
            ended.sort(key=lambda item: item.number)
            write_tables(self.folder, self.config, ended, self.name_of)
            shutil.rmtree(self.folder / SCREENING, ignore_errors=True)
        tables.finish()
        return replace(
            self._finished(candidates, loop.is_exhausted, tables.curve, tell),
            screened=loop.screened[0],
            left_out=loop.screened[1],
        )

    def name_of(self, arch_id: str) -> str:
        """What an architecture is called in the status table.

        Args:
            arch_id: Its id, such as `id_0ec1bb2629726243`.

        Returns:
            A friendly name, which is the same in every run.
        """
        return patiently(lambda: self.table.name_of(arch_id))

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
        published: Sequence[str] = ()
        if self.config.publish == "front":
            published = self._models.publish(front, self.config.name, self.config.iteration)
        return SearchResult(
            candidates=candidates,
            front=front,
            hypervolumes=curve.volumes,
            is_exhausted=is_exhausted,
            folder=self.folder,
            published=published,
            reference=curve.reference,
            fronts=fronts_of(self.config, every) if self.config.devices else {},
            earlier=self.study.earlier(),
            utilisation=self._utilisation(),
        )

    def _utilisation(self) -> dict[str, float]:
        """Also kept in the folder, for `edgeloop search show` and the portal."""
        shares = utilisation_of(self._training, self.config.workers, self._models.gpu_utilisation)
        if shares:
            write_atomic(self.folder / UTILISATION, json.dumps(shares) + "\n")
        return shares

    def _evaluators(self, tell: Tell) -> list[Evaluator]:
        config, settings = self.config, self.workspace.settings
        evaluators: list[Evaluator] = []
        screened = list(dict.fromkeys(map(value_of, config.wanted)))
        screened = [value for value in screened if value in SCREENED]
        if screened:
            evaluators.append(self._screening_group(screened))
        conditions = ""
        if config.train is not None:
            trainer = trainer_of(config.train, config.data, settings, config.workers)
            training = trainer.evaluator(config.name, self.folder / "training", tell)
            self._training = training
            evaluators.append(training)
            conditions = training.conditions
        for name in FARM:
            if name in config.wanted:
                evaluators.append(self._farm(name, conditions, tell))
        for evaluator in evaluators:
            self._closing.callback(evaluator.close)
        return evaluators

    def _bank(self, evaluators: Sequence[Evaluator]) -> Bank:
        """What was screened before. An edited file of a user's space builds other models."""
        conditions = conditions_of(evaluators)
        source = source_of(self.study.architecture({}), self.workspace.settings.project)
        if source is not None:
            content = (self.workspace.settings.project / source).read_bytes()
            conditions = f"{conditions} | {source} {digest(content)}"
        return Bank.open(self.folder / BANK, conditions, self.study.architecture)

    def _screening_group(self, wanted: Sequence[str]) -> Evaluator:
        """Several at a time where a pool or several workers need many; but latency of this CPU is
        measured alone, and counts of a built-in space take one process some milliseconds."""
        config = self.config
        is_one_by_one = config.pool == 0 and max(config.workers, config.batch) == 1
        is_counted = set(wanted) <= set(COUNTS) and config.space in BUILT_IN and not config.proxies
        if is_one_by_one or is_counted or "host_latency_ms" in wanted:
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
        plan = ScreeningPlan(
            wanted=wanted,
            device=self.config.chips[0],
            devices=self.config.devices,
            constraints=self.config.constraints,
            with_counts=self.config.pool > 0,
            proxies=self.config.proxies,
            repeats=int(str(host.get("repeats", 20))),
            warm_up=int(str(host.get("warm_up", 3))),
        )
        folder = self.folder / SCREENING
        return Screening(plan, folder=folder, project=settings.project, settings=settings)

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
        named = [o.options for o in self.config.objectives if o.name == name]
        return {**usual, **(named[0] if named else {})}


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

    objectives_written = config.document.get("objectives")
    options = objectives_written if isinstance(objectives_written, Mapping) else {}
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


# Training the candidates of a search, here or as jobs on a compute; and, afterwards, the full
# training of its front (`search train`).


HERE = "here"
LONGEST_S = 24 * 3600.0
LOOK_S = 1.0
FULL = "full"


@dataclass(frozen=True)
class Trainer:
    """A training plan, a dataset, and where to train. Of `workers` candidates, `at_once` train at
    the same time; None: all of them, or as many as there is room for on a GPU that they share."""

    plan: TrainingPlan
    data: str
    settings: Settings
    compute: str = HERE
    resources: Resources = field(default_factory=Resources)
    timeout_s: float | None = None
    at_once: int | None = None
    group: int = 1
    pipeline: int = 1
    environment: Environment = field(default_factory=Environment)
    workers: int = 1

    def evaluator(
        self, name: str, folder: Path, tell: Callable[[str], None] = lambda _: None
    ) -> Evaluator:
        if self.compute == HERE:
            cards = usable_cards(self.plan)
            each = math.ceil(self.at_once / len(cards)) if self.at_once and cards else None
            dataset = dataset_folder(self.data, self.settings.project)
            return LocalTraining(
                TrainingPaths(dataset, folder, project=self.settings.project),
                self.plan,
                self.at_once or self.workers,
                limit_s=self.timeout_s or LONGEST_S,
                cards=cards,
                per_card=each,
            )
        self.settings.compute_settings(
            self.compute
        )  # an unknown compute is not a fault of a candidate
        return PartialTraining(
            Jobs(self.settings),
            self.data,
            self.plan,
            search=name,
            compute=self.compute,
            resources=self.resources,
            timeout_s=self.timeout_s,
            batch=self.group,
            at_once=min(self.group, self.at_once or self._usual_in_a_job),
            steps=self.pipeline,
            environment=self.environment,
            tell=tell,
        )

    @property
    def _usual_in_a_job(self) -> int:
        """Those of a job share its GPU; without one each needs a core."""
        return self.group if self.resources.gpus else self.workers


def with_classes(config: SearchConfig, project: Path) -> SearchConfig:
    """As many classes as the dataset has, unless the file says how many."""
    if config.says_classes or not config.data:
        return config
    try:
        folder = dataset_folder(config.data, project)
    except (NoSuchDataset, BadInput):
        return config  # it is in the store only, or the training will say what is wrong with it
    has_labels = next(folder.glob("*_seg.png"), None) is not None
    task = config.task or ("segmentation" if has_labels else "classification")
    return dataclasses.replace(config, classes=len(open_task(task, folder, folder).classes))


def with_workers(config: SearchConfig) -> SearchConfig:
    """Several candidates per GPU where they are trained on this machine's, unless the file says how
    many at a time."""
    search, train = config.document.get("search"), config.train
    is_said = isinstance(search, Mapping) and search.get("workers") is not None
    if is_said or train is None or (train.get("compute") or HERE) != HERE:
        return config
    plan = TrainingPlan(device="cpu" if train.get("device") == "cpu" else "auto")
    cards = usable_cards(plan)
    return dataclasses.replace(config, workers=USUAL_AT_ONCE * len(cards)) if cards else config


def utilisation_of(
    training: Evaluator | None, workers: int, reported: float | None = None
) -> dict[str, float]:
    """How busy the places for trainings were until the last candidate began, and the GPU while
    anything was trained, as far as it is known: `reported` is what trainings elsewhere said."""
    if training is None:
        return {}
    busy = training.busy_share(training.capacity or workers)
    here = training.gpu_utilisation
    shares = {"trainers": busy, "gpu": reported if here is None else here}
    return {name: round(share, 3) for name, share in shares.items() if share is not None}


def trainer_of(train: Mapping[str, object], data: str, settings: Settings, workers: int) -> Trainer:
    """From the keys of `train:`, most of which are those of a training plan."""
    plan_keys = {entry.name for entry in fields(TrainingPlan)}
    plan = {key: value for key, value in train.items() if key in plan_keys and value is not None}
    try:
        if isinstance(plan.get("learning_rate"), str):  # YAML reads 1e-2 as a text
            plan["learning_rate"] = float(str(plan["learning_rate"]))
        chosen = TrainingPlan(**plan)  # type: ignore[arg-type]
        resources = Resources(
            cpus=float(str(train.get("cpus", 1))),
            gpus=float(str(train.get("gpus", 0))),
            memory_bytes=bytes_of(str(train["memory"])) or 0 if "memory" in train else 0,
        )
        written = train.get("environment")
        environment = Environment() if written is None else ENVIRONMENT.read(written)
        assert isinstance(environment, Environment)
    except (TypeError, ValueError) as error:
        raise BadInput(reason=f"objectives: train cannot be read: {error}") from None
    return Trainer(
        chosen,
        data,
        settings,
        compute=str(train.get("compute") or HERE),
        resources=resources,
        timeout_s=seconds(train["timeout"]) if train.get("timeout") else None,
        at_once=int(str(train["at_once"])) if train.get("at_once") else None,
        group=int(str(train.get("group") or 1)),
        pipeline=int(str(train.get("pipeline") or 1)),
        environment=environment,
        workers=workers,
    )


def dataset_folder(data: str, project: Path) -> Path:
    """A dataset of the project by name, or any folder by path."""
    try:
        return find_local(project, data)[1]
    except (NoSuchDataset, BadInput):
        for folder in (Path(data).expanduser(), project / data):
            if folder.is_dir():
                return folder
        raise


def seconds(value: object) -> float:
    duration_s = seconds_of(str(value))
    if not duration_s:
        raise BadInput(reason=f"{value!r} is not a time: write {TIME_FORMS}")
    return duration_s


@dataclass(frozen=True)
class Retrained:
    """A model of the front: its score after partial and after full training, or an error."""

    arch: Architecture
    name: str
    partial_iou: float | None
    full_iou: float | None = None
    full_f1: float | None = None
    error: str = ""


def front_in(folder: Path) -> list[Architecture]:
    """The architectures of the front in the folder of a search."""
    files = sorted((folder / PARETO).glob("id_*.json"))
    if not files:
        reason = f"there is no front in {folder}: run the search first, or name its folder"
        raise BadInput(reason=reason)
    return [Architecture.load(path) for path in files]


def retrain(
    name: str,
    folder: Path,
    trainer: Trainer,
    workspace: Workspace,
    hear: Callable[[Retrained], None] = lambda _: None,
    is_published: bool = True,
) -> list[Retrained]:
    """Train every model of the front in full; finished trainings are not repeated."""
    front = {arch.id: arch for arch in front_in(folder)}
    experiment = workspace.experiment
    table = Candidates(workspace.store.models(experiment), experiment)
    names = patiently(lambda: {arch_id: table.name_of(arch_id) for arch_id in front})
    rows = {row.key: row for row in patiently(lambda: workspace.find(()))}
    training = trainer.evaluator(f"{name}-{FULL}", folder / FULL / "training")
    done: list[Retrained] = []
    try:
        for arch in front.values():
            training.send(arch)
        while len(done) < len(front):
            for evaluation in training.collect(LOOK_S):
                arch = front[evaluation.arch_id]
                name = names[arch.id]
                item = _recorded(arch, name, evaluation, rows.get(name), table, training.conditions)
                if not evaluation.error:
                    _keep(arch, evaluation, folder, workspace if is_published else None, item)
                done.append(item)
                hear(item)
    finally:
        training.close()
    return sorted(done, key=lambda item: item.full_iou or 0.0)


def _recorded(
    arch: Architecture,
    name: str,
    evaluation: Evaluation,
    row: Record | None,
    table: Candidates,
    conditions: str,
) -> Retrained:
    partial = row.values.get("val_iou") if row is not None else None
    item = Retrained(arch, name, float(partial) if isinstance(partial, int | float) else None)
    if evaluation.error:
        return dataclasses.replace(item, error=evaluation.error)
    columns: dict[str, Value] = {"final_val_iou": float(evaluation.values["val_iou"])}
    patiently(lambda: table.note(arch.id, arch.canonical, conditions, evaluation.values, columns))
    return dataclasses.replace(
        item, full_iou=evaluation.values["val_iou"], full_f1=evaluation.values.get("val_f1")
    )


def _keep(
    arch: Architecture,
    evaluation: Evaluation,
    folder: Path,
    workspace: Workspace | None,
    item: Retrained,
) -> None:
    """In the folder of the search and, if published, in the status table for runners."""
    target = folder / FULL / f"{arch.id}.onnx"
    target.parent.mkdir(parents=True, exist_ok=True)
    copy_atomic(evaluation.files["model.onnx"], target)
    if workspace is None:
        return
    columns: dict[str, Value] = {"final_val_iou": float(evaluation.values["val_iou"])}
    if item.partial_iou is not None:
        columns["val_iou"] = item.partial_iou
    if "training_time" in evaluation.values:
        columns["training_time"] = float(evaluation.values["training_time"])
    publish(
        workspace,
        arch,
        kind=FULL,
        model=target,
        values=evaluation.values,
        columns=columns,
        tag=FULL,
    )


def summary(items: Sequence[Retrained]) -> list[dict[str, object]]:
    return [
        {
            "name": item.name,
            "arch_id": item.arch.id,
            "val_iou": item.partial_iou,
            "final_val_iou": item.full_iou,
            "final_val_f1": item.full_f1,
            "error": item.error,
        }
        for item in items
    ]


# A whole search as one job, which submits the trainings from there.
#
# The project's code is sent along. The store is opened with the identity of the machine, or by a
# variable that the search file names, and the folder of the search becomes the job's outputs. A
# job that is restarted, for example because its machine was preempted, continues the search.


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
    if not path.is_file() or runs_folder(project) in path.parents:
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
        args=tuple(
            escaped(word)
            for word in (
                path.relative_to(project).as_posix(),
                *words,
                *_earlier_words(config, settings),
                f"search.name={config.name}",
                f"search.folder={OUTPUTS}",
                "--resume",
                *store,
                "--experiment",
                settings.experiment,
            )
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
    set_here = {name for names in optional for name in names if has_variable(name)}
    for name in sorted(needed | set_here):
        if name.startswith("EDGELOOP_"):
            reason = f"the variable {name} cannot be sent with a job: give it a name that does not "
            raise BadInput(reason=f"{reason}begin with EDGELOOP_")
    return {name: f"${{{name}}}" for name in sorted(needed | set_here)}


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
