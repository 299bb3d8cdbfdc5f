"""Choosing from members whose latency is known: a better front for fewer trainings."""

from __future__ import annotations

import pytest

from edgeloop.pareto import hypervolume
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.proposer import Proposer
from edgeloop.search.sampler.trial import key_of
from tests.search.spaces import branching, deep, deep_costs, mixed, mixed_costs

CORNER = (0.7, 47.0)


def screened(params, costs=deep_costs):
    return ScreenedMember(params, (None, costs(params)[1]), features={"size": costs(params)[1]})


def result(params, costs=deep_costs):
    return Observation(params, costs(params), features={"size": costs(params)[1]})


def search(proposer, budget, costs=deep_costs, pool=16, history=(), bank=()):
    history, bank = list(history), list(bank)
    for number in range(len(history), budget):
        count = pool if bank else 4 * pool
        bank += [screened(p, costs) for p in proposer.batch(number, history, (), bank, count)]
        chosen = proposer.choose(number, history, (), bank)
        if chosen is None:
            break
        history.append(result(chosen, costs))
    return history, bank


def keys(members):
    return [key_of(member.params) for member in members]


@pytest.mark.slow
def test_knowing_the_latency_saves_half_of_the_trainings():
    with_bank, without = 0.0, 0.0
    for seed in range(3):
        history, _ = search(Proposer(deep, seed), 25)
        with_bank += hypervolume([r.values for r in history], CORNER)
        history, proposer = [], Proposer(deep, seed)
        for number in range(25):
            history.append(result(proposer.propose(number, history)))
        without += hypervolume([r.values for r in history], CORNER)
    assert with_bank > without


def test_nothing_is_screened_or_chosen_twice():
    history, bank = search(Proposer(mixed, 1), 16, mixed_costs)
    assert len(set(keys(history))) == 16
    assert len(set(keys(bank))) == len(bank) == 16 * 19


def test_a_small_space_is_exhausted():
    history, bank = search(Proposer(branching, 0), 50, lambda p: (len(p), float(len(str(p)))))
    assert len(set(keys(history))) == len(set(keys(bank))) == len(history) == len(bank) == 11
