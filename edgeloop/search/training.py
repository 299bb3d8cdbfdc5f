"""Training the candidates of a search, here or as jobs on a compute; and, afterwards, the full
training of its front (`train-pareto`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from edgeloop._util.values import TIME_FORMS, bytes_of, seconds_of
from edgeloop.errors import BadInput, NoSuchDataset
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.computes.waiting import Resources
from edgeloop.jobs.spec import ENVIRONMENT
from edgeloop.models.catalog import Candidates
from edgeloop.node.ledger import find_local
from edgeloop.node.ticket import Environment
from edgeloop.search.base import Evaluation, Evaluator
from edgeloop.search.config import SearchConfig
from edgeloop.search.evaluators import LocalTraining, TrainingJobs
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.device import usable_cards
from edgeloop.search.nets.many import USUAL_AT_ONCE
from edgeloop.search.nets.plan import TrainingPlan
from edgeloop.search.results import copy_atomic, publish
from edgeloop.search.storage import PARETO, patiently
from edgeloop.settings import Settings
from edgeloop.store import Record, Value
from edgeloop.tasks import open_task
from edgeloop.workspace import Workspace

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
            return LocalTraining(
                dataset_folder(self.data, self.settings.project),
                self.plan,
                self.at_once or self.workers,
                folder=folder,
                project=self.settings.project,
                limit_s=self.timeout_s or LONGEST_S,
                cards=cards,
                per_card=each,
            )
        self.settings.compute_settings(
            self.compute
        )  # an unknown compute is not a fault of a candidate
        return TrainingJobs(
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
    known = {"trainers": busy, "gpu": reported if here is None else here}
    return {name: round(share, 3) for name, share in known.items() if share is not None}


def trainer_of(train: Mapping[str, object], data: str, settings: Settings, workers: int) -> Trainer:
    """From the keys of `train:`, most of which are those of a training plan."""
    known = {entry.name for entry in fields(TrainingPlan)}
    plan = {key: value for key, value in train.items() if key in known and value is not None}
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
        str(train.get("compute") or HERE),
        resources,
        seconds(train["timeout"]) if train.get("timeout") else None,
        int(str(train["at_once"])) if train.get("at_once") else None,
        int(str(train.get("group") or 1)),
        int(str(train.get("pipeline") or 1)),
        environment,
        workers,
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
    found = seconds_of(str(value))
    if not found:
        raise BadInput(reason=f"{value!r} is not a time: write {TIME_FORMS}")
    return found


@dataclass(frozen=True)
class Retrained:
    """A model of the front: its score after partial and after full training, or an error."""

    arch: Architecture
    partial_iou: float | None
    full_iou: float | None = None
    full_f1: float | None = None
    error: str = ""


def front_in(folder: Path) -> list[Architecture]:
    """The architectures of the front in the folder of a search."""
    found = sorted((folder / PARETO).glob("id_*.json"))
    if not found:
        reason = f"there is no front in {folder}: run the search first, or name its folder"
        raise BadInput(reason=reason)
    return [Architecture.load(path) for path in found]


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
    known = {row.key: row for row in patiently(lambda: workspace.find(()))}
    training = trainer.evaluator(f"{name}-{FULL}", folder / FULL / "training")
    done: list[Retrained] = []
    try:
        for arch in front.values():
            training.send(arch)
        while len(done) < len(front):
            for evaluation in training.collect(LOOK_S):
                arch = front[evaluation.arch_id]
                row = known.get(arch.id)
                item = _recorded(arch, evaluation, row, table, training.conditions)
                if not evaluation.error:
                    _keep(arch, evaluation, folder, workspace if is_published else None, item)
                done.append(item)
                hear(item)
    finally:
        training.close()
    return sorted(done, key=lambda item: item.full_iou or 0.0)


def _recorded(
    arch: Architecture,
    evaluation: Evaluation,
    row: Record | None,
    table: Candidates,
    conditions: str,
) -> Retrained:
    partial = row.values.get("val_iou") if row is not None else None
    item = Retrained(arch, float(partial) if isinstance(partial, int | float) else None)
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
    publish(workspace, arch, FULL, target, evaluation.values, columns, FULL)


def summary(items: Sequence[Retrained]) -> list[dict[str, object]]:
    return [
        {
            "name": item.arch.id,
            "val_iou": item.partial_iou,
            "final_val_iou": item.full_iou,
            "final_val_f1": item.full_f1,
            "error": item.error,
        }
        for item in items
    ]
