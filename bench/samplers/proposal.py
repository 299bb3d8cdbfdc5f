"""How long a proposal takes, without compiles: `python -m bench sampler proposal`."""

from __future__ import annotations

import statistics
import time
from random import Random

from bench.samplers.problems import Problem, problem
from bench.samplers.samplers import POOL, screened
from bench.tables import markdown
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.members import Params, ask, at_random, key_of
from edgeloop.search.sampler.proposer import Proposer

RESULTS, BANK, PROPOSALS = 200, 3000, 10


def proposal_times() -> str:
    rows = []
    for name in ("cifar100", "hourglass"):
        first, *rest = _seconds(problem(name))
        row = (f"{statistics.median(rest):.3f}", f"{max(rest):.3f}", f"{first:.3f}")
        rows.append((name, *row, "≤ 0.5"))
    what = f"a proposal after {RESULTS} results, a bank of {BANK:,}"
    return markdown((what, "median, s", "worst, s", "first after a resume, s", "goal, s"), rows)


def _seconds(task: Problem) -> list[float]:
    """A batch and a choice each."""
    members = _members(task)
    bank: list[ScreenedMember] = [screened(task, params) for params in members]
    history = [_trained(task, params) for params in members[:RESULTS]]
    proposer, seconds = Proposer(task.space, 0), []
    for number in range(RESULTS, RESULTS + PROPOSALS):
        began = time.perf_counter()
        batch = proposer.batch(number, history, (), bank, POOL)
        taken = time.perf_counter() - began
        bank += [screened(task, params) for params in batch]
        began = time.perf_counter()
        chosen = proposer.choose(number, history, (), bank)
        seconds.append(taken + time.perf_counter() - began)
        assert chosen is not None
        history.append(_trained(task, chosen))
    return seconds


def _trained(task: Problem, params: Params) -> Observation:
    return Observation(params, task.cost(params), features=task.features(params))


def _members(task: Problem) -> list[Params]:
    rng, found = Random(0), {}
    while len(found) < BANK:
        params = ask(task.space, at_random(rng)).params
        found[key_of(params)] = params
    return list(found.values())
