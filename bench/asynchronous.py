"""How busy workers are: candidates that take one to ten times as long, taken in turn as each worker
falls free, beside rounds that wait for their slowest member.

The evaluator sleeps, so that the figures are those of the loop and not of the machine. "Busy" is
from the first candidate to the moment when the last one was begun: at the end of a budget there is
nothing left to give out, whichever way. The share of all the time stands beside it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from bench.tables import markdown
from edgeloop.architectures import Space
from edgeloop.models import Candidates
from edgeloop.search.base import Evaluation
from edgeloop.search.config import SearchConfig, config_of
from edgeloop.search.evaluators.threads import PoolEvaluator, Request
from edgeloop.search.loop import SearchLoop
from edgeloop.search.storage import open_storage
from edgeloop.search.study import Study
from edgeloop.store import SqliteLocation, open_store

SHORTEST_S, SPREAD = 0.6, 10
WORKERS, BUDGET = (4, 8), 60
GOAL = 0.9


@dataclass
class Times:
    """When each candidate was worked on, from and to."""

    spans: list[tuple[float, float]]

    def share(self, workers: int) -> float:
        """Of all the time, the end included, when there is nothing left to begin."""
        return sum(end - begin for begin, end in self.spans) / (workers * self.total_s)

    def share_while_there_was_work(self, workers: int) -> float:
        """Until the last one was begun."""
        began = min(begin for begin, _ in self.spans)
        until = max(begin for begin, _ in self.spans)
        worked = sum(min(end, until) - begin for begin, end in self.spans)
        return worked / (workers * (until - began))

    @property
    def total_s(self) -> float:
        return max(end for _, end in self.spans) - min(begin for begin, _ in self.spans)


class Uneven(PoolEvaluator):
    """Trains for a time that the architecture decides, as it does in life."""

    gives, cost, conditions = ("val_iou",), 1, "uneven"

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.times, self._noting = Times([]), Lock()

    def _work(self, request: Request) -> Evaluation:
        chance = random.Random(request.arch.id)
        began = time.monotonic()
        time.sleep(SHORTEST_S * chance.uniform(1, SPREAD))
        with self._noting:
            self.times.spans.append((began, time.monotonic()))
        return Evaluation(request.arch.id, {"val_iou": chance.random()})


class Counted(PoolEvaluator):
    gives, cost, conditions = ("params",), 0, "counted"

    def _work(self, request: Request) -> Evaluation:
        return Evaluation(request.arch.id, {"params": float(str(request.arch.params["width"]))})


def run() -> str:
    rows = []
    for workers in WORKERS:
        ways = {"as workers fall free": {}, "in rounds": {"batch": workers}}
        for way, options in ways.items():
            times = _searched(_config(workers, options), workers)
            share = times.share_while_there_was_work(workers)
            reached = "reached" if share >= GOAL else "missed"
            shares = [f"{100 * found:.1f} %" for found in (share, times.share(workers))]
            rows.append((workers, way, *shares, f"{times.total_s:.1f}", "" if options else reached))
    headings = (
        *("workers", f"{BUDGET} candidates of 1 to {SPREAD} ×", "busy", "busy, end included"),
        *("seconds", "goal: 90 %"),
    )
    return markdown(headings, rows)


def _searched(config: SearchConfig, workers: int) -> Times:
    with TemporaryDirectory() as folder:
        location = SqliteLocation(Path(folder))
        study = Study.open(config, Space("wide.py:build", _space), open_storage(location), False)
        store = open_store(location)
        counted, uneven = Counted(), Uneven(workers)
        try:
            table = Candidates(store.models("uneven"), "uneven")
            found = SearchLoop(config, study, [counted, uneven], table).run()
            assert len(found) == BUDGET
        finally:
            uneven.close()
            counted.close()
            store.close()
        return replace(uneven.times)


def _config(workers: int, options: dict[str, int]) -> SearchConfig:
    search = {"name": "uneven", "space": "wide.py:build", "size": 8, "budget": BUDGET}
    document = {
        "search": {**search, "workers": workers, **options},
        "objectives": {"params": {}, "val_iou": {}},
        "data": "working/none",
    }
    return config_of(document, "uneven.yaml")


def _space(trial: object, shape: object, classes: int) -> object:
    from torch import nn

    trial.suggest_int("width", 1, 64)  # type: ignore[attr-defined]
    for layer in range(6):
        trial.suggest_categorical(f"layer{layer}", ["a", "b", "c"])  # type: ignore[attr-defined]
    return nn.Identity()
