"""The samplers of the benchmark: ours, mutation and random search; `rivals` has those of libraries.

A sampler is given a problem, a seed and a budget, and returns the members that it had trained, in
order. Only distinct ones count; how often it asked for one again is counted beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from bench.samplers import rivals
from bench.samplers.problems import Problem
from edgeloop.pareto import non_dominated
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.members import Draft, ask, at_random, key_of, mutated, replayed
from edgeloop.search.sampler.proposer import Proposer

POOL = 32  # candidates that are compiled for each one that is trained
FIRST_POOL = 4 * POOL
MISSES = 200


@dataclass
class Trainings:
    """The distinct members that a sampler had trained, with their costs."""

    task: Problem
    costs: dict[str, tuple[float, float]] = field(default_factory=dict)
    repeats: int = 0

    def train(self, params: Mapping[str, Any]) -> tuple[float, float]:
        key = key_of(params)
        if key in self.costs:
            self.repeats += 1
        else:
            self.costs[key] = self.task.cost(params)
        return self.costs[key]

    @property
    def count(self) -> int:
        return len(self.costs)


Sampler = Callable[[Trainings, int, int], None]  # seed and budget


def ours(trainings: Trainings, seed: int, budget: int) -> None:
    """As a search with one worker: a batch is compiled, then one of all compiled is trained."""
    task, proposer = trainings.task, Proposer(trainings.task.space, seed)
    history: list[Observation] = []
    bank: list[ScreenedMember] = []
    for number in range(budget):
        batch = proposer.batch(number, history, (), bank, POOL if number else FIRST_POOL)
        bank += [screened(task, params) for params in batch]
        chosen = proposer.choose(number, history, (), bank)
        if chosen is None:
            return
        costs = trainings.train(chosen)
        history.append(Observation(chosen, costs, features=task.features(chosen)))


def screened(task: Problem, params: Mapping[str, Any]) -> ScreenedMember:
    return ScreenedMember(params, (None, task.cost(params)[1]), features=task.features(params))


def ours_without_pool(trainings: Trainings, seed: int, budget: int) -> None:
    proposer, history = Proposer(trainings.task.space, seed), []
    for number in range(budget):
        params = proposer.propose(number, history)
        if params is None:
            return
        history.append(Observation(params, trainings.train(params)))


def mutation(trainings: Trainings, seed: int, budget: int) -> None:
    """One parameter of a Pareto parent drawn anew, no repeats, after ten random members."""
    task, rng, parents, misses = trainings.task, Random(seed), [], 0
    drafts: dict[str, Draft] = {}
    while trainings.count < budget:
        policy = at_random(rng)
        if parents and misses < MISSES:  # a front may have no neighbours left
            policy = replayed(mutated(rng.choice(parents), 1, rng).params, rng)
        trial = ask(task.space, policy)
        key = key_of(trial.params)
        misses = misses + 1 if key in drafts else 0
        if key in drafts:
            continue
        drafts[key] = Draft(trial.params, trial.distributions)
        trainings.train(trial.params)
        if trainings.count >= 10:
            front = non_dominated(list(trainings.costs.values()))
            parents = [draft for draft, kept in zip(drafts.values(), front, strict=True) if kept]


def random(trainings: Trainings, seed: int, budget: int) -> None:
    rng = Random(seed)
    for _ in range(50 * budget):
        if trainings.count == budget:
            break
        params = ask(trainings.task.space, at_random(rng)).params
        if key_of(params) not in trainings.costs:
            trainings.train(params)


SAMPLERS: dict[str, Sampler] = {
    "ours": ours,
    "ours, no pool": ours_without_pool,
    "TPE": partial(rivals.optuna, "tpe"),
    "NSGA-II": partial(rivals.optuna, "nsga2"),
    "GPSampler": partial(rivals.optuna, "gp"),
    "mutation": mutation,
    "random": random,
    "qLogEHVI": partial(rivals.botorch, knows_latency=False),
    "qLogEHVI, exact": partial(rivals.botorch, knows_latency=True),
}
KNOW_LATENCY = ("ours", "qLogEHVI, exact")
