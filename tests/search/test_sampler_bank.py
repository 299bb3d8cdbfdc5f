"""Choosing from members whose latency is known: a better front for fewer trainings."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from edgeloop.pareto import hypervolume, hypervolume_gain
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.members import ask, at_random, key_of
from edgeloop.search.sampler.proposer import Proposer
from edgeloop.search.sampler.surrogate import Scale, exact_improvement
from tests.search.spaces import (
    branching,
    deep,
    deep_costs,
    mixed,
    mixed_costs,
    with_another_hash_seed,
)

CORNER = (0.7, 47.0)


def screened(params, costs=deep_costs):
    return ScreenedMember(params, (None, costs(params)[1]))


def result(params, costs=deep_costs):
    return Observation(params, costs(params))


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


def members(count, space=deep, seed=0):
    rng = Random(seed)
    return [ask(space, at_random(rng)).params for _ in range(count)]


@pytest.fixture(scope="module")
def known():
    """Results and a bank of a search, to choose from."""
    return search(Proposer(deep, 3), 20)


@pytest.mark.soak
def test_knowing_the_latency_saves_trainings():
    with_bank = without = 0.0
    for seed in range(4):
        history, _ = search(Proposer(deep, seed), 25)
        with_bank += hypervolume([r.values for r in history], CORNER)
        history, proposer = [], Proposer(deep, seed)
        for number in range(35):
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
    assert Proposer(branching, 0).batch(12, history, (), bank, 5) == []


def test_without_an_open_feasible_member_nothing_is_chosen(known):
    history, _ = known
    proposer, (first, second) = Proposer(deep, 0), members(2, seed=9)
    assert proposer.choose(0, [], (), []) is None
    bank = [screened(first), ScreenedMember(second, (None, None), feasible=False)]
    assert proposer.choose(0, [], (), bank) == first
    assert proposer.choose(20, history, [first], bank) is None


def test_a_slow_member_must_promise_more(known):
    """The same network, once as quick as it is and once slower than all others."""
    history, bank = known
    best = min(history, key=lambda r: r.values[0])
    neighbours = [p for p in members(200, seed=5) if key_of(p) not in keys(history)]
    neighbours.sort(key=lambda p: sum(p[n] != best.params[n] for n in p))
    near = neighbours[0]
    slowest = max(r.values[1] for r in history)
    others = [m for m in bank if key_of(m.params) != key_of(near)]
    quick = ScreenedMember(near, (None, 1.0))
    assert Proposer(deep, 0).choose(20, history, (), [*others, quick]) == near
    slow = ScreenedMember(near, (None, 2 * slowest))
    assert Proposer(deep, 0).choose(20, history, (), [*others, slow]) != near


def test_a_choice_depends_on_its_arguments_alone(known):
    history, bank = known
    busy = Proposer(deep, 3)
    for number in (12, 17, 15):
        busy.choose(number, history[:number], [history[18].params], bank[:200])
        busy.batch(number, history[:number], (), bank[:100], 8)
    anew = [ScreenedMember(dict(m.params), m.values) for m in bank]
    fresh = Proposer(deep, 3)
    assert busy.choose(20, history, (), bank) == fresh.choose(20, history, (), anew)
    assert busy.batch(20, history, (), bank, 8) == fresh.batch(20, history, (), anew, 8)


@pytest.mark.slow
def test_another_process_with_another_hash_seed_chooses_the_same():
    program = """
import json
from edgeloop.search.sampler.proposer import Proposer
from tests.search.spaces import mixed, mixed_costs
from tests.search.test_sampler_bank import search
print(json.dumps([dict(r.params) for r in search(Proposer(mixed, 5), 16, mixed_costs)[0]]))
"""
    mine = [dict(result.params) for result in search(Proposer(mixed, 5), 16, mixed_costs)[0]]
    assert with_another_hash_seed(program) == mine


def test_pending_members_are_not_chosen_and_repel_their_like(known):
    history, bank = known
    proposer, pending = Proposer(deep, 0), []
    for number in range(20, 26):
        pending.append(proposer.choose(number, history, pending, bank))
    assert len({key_of(params) for params in pending}) == 6
    assert len({deep_costs(params)[1] for params in pending}) >= 4


def test_each_front_counts_and_a_barred_member_adds_nothing_to_its_front(known):
    """Two chips: the second takes the opposite time, so that it has a front of its own."""
    history, bank = known
    mirrored = [
        Observation(r.params, (r.values[0], r.values[1], 60 - r.values[1])) for r in history
    ]
    both = [ScreenedMember(m.params, (None, m.values[1], 60 - m.values[1])) for m in bank]
    chosen = {}
    for fronts in (((0, 1),), ((0, 2),)):
        params = Proposer(deep, 0, fronts=fronts).choose(20, mirrored, (), both)
        chosen[fronts] = key_of(params)
    assert chosen[((0, 1),)] != chosen[((0, 2),)]
    barred = [ScreenedMember(m.params, m.values, barred=(0,)) for m in both]
    proposer = Proposer(deep, 0, fronts=((0, 1), (0, 2)))
    assert key_of(proposer.choose(20, mirrored, (), barred)) == chosen[((0, 2),)]


def test_a_stopped_training_teaches_but_is_on_no_front(known):
    """A result far below the front, if it counted as such, would leave nothing to gain."""
    history, bank = known
    stopped = members(1, seed=77)[0]
    partial = Observation(stopped, (0.0001, 0.5), is_partial=True)
    scores = [
        Proposer(deep, 0).choose(21, [*history, one], (), bank)
        for one in (partial, Observation(stopped, partial.values))
    ]
    assert scores[0] != scores[1]


def test_members_that_failed_when_trained_teach_where_not_to_look():
    def evaluated(params):
        return Observation(params, deep_costs(params), feasible=params["layer0"] != "wide")

    proposer, history, bank = Proposer(deep, 0), [], []
    for number in range(36):
        batch = proposer.batch(number, history, (), bank, 16 if bank else 64)
        bank += [screened(params) for params in batch]
        history.append(evaluated(proposer.choose(number, history, (), bank)))
    late = history[16:]
    assert sum(r.feasible for r in late) > 0.8 * len(late)


def test_members_that_screening_rules_out_are_screened_less_and_less():
    """Two thirds break a limit by chance."""
    proposer, history, bank = Proposer(deep, 0), [], []
    for number in range(20):
        for params in proposer.batch(number, history, (), bank, 16 if bank else 64):
            feasible = params["layer0"] == "skip"
            bank.append(ScreenedMember(params, (None, deep_costs(params)[1]), feasible))
        history.append(result(proposer.choose(number, history, (), bank)))
    assert all(r.params["layer0"] == "skip" for r in history)
    late = bank[-80:]
    assert sum(m.feasible for m in late) > 0.5 * len(late)


def test_features_may_be_missing_and_values_may_be_infinite(known):
    history, bank = known
    rng = Random(0)
    partly = [
        ScreenedMember(
            m.params,
            (None, m.values[1] if rng.random() < 0.9 else float("inf")),
            features={"macs": 1e6 * m.values[1]} if rng.random() < 0.7 else {},
        )
        for m in bank
    ]
    failed = Observation(members(1, seed=4)[0], None)
    params = Proposer(deep, 0).choose(21, [*history, failed], (), partly)
    chosen = next(m for m in partly if m.params == params)
    assert np.isfinite(chosen.values[1])
    assert len(Proposer(deep, 0).batch(21, [*history, failed], (), partly, 8)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("dear", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_several_cheap_and_several_dear_objectives(dear):
    """Two of each kind at most; a third is known in advance."""

    def costs(params):
        error, size = deep_costs(params)
        wide = sum(value == "wide" for value in params.values()) / 12
        other = wide if dear == 1 else abs(wide - 0.4) + error
        return error, other, size

    proposer, history, bank = Proposer(deep, 0), [], []
    for number in range(24):
        for params in proposer.batch(number, history, (), bank, 16 if bank else 64):
            values = costs(params)
            bank.append(ScreenedMember(params, ((None,) * dear + values[dear:])))
        chosen = proposer.choose(number, history, (), bank)
        history.append(Observation(chosen, costs(chosen)))
    corner = (0.7, 1.2, 47.0)
    by_chance = [costs(params) for params in members(24, seed=8)]
    assert hypervolume([r.values for r in history], corner) > hypervolume(by_chance, corner)


class Plain(Scale):
    """Values as they are."""

    def forward(self, values):
        return values

    inverse = forward


def test_the_exact_improvement_is_that_of_many_samples():
    rng = np.random.default_rng(0)
    front = np.array([[1.0, 5.0], [2.0, 3.0], [4.0, 1.0]])
    worst = np.array([6.0, 6.0])
    mean, deviation = rng.uniform(0, 6, 20), rng.uniform(0.3, 1.5, 20)
    latency = rng.uniform(0, 6, 20)
    exact = exact_improvement(mean, deviation, latency, front, worst, Plain(0.0, 1.0, is_log=False))
    drawn = mean[:, None] + deviation[:, None] * rng.standard_normal(20_000)
    points = np.stack([drawn, np.repeat(latency[:, None], 20_000, axis=1)], axis=-1)
    sampled = hypervolume_gain(points, front, worst).mean(axis=1) / (5 * 5)
    assert exact == pytest.approx(sampled, rel=0.05, abs=0.003)


def test_of_a_large_bank_the_newest_come_first_and_then_the_others(known, monkeypatch):
    history, bank = known
    monkeypatch.setattr("edgeloop.search.sampler.bank._NEWEST", 5)
    open_keys = set(keys(bank)) - set(keys(history))
    history, found = list(history), []
    while chosen := Proposer(deep, 3).choose(len(history), history, (), bank):
        found.append(key_of(chosen))
        history.append(result(chosen))
        if len(found) == 20:
            break
    assert len(set(found)) == 20 and set(found) <= open_keys
    newest = [key for key in keys(bank[-5:]) if key in open_keys]
    assert set(found[: len(newest)]) == set(newest)


def test_what_left_the_view_of_a_large_bank_is_not_screened_again(known, monkeypatch):
    history, bank = known
    monkeypatch.setattr("edgeloop.search.sampler.bank._NEWEST", 5)
    added = Proposer(deep, 3).batch(len(history), history, (), bank, 16)
    assert added and not {key_of(params) for params in added} & set(keys(bank))
