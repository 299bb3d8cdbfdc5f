"""Full training of what a search found: the front's nets, longer, beside their partial results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeloop.architectures import Architecture
from edgeloop.errors import BadInput
from edgeloop.models import Candidates
from edgeloop.search.base import Answer
from edgeloop.search.loop import patiently
from edgeloop.search.outputs import PARETO, copy_atomic, publish
from edgeloop.search.training import Trainer
from edgeloop.store import Record, Value
from edgeloop.workspace import Workspace

LOOK_S = 1.0
FULL = "full"


@dataclass(frozen=True)
class Retrained:
    """One net of the front: its partial score, its full one, or why there is none."""

    arch: Architecture
    partial_iou: float | None
    full_iou: float | None = None
    full_f1: float | None = None
    error: str = ""


def front_in(folder: Path) -> list[Architecture]:
    """The architectures that a search left in its folder."""
    found = sorted((folder / PARETO).glob("id_*.json"))
    if not found:
        reason = f"There is no front in {folder}: run the search first, or name its folder"
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
    """Train every net of the front; what is there already is not trained again."""
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
            for answer in training.collect(LOOK_S):
                arch = front[answer.arch_id]
                item = _noted(arch, answer, known.get(arch.id), table, training.conditions)
                if not answer.error:
                    _keep(arch, answer, folder, workspace if is_published else None, item)
                done.append(item)
                hear(item)
    finally:
        training.close()
    return sorted(done, key=lambda item: item.full_iou or 0.0)


def _noted(
    arch: Architecture, answer: Answer, row: Record | None, table: Candidates, conditions: str
) -> Retrained:
    partial = row.values.get("val_iou") if row is not None else None
    item = Retrained(arch, float(partial) if isinstance(partial, int | float) else None)
    if answer.error:
        return dataclasses.replace(item, error=answer.error)
    columns: dict[str, Value] = {"final_val_iou": float(answer.values["val_iou"])}
    patiently(lambda: table.note(arch.id, arch.canonical, conditions, answer.values, columns))
    return dataclasses.replace(
        item, full_iou=answer.values["val_iou"], full_f1=answer.values.get("val_f1")
    )


def _keep(
    arch: Architecture,
    answer: Answer,
    folder: Path,
    workspace: Workspace | None,
    item: Retrained,
) -> None:
    """The net beside the search, and as a model of its own, so that runners measure it."""
    target = folder / FULL / f"{arch.id}.onnx"
    target.parent.mkdir(parents=True, exist_ok=True)
    copy_atomic(answer.files["model.onnx"], target)
    if workspace is None:
        return
    columns: dict[str, Value] = {"final_val_iou": float(answer.values["val_iou"])}
    if item.partial_iou is not None:
        columns["val_iou"] = item.partial_iou
    if "training_time" in answer.values:
        columns["training_time"] = float(answer.values["training_time"])
    publish(workspace, arch, FULL, target, answer.values, columns, FULL)


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
