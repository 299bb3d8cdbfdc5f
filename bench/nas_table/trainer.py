"""Trains groups of members until the time is up: `python -m bench.nas_table.trainer`, started by
`python -m bench nas_table`. Several of them share a GPU, and within each several trainings do.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from threading import Timer

from bench.nas_table.places import FIRST_SEED, TESTED, TRAINED, Places, TrainingTask, groups
from edgeloop.search.nets.plan import HISTORY, TrainingPaths, TrainingPlan, TrainingResult
from edgeloop.search.nets.train import TrainingItem, train_many

EPOCHS = 27
_MOST_WAITING = 40


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--validation", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--at-once", type=int, required=True)
    parser.add_argument("--until", type=float, required=True, help="no group begins after this")
    parser.add_argument("--end", type=float, required=True, help="the process ends")
    given = parser.parse_args()
    watchdog = Timer(max(0.1, given.end - time.time()), os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()
    places = Places(given.results, given.scratch)
    for number, group in enumerate(places.plan()):
        while _waiting(places) > _MOST_WAITING and time.time() < given.until:
            time.sleep(0.5)
        if time.time() >= given.until:
            break
        if places.claim(f"group{number}"):
            _train(places, group, given)
    watchdog.cancel()


def _waiting(places: Places) -> int:
    """Models that nobody has tested yet: they are lost when the run ends."""
    return sum(1 for _ in places.models.glob("*/ready"))


def wanted(places: Places, members: int | None = None) -> list[list[TrainingTask]]:
    """The trainings that are left: those that are not there, then those whose models were lost
    before they were tested, and the second seeds at last."""
    trained, tested = places.done(TRAINED), places.done(TESTED)
    lost = [task for group in groups() for task in group if task.name in trained - tested]
    again = [lost[start : start + 12] for start in range(0, len(lost), 12)]
    left = [[task for task in group if task.name not in trained] for group in groups()]
    new = [group for group in left if group and group[0].seed == FIRST_SEED]
    second = [group for group in left if group and group[0].seed != FIRST_SEED]
    if members is not None:  # a few of the smallest, to see that it works
        few = [min(group, key=lambda task: task.params["layers"]) for group in new]
        return [[task] for task in sorted(few, key=_size)[:members]]
    return [*new, *again, *second]


def _size(task: TrainingTask) -> float:
    return float(task.params["base_channels"]) * float(task.params["factor"])  # type: ignore[arg-type]


def _train(places: Places, group: list[TrainingTask], given: argparse.Namespace) -> None:
    tasks = {places.models / task.name: task for task in group}
    for seed in sorted({task.seed for task in group}):
        plan = TrainingPlan(
            epochs=EPOCHS,
            images=given.images,
            validation_images=given.validation,
            batch=given.batch,
            seed=seed,
            checkpoint_s=3600,
        )
        cache = places.scratch / "prepared"
        items = [
            TrainingItem(task.arch, TrainingPaths(places.faces, out, cache))
            for out, task in tasks.items()
            if task.seed == seed
        ]
        for item, outcome in train_many(items, plan, at_once=given.at_once):
            out = item.paths.out
            task = tasks[out]
            if isinstance(outcome, TrainingResult):
                places.add(TRAINED, _line(task, outcome, out))
                (out / "ready").mkdir()
            else:
                print(f"{task.name}: {outcome}", flush=True)


def _line(task: TrainingTask, result: TrainingResult, folder: Path) -> dict[str, object]:
    epochs = [json.loads(line) for line in (folder / HISTORY).read_text().splitlines()]
    return {
        "params": dict(task.params),
        "arch_id": task.arch.id,
        "seed": task.seed,
        "parameters": result.parameters,
        "steps": result.steps,
        "best_epoch": result.best_epoch,
        "seconds": result.seconds,
        "device": result.device,
        "f1": [round(epoch["f1"], 5) for epoch in epochs],
        "miou": [round(epoch["miou"], 5) for epoch in epochs],
        "loss": [round(epoch["loss"], 4) for epoch in epochs],
    }


if __name__ == "__main__":
    main()
