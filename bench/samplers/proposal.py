"""How long a proposal takes, without compiles: `python -m bench sampler proposal`."""

from __future__ import annotations

import statistics
import time
from random import Random

from bench.samplers.cells import CELLS
from bench.samplers.problems import Problem, problem
from bench.samplers.samplers import POOL, screened
from bench.tables import markdown
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.members import Params, ask, at_random, key_of
from edgeloop.search.sampler.proposer import Proposer

SIZES = ((200, 3_000), (5_000, 50_000))  # results, members of the bank
PROPOSALS = 10


def proposal_times() -> str:
    rows = []
    for name in ("cifar100", "hourglass"):
        for results, bank in SIZES:
            if name == "cifar100" and bank > len(CELLS):
                continue  # it has no more
            first, *rest = _seconds(problem(name), results, bank)
            row = (f"{statistics.median(rest):.3f}", f"{max(rest):.3f}", f"{first:.3f}")
            rows.append((name, f"{results:,}", f"{bank:,}", *row, "≤ 0.5"))
    what = ("a proposal", "results", "bank", "processor, s", "worst, s")
    return markdown((*what, "first after a resume, s", "goal, s"), rows)


def _seconds(task: Problem, results: int, size: int) -> list[float]:
    """Processor time of a batch and a choice each."""
    members = _members(task, size)
    bank: list[ScreenedMember] = [screened(task, params) for params in members]
    history = [_trained(task, params) for params in members[:results]]
    proposer, seconds = Proposer(task.space, 0), []
    for number in range(results, results + PROPOSALS):
        began = time.process_time()
        batch = proposer.batch(number, history, (), bank, POOL)
        taken = time.process_time() - began
        bank += [screened(task, params) for params in batch]
        began = time.process_time()
        chosen = proposer.choose(number, history, (), bank)
        seconds.append(taken + time.process_time() - began)
        assert chosen is not None
        history.append(_trained(task, chosen))
    return seconds


def _trained(task: Problem, params: Params) -> Observation:
    return Observation(params, task.cost(params), features=task.features(params))


def _members(task: Problem, count: int) -> list[Params]:
    rng, found = Random(0), {}
    while len(found) < count:
        params = ask(task.space, at_random(rng)).params
        found[key_of(params)] = params
    return list(found.values())
