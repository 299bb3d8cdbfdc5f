"""How busy workers are: candidates that take one to ten times as long, taken in turn as each worker
falls free, beside rounds that wait for their slowest member.

The trainer sleeps, so that the figures are those of the loop and not of the machine. Candidates
come from a pool of screened members, whose screening is free or, in one row, compiles for real
beside the trainings. "Busy" is from the first candidate to the moment when the last one was begun:
at the end of a budget there is nothing left to give out, whichever way. The share of all the time
stands beside it.

The second table is what a candidate costs before its training: the sampler's time, and that of the
CPUs for the members that are compiled.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Lock

from bench.tables import markdown
from edgeloop._util.system import announced_niceness
from edgeloop.models.catalog import Candidates
from edgeloop.search.base import Evaluation
from edgeloop.search.campaign import NICENESS
from edgeloop.search.config import SearchConfig, config_of
from edgeloop.search.evaluators import EvaluatorGroup, Screening
from edgeloop.search.evaluators.screening import ScreeningPlan
from edgeloop.search.evaluators.threads import PoolEvaluator, Request
from edgeloop.search.loop import SearchLoop
from edgeloop.search.nets.spaces import Space, find_space
from edgeloop.search.study import Study, open_storage
from edgeloop.store import SqliteLocation, open_store

SHORTEST_S, SPREAD = 2.0, 10
WORKERS, BUDGET = (4, 8), 40
GOAL = 0.95
FEW, MANY, POOL = 2, 18, 32
HOURGLASS = {
    "base_channels": (8, 12, 16, 24),
    "stems": (2, 4),
    "kernels": ("conv3x3", "conv5x5"),
    "most_layers": 2,
}


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
    spent = _Spent()
    for workers in WORKERS:
        ways: dict[str, dict[str, int]] = {
            "as workers fall free": {},
            "the same, beside compiles": {"compiled": 1},
            "in rounds": {"batch": workers},
        }
        for way, options in ways.items():
            is_compiled = bool(options.pop("compiled", 0))
            with spent.noted():
                times = _searched(_config(workers, options), workers, is_compiled)
            share = times.share_while_there_was_work(workers)
            reached = "reached" if share >= GOAL else "missed"
            shares = [f"{100 * found:.1f} %" for found in (share, times.share(workers))]
            rows.append((workers, way, *shares, f"{times.total_s:.1f}", "" if options else reached))
    headings = (
        *("workers", f"{BUDGET} candidates of 1 to {SPREAD} ×", "busy", "busy, end included"),
        *("seconds", f"goal: {100 * GOAL:g} %"),
    )
    return f"{markdown(headings, rows)}\n\n{_costs(spent)}"


class _Spent:
    """CPU seconds of every call of the sampler: another program on the same CPUs does not count."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"batch": [], "choose": []}

    @contextmanager
    def noted(self) -> Iterator[None]:
        before = {name: getattr(Study, name) for name in self.seconds}
        for name, real in before.items():
            setattr(Study, name, self._timed(name, real))
        try:
            yield
        finally:
            for name, real in before.items():
                setattr(Study, name, real)

    def _timed(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def timed(*arguments: object) -> object:
            began = time.thread_time()
            try:
                return real(*arguments)
            finally:
                self.seconds[name].append(time.thread_time() - began)

        return timed


def _costs(spent: _Spent) -> str:
    few, many = _screening_s(FEW), _screening_s(MANY)
    member_s = (many - few) / (MANY - FEW)
    rows = [
        (f"sampler, {name}", f"{median(found):.3f}", f"{max(found):.3f}")
        for name, found in spent.seconds.items()
    ]
    rows.append(("a member: build, export, quantize, compile", f"{member_s:.2f}", ""))
    whole = POOL * member_s / 2 + sum(median(found) for found in spent.seconds.values())
    rows.append((f"a candidate with {POOL} members, on two idle cores", f"{whole:.1f}", ""))
    return markdown(("CPU seconds", "median", "most"), rows)


def _screening_s(count: int) -> float:
    """CPU seconds of so many members, with the start of two processes each."""
    screening, began = _screening(), _children_s()
    space = find_space("hourglass", HOURGLASS)
    try:
        for seed in range(count):
            screening.send(space.sample(seed, (1, 3, 64, 64), 19))
        left = count
        while left:
            left -= len(screening.collect(1.0))
    finally:
        screening.close()
    return _children_s() - began


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _screening() -> EvaluatorGroup:
    wanted = ("params", "chip_latency_ms")
    return EvaluatorGroup([Screening(ScreeningPlan(wanted, with_counts=True)) for _ in range(2)])


def _searched(config: SearchConfig, workers: int, is_compiled: bool) -> Times:
    with TemporaryDirectory() as folder, announced_niceness(NICENESS):
        location = SqliteLocation(Path(folder))
        hourglass = find_space("hourglass", HOURGLASS)
        space = hourglass if is_compiled else Space("wide.py:build", _space)
        study = Study.open(config, space, open_storage(location), False)
        store = open_store(location)
        cheap = _screening() if is_compiled else Counted()
        uneven = Uneven(workers)
        try:
            table = Candidates(store.models("uneven"), "uneven")
            found = SearchLoop(config, study, [cheap, uneven], table).run()
            assert len(found) == BUDGET
        finally:
            uneven.close()
            cheap.close()
            store.close()
        return replace(uneven.times)


def _config(workers: int, options: dict[str, int]) -> SearchConfig:
    search = {"name": "uneven", "space": "wide.py:build", "size": 64, "budget": BUDGET}
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
