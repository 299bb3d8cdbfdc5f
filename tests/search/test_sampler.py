"""Our sampler: no repeats, the same again after a resume, and a better front than chance."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeloop.errors import BadInput
from edgeloop.pareto import hypervolume
from edgeloop.search.base import Observation
from edgeloop.search.sampler.members import ask, at_random, key_of
from edgeloop.search.sampler.proposer import Proposer, parents_of
from tests.search.spaces import (
    branching,
    deep,
    deep_costs,
    mixed,
    mixed_costs,
    spaces,
    with_another_hash_seed,
)

NAN, INF = float("nan"), float("inf")
BROKEN = [None, (NAN, 0.0), (0.0, INF)]
CORNER = (0.7, 47.0)
SOAK = pytest.mark.soak


def search(proposer, evaluate, budget, history=()):
    history = list(history)
    for number in range(len(history), budget):
        params = proposer.propose(number, history)
        if params is None:
            break
        history.append(evaluate(params))
    return history


def costed(params):
    return Observation(params, mixed_costs(params))


def keys(history):
    return [key_of(result.params) for result in history]


@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(spaces, st.integers(0, 2**16))
def test_nothing_is_proposed_twice_whatever_the_space_and_the_results(space, seed):
    proposer, rng = Proposer(space, seed, start=4), Random(seed)
    history, pending, proposed = [], [], set()
    for number in range(12):
        params = proposer.propose(number, history, pending)
        if params is None:
            break
        assert key_of(params) not in proposed
        proposed.add(key_of(params))
        pending.append(params)
        if len(pending) == 3:
            values = rng.choice([(rng.random(), rng.random()), *BROKEN])
            history.append(Observation(pending.pop(0), values, rng.random() < 0.7))


@pytest.mark.parametrize("seed", range(4))
def test_a_small_space_is_exhausted_to_its_last_member(seed):
    history = search(Proposer(branching, seed), lambda p: Observation(p, (len(p), seed)), 50)
    assert len(set(keys(history))) == len(history) == 3 + 4 * 2


def test_what_is_pending_counts_as_taken_even_the_last_member():
    everything = [result.params for result in search(Proposer(branching), results_of_none, 50)]
    proposer = Proposer(branching)
    assert proposer.propose(10, [], everything[:-1]) == everything[-1]
    assert proposer.propose(11, [], everything) is None


def results_of_none(params):
    return Observation(params, None)


@pytest.mark.slow
def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been():
    whole = search(Proposer(mixed, 7), costed, 30)
    for stop in (3, 11, 22):
        assert search(Proposer(mixed, 7), costed, 30, whole[:stop]) == whole


def test_a_proposal_does_not_depend_on_those_made_before_by_the_same_process():
    history = search(Proposer(mixed, 1), costed, 20)
    busy = Proposer(mixed, 1)
    for number in (40, 3, 17):
        busy.propose(number, history[:15], [history[18].params])
    assert busy.propose(20, history) == Proposer(mixed, 1).propose(20, history)


@pytest.mark.slow
def test_another_process_with_another_hash_seed_proposes_the_same():
    program = """
import json
from edgeloop.search.base import Observation
from edgeloop.search.sampler.proposer import Proposer
from tests.search.spaces import mixed, mixed_costs
history, proposer = [], Proposer(mixed, 5)
for number in range(16):
    params = proposer.propose(number, history)
    history.append(Observation(params, mixed_costs(params)))
print(json.dumps([dict(result.params) for result in history]))
"""
    mine = [dict(result.params) for result in search(Proposer(mixed, 5), costed, 16)]
    assert with_another_hash_seed(program) == mine


def test_two_seeds_go_two_ways():
    first, second = (search(Proposer(mixed, seed), costed, 14) for seed in (1, 2))
    assert keys(first)[6:] != keys(second)[6:]


def test_an_objective_in_another_unit_changes_nothing():
    def in_other_units(params):
        error, size = mixed_costs(params)
        return Observation(params, (error * 2**-30, size * 2**20))

    assert keys(search(Proposer(mixed, 3), in_other_units, 25)) == keys(
        search(Proposer(mixed, 3), costed, 25)
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SOAK) for seed in (1, 2))])
def test_the_front_is_better_than_that_of_ten_times_as_many_by_chance(seed):
    rng = Random(seed)
    by_chance = [deep_costs(ask(deep, at_random(rng)).params) for _ in range(600)]
    history = search(Proposer(deep, seed), lambda p: Observation(p, deep_costs(p)), 60)
    ours = [result.values for result in history]
    assert hypervolume(ours, CORNER) > hypervolume(by_chance, CORNER)


def test_a_conditional_member_has_its_active_parameters_and_no_others():
    for result in search(Proposer(mixed, 2), costed, 30):
        blocks = result.params["blocks"]
        assert {name for name in result.params if name.startswith("op")} == {
            f"op{block}" for block in range(blocks)
        }


@pytest.mark.slow
def test_results_that_broke_a_constraint_teach_where_not_to_look():
    def small_only(params):
        values = mixed_costs(params)
        return Observation(params, values, feasible=values[1] <= 60)

    rng = Random(0)
    by_chance = [small_only(ask(mixed, at_random(rng)).params).feasible for _ in range(400)]
    late = search(Proposer(mixed, 0), small_only, 60)[30:]
    share = sum(result.feasible for result in late) / len(late)
    assert sum(by_chance) / len(by_chance) < 0.3
    assert share > 0.6


@pytest.mark.slow
def test_while_nothing_is_feasible_it_looks_for_what_may_be():
    """One in 24 is feasible by chance."""

    def rarely(params):
        good = params["blocks"] == 1 and params["op0"] == "skip" and params["width0"] == 48
        return Observation(params, mixed_costs(params), feasible=good)

    history = search(Proposer(mixed, 0), rarely, 80)
    assert sum(result.feasible for result in history) >= 10


def test_failed_and_infeasible_results_are_never_parents():
    good = [costed(ask(mixed, at_random(Random(seed))).params) for seed in range(5)]
    broken = [Observation(good[0].params, values) for values in BROKEN]
    forbidden = Observation(good[0].params, (-1.0, -1.0), feasible=False)
    parents = parents_of([*broken, forbidden, *good])
    assert sorted(keys(parents)) == sorted(keys(good))
    assert all(math.isfinite(value) for parent in parents for value in parent.values or (NAN,))


def test_a_search_in_which_everything_fails_goes_on_trying_new_ones():
    history = search(Proposer(mixed, 0), results_of_none, 30)
    assert len(set(keys(history))) == 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "objectives", [pytest.param(1, marks=SOAK), 3, pytest.param(4, marks=SOAK)]
)
def test_any_number_of_objectives_is_searched_better_than_by_chance(objectives):
    def several(params):
        error, size = mixed_costs(params)
        rest = (abs(math.log10(params["rate"]) + 2), params["batch"] / 64)
        return Observation(params, (error, size / 1600, *rest)[:objectives])

    corner, rng = (4.0, 0.3, 2.0, 1.0)[:objectives], Random(0)
    by_chance = [several(ask(mixed, at_random(rng)).params).values for _ in range(90)]
    ours = [result.values for result in search(Proposer(mixed, 0), several, 60)]
    assert hypervolume(ours, corner) > hypervolume(by_chance, corner)


def test_pending_candidates_are_spread_not_crowded():
    """Eight workers ask at once: the surrogate is the same for all, the answers are not."""
    history = search(Proposer(mixed, 0), costed, 20)
    proposer, pending = Proposer(mixed, 0), []
    for number in range(20, 28):
        pending.append(proposer.propose(number, history, pending))
    assert len({mixed_costs(params) for params in pending}) >= 6


def test_many_workers_that_start_at_once_are_not_drawn_to_the_first_result():
    first = costed(Proposer(mixed, 0).propose(0, []))
    proposer, pending = Proposer(mixed, 0), []
    for number in range(1, 21):
        pending.append(proposer.propose(number, [first], pending))
    assert len({(params["op0"], params["width0"]) for params in pending}) >= 8


def test_results_of_an_older_space_are_kept_as_far_as_they_go():
    older = [Observation({"gone": n, "kind": "plain", "size": 9}, (n, -n)) for n in range(12)]
    history = search(Proposer(branching), lambda p: Observation(p, (0.0, 0.0)), 60, older)
    assert len(history) == 12 + 3 + 4 * 2


def test_results_with_different_numbers_of_objectives_are_refused():
    history = search(Proposer(mixed), costed, 11)
    with pytest.raises(BadInput, match="different numbers of objectives"):
        Proposer(mixed).propose(12, [*history, Observation({"x": 1}, (1.0,))])


def test_a_slow_space_is_asked_a_dozen_times_a_proposal_not_hundreds():
    asked = []

    def counted(trial):
        asked.append(1)
        mixed(trial)

    proposer, history = Proposer(counted, 0), search(Proposer(mixed, 0), costed, 30)
    proposer.propose(30, history)
    before = len(asked)
    proposer.propose(31, history)
    assert len(asked) - before <= 12
