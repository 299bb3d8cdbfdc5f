"""Where and how candidates are trained: processes of this search, or jobs on a compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from edgeloop._util.units import TIME_FORMS, bytes_of, seconds_of
from edgeloop.data import find_local
from edgeloop.errors import BadInput, NoSuchDataset
from edgeloop.jobs import Jobs, Resources
from edgeloop.search.base import Evaluator
from edgeloop.search.evaluators import LocalTraining, PartialTraining
from edgeloop.settings import Settings
from edgeloop.training import TrainingPlan

HERE = "here"
LONGEST_S = 24 * 3600.0


@dataclass(frozen=True)
class Trainer:
    """A plan, a dataset and a place."""

    plan: TrainingPlan
    data: str
    settings: Settings
    compute: str = HERE
    resources: Resources = field(default_factory=Resources)
    timeout_s: float | None = None
    at_once: int = 1
    group: int = 1
    pipeline: int = 1

    def evaluator(self, name: str, folder: Path) -> Evaluator:
        if self.compute == HERE:
            return LocalTraining(
                dataset_folder(self.data, self.settings.project),
                self.plan,
                self.at_once,
                folder=folder,
                project=self.settings.project,
                limit_s=self.timeout_s or LONGEST_S,
            )
        self.settings.compute_settings(self.compute)  # one that is not there is no net's fault
        return PartialTraining(
            Jobs(self.settings),
            self.data,
            self.plan,
            search=name,
            compute=self.compute,
            resources=self.resources,
            timeout_s=self.timeout_s,
            batch=self.group,
            at_once=min(self.group, self.at_once),
            steps=self.pipeline,
        )


def trainer_of(train: Mapping[str, object], data: str, settings: Settings, workers: int) -> Trainer:
    """From the keys of `train:`; those that a plan has go into the plan."""
    known = {entry.name for entry in fields(TrainingPlan)}
    plan = {key: value for key, value in train.items() if key in known and value is not None}
    try:
        chosen = TrainingPlan(**_numbers(plan))  # type: ignore[arg-type]
        resources = Resources(
            cpus=float(str(train.get("cpus", 1))),
            gpus=float(str(train.get("gpus", 0))),
            memory_bytes=bytes_of(str(train["memory"])) or 0 if "memory" in train else 0,
        )
    except (TypeError, ValueError) as error:
        raise BadInput(reason=f"objectives: train cannot be read: {error}") from None
    return Trainer(
        chosen,
        data,
        settings,
        str(train.get("compute") or HERE),
        resources,
        seconds(train["timeout"]) if train.get("timeout") else None,
        int(str(train.get("at_once") or workers)),
        int(str(train.get("group") or 1)),
        int(str(train.get("pipeline") or 1)),
    )


def dataset_folder(data: str, project: Path) -> Path:
    """A dataset of the project by its name, or any folder by its path."""
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
        raise BadInput(reason=f"{value!r} is no time: write {TIME_FORMS}")
    return found


def _numbers(plan: Mapping[str, object]) -> dict[str, object]:
    """YAML reads 1e-2 as a text; people do not."""
    rate = plan.get("learning_rate")
    return {**plan, "learning_rate": float(rate)} if isinstance(rate, str) else dict(plan)
