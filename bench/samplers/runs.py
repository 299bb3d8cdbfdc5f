"""Runs of samplers on problems, kept as lines of JSON: whoever starts it again continues.

A line has the hypervolume after each count of AT that the run reached, and the run's front, from
which the best known hypervolume of a problem without a known truth is computed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from bench.samplers.problems import problem
from bench.samplers.samplers import SAMPLERS, Trainings
from edgeloop.pareto import hypervolume, non_dominated

AT = (50, 100, 200)
SEEDS = 20
SLOW_SEEDS = {"GPSampler": 2, "qLogEHVI": 2, "qLogEHVI, exact": 4}  # up to seconds per proposal

Key = tuple[str, str, int]  # sampler, problem, seed


@dataclass(frozen=True)
class Outcome:
    sampler: str
    problem: str
    seed: int
    volumes: list[float]
    front: list[tuple[float, float]]
    repeats: int
    seconds: float

    @property
    def key(self) -> Key:
        return self.sampler, self.problem, self.seed


def read_outcomes(path: Path) -> dict[Key, Outcome]:
    """A last line that was not written to its end is left out."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            outcome = Outcome(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[outcome.key] = outcome
    return found


def one_run(key: Key, budget: int = AT[-1]) -> Outcome:
    sampler, name, seed = key
    task = problem(name)
    trainings = Trainings(task)
    began = time.perf_counter()
    SAMPLERS[sampler](trainings, seed, budget)
    seconds = time.perf_counter() - began
    costs = list(trainings.costs.values())
    volumes = [hypervolume(costs[:count], task.corner) for count in AT if count <= len(costs)]
    kept = zip(costs, non_dominated(costs), strict=True)
    front = [cost for cost, is_kept in kept if is_kept]
    return Outcome(*key, volumes, front, trainings.repeats, round(seconds, 2))


def planned(problems: Iterable[str], samplers: Iterable[str], seeds: int) -> list[Key]:
    """Seed after seed, so that a run that is cut short has the same seeds of all problems."""
    names, chosen = list(problems), list(samplers)
    return [
        (sampler, name, seed)
        for seed in range(seeds)
        for name in names
        for sampler in chosen
        if seed < SLOW_SEEDS.get(sampler, seeds) and _is_possible(sampler, name)
    ]


def _is_possible(sampler: str, name: str) -> bool:
    """BoTorch's models are of the cells; Optuna's GP knows no conditional parameters."""
    of_cells = name != "hourglass" and not name.startswith("table@")
    return of_cells or sampler not in ("GPSampler", "qLogEHVI", "qLogEHVI, exact")


def run_all(
    keys: Sequence[Key], out: Path, jobs: int, limit_s: float = float("inf"), budget: int = AT[-1]
) -> None:
    """Those that `out` has not yet. After `limit_s` nothing new is begun, and what runs is left."""
    done = read_outcomes(out)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    is_whole = not done or out.read_bytes().endswith(b"\n")
    with out.open("a", encoding="utf-8") as file:
        file.write("" if is_whole else "\n")
        for outcome in _outcomes(pool, [key for key in keys if key not in done], limit_s, budget):
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()


def _outcomes(
    pool: ProcessPoolExecutor, keys: Sequence[Key], limit_s: float, budget: int
) -> Iterator[Outcome]:
    deadline = time.monotonic() + limit_s
    running: set[Future[Outcome]] = {pool.submit(one_run, key, budget) for key in keys}
    while running and (left := deadline - time.monotonic()) > 0:
        ended, running = wait(running, min(left, 3600), FIRST_COMPLETED)
        yield from (each.result() for each in ended)
    if running:
        for process in list(pool._processes.values()):
            process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
