"""Our sampler beside Optuna's TPE and NSGA-II and plain Pareto mutation, by hypervolume.

Only distinct evaluations count: whoever proposes a member again is not charged for it. The
reference point is the worst of the whole table in each objective, and hypervolume is a share of the
true one (on the toy space, whose truth nobody knows, a share of the front of all runs together).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import Any

import numpy as np

from bench.sampler_problems import Problem, problem
from bench.tables import markdown
from edgeloop.pareto import hypervolume, non_dominated
from edgeloop.search.base import Observation
from edgeloop.search.sampler.mutation import Draft, at_random, mutated, replayed
from edgeloop.search.sampler.proposer import Proposer
from edgeloop.search.sampler.trial import ask, key_of

AT = (50, 100, 200, 300)
SEEDS = 20
OTHERS_SEEDS = 6
OTHERS = ("cifar10", "imagenet", "cifar100:2", "cifar100:3", "cifar100:5")
LOADED = 500
MISSES = 200

Points = list[tuple[float, float]]


def run() -> str:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        main = _curves(pool, "cifar100", SEEDS)
        others = {name: _curves(pool, name, OTHERS_SEEDS) for name in (*OTHERS, "hourglass")}
    parts = [
        f"CIFAR-100 error × latency of all 15,625 NAS-Bench-201 cells, {SEEDS} seeds:",
        _table(main),
        f"Elsewhere, ours less the best of the others, {OTHERS_SEEDS} seeds:",
        _differences(others),
        _overheads(),
    ]
    return "\n\n".join(parts)


def ours(task: Problem, seed: int, budget: int) -> Points:
    proposer, history = Proposer(task.space, seed), []
    for number in range(budget):
        params = proposer.propose(number, history)
        assert params is not None
        history.append(Observation(params, task.cost(params)))
    assert len({key_of(result.params) for result in history}) == budget, "a repeat"
    return [result.values for result in history]


def plain(task: Problem, seed: int, budget: int) -> Points:
    """One parameter of a Pareto parent drawn anew, no repeats, after ten random members."""
    rng, found, parents, misses = Random(seed), {}, [], 0
    while len(found) < budget:
        policy = at_random(rng)
        if parents and misses < MISSES:  # a front may have no neighbours left
            policy = replayed(mutated(rng.choice(parents), 1, rng).params, rng)
        trial = ask(task.space, policy)
        key = key_of(trial.params)
        misses = misses + 1 if key in found else 0
        if key in found:
            continue
        draft = Draft(trial.params, trial.distributions)
        found[key] = draft, task.cost(draft.params)
        if len(found) >= 10:
            front = non_dominated([cost for _, cost in found.values()])
            drafts = [draft for draft, _ in found.values()]
            parents = [draft for draft, kept in zip(drafts, front, strict=True) if kept]
    return [cost for _, cost in found.values()]


def optuna(kind: str, task: Problem, seed: int, budget: int) -> Points:
    import warnings

    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    samplers = optuna.samplers
    if kind == "tpe":
        sampler = samplers.TPESampler(multivariate=True, n_startup_trials=20, seed=seed)
    elif kind == "tpe, grouped":
        sampler = samplers.TPESampler(multivariate=True, group=True, n_startup_trials=20, seed=seed)
    else:
        sampler = samplers.NSGAIISampler(population_size=20, seed=seed)
    study = optuna.create_study(directions=["minimize"] * 2, sampler=sampler)
    found: dict[str, tuple[float, float]] = {}
    for _ in range(20 * budget):
        trial = study.ask()
        task.space(trial)
        cost = task.cost(trial.params)
        study.tell(trial, cost)
        found.setdefault(key_of(trial.params), cost)
        if len(found) == budget:
            break
    return list(found.values())


SAMPLERS = {
    "NSGA-II, population 20": partial(optuna, "nsga"),
    "Pareto mutation, no repeats": plain,
    "TPE, multivariate": partial(optuna, "tpe"),
    "ours": ours,
}


def _points(name: str, sampler: str, seed: int) -> Points:
    if (name, sampler) == ("hourglass", "TPE, multivariate"):  # conditional: needs its groups
        return optuna("tpe, grouped", problem(name), seed, AT[-1])
    return SAMPLERS[sampler](problem(name), seed, AT[-1])


def _curves(pool: ProcessPoolExecutor, name: str, seeds: int) -> dict[str, np.ndarray]:
    """For each sampler (seeds, points of AT)."""
    found = {
        sampler: [pool.submit(_points, name, sampler, seed) for seed in range(seeds)]
        for sampler in SAMPLERS
    }
    runs = {sampler: [run.result() for run in each] for sampler, each in found.items()}
    task = problem(name)
    everything = [point for each in runs.values() for points in each for point in points]
    best = task.best or hypervolume(everything, task.corner)
    return {
        sampler: np.array(
            [[hypervolume(points[:count], task.corner) / best for count in AT] for points in each]
        )
        for sampler, each in runs.items()
    }


def _mean(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return curves.mean(axis=0), curves.std(axis=0, ddof=1) / len(curves) ** 0.5


def _lead(curves: Mapping[str, np.ndarray], rival: str) -> list[str]:
    """Ours less a rival, ± the standard error of the difference."""
    (mine, my_error), (its, its_error) = _mean(curves["ours"]), _mean(curves[rival])
    errors = np.hypot(my_error, its_error)
    return [f"{lead:+.4f} ± {error:.4f}" for lead, error in zip(mine - its, errors, strict=True)]


def _table(curves: Mapping[str, np.ndarray]) -> str:
    rows: list[list[Any]] = []
    for sampler, each in curves.items():
        cells = [f"{mean:.4f} ± {error:.4f}" for mean, error in zip(*_mean(each), strict=True)]
        rows.append([sampler, *cells])
    rows += [[f"ours less {rival}", *_lead(curves, rival)] for rival in curves if rival != "ours"]
    return markdown(("hypervolume ÷ true, after", *map(str, AT)), rows)


def _differences(others: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    rows = []
    for name, curves in others.items():
        means = {sampler: each.mean(axis=0) for sampler, each in curves.items()}
        row = [name]
        for place in range(len(AT)):
            rivals = (sampler for sampler in means if sampler != "ours")
            best = max(rivals, key=lambda sampler: means[sampler][place])
            row.append(f"{means['ours'][place]:.4f} ({_lead(curves, best)[place]})")
        rows.append(row)
    return markdown(("problem", *map(str, AT)), rows)


def _overheads() -> str:
    rows = []
    for name in ("cifar100", "hourglass"):
        task, random = problem(name), Random(0)
        history = _random_history(task, random)
        proposer, seconds = Proposer(task.space, 0), []
        for number in range(LOADED, LOADED + 10):
            began = time.perf_counter()
            params = proposer.propose(number, history)
            seconds.append(time.perf_counter() - began)
            history.append(Observation(params, task.cost(params)))
        rest = sorted(seconds[1:])
        cells = (f"{rest[len(rest) // 2]:.3f}", f"{rest[-1]:.3f}", f"{seconds[0]:.3f}")
        rows.append((name, *cells, "< 0.2"))
    headings = ("a proposal after 500 results", "median, s", "worst, s", "first after a resume, s")
    return markdown((*headings, "goal, s"), rows)


def _random_history(task: Problem, rng: Random) -> list[Observation]:
    found = {}
    while len(found) < LOADED:
        params = ask(task.space, at_random(rng)).params
        found.setdefault(key_of(params), Observation(params, task.cost(params)))
    return list(found.values())
