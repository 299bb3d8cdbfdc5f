"""Our light trial answers as Optuna's would."""

from __future__ import annotations

import warnings
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeloop.errors import BadInput
from edgeloop.search.sampler.members import (
    Draft,
    Number,
    ask,
    at_corner,
    at_random,
    crossed,
    every_member,
    key_of,
    mutated,
    replayed,
)
from tests.search.spaces import branching, mixed, spaces


def drawn(space, rng):
    trial = ask(space, at_random(rng))
    return Draft(trial.params, trial.distributions)


def optuna_accepts(space, params):
    from optuna.trial import FixedTrial

    trial = FixedTrial(params)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The value")  # that it is outside of its range
        warnings.filterwarnings("ignore", message="The distribution")
        space(trial)
    return trial.params == params


@settings(deadline=None, max_examples=60)
@given(spaces, st.integers(0, 2**16))
def test_what_any_policy_makes_is_a_member_by_optunas_rules(space, seed):
    rng = Random(seed)
    first, second = drawn(space, rng), drawn(space, rng)
    made = [
        first,
        ask(space, replayed(mutated(first, 2, rng).params, rng)),
        ask(space, replayed(crossed(first, second, rng).params, rng)),
        ask(space, at_corner(0.0)),
        ask(space, at_corner(1.0)),
        next(every_member(space, rng)),
    ]
    assert all(optuna_accepts(space, trial.params) for trial in made)


@pytest.mark.parametrize(
    ("low", "high", "step", "last"),
    [
        (0.0, 1.9999999999, 0.25, 1.75),
        (0.0, 0.3, 0.1, 0.3),
        (0.1, 0.7, 0.2, 0.7),
        (1.0, 4.0, 2.0, 3.0),
    ],
)
def test_the_last_member_of_a_stepped_range_is_the_one_that_optuna_has(low, high, step, last):
    number = Number(low, high, step)
    assert number.member(number.size - 1) == last


def test_every_member_of_a_branching_space_comes_once():
    members = [key_of(trial.params) for trial in every_member(branching, Random(1))]
    assert len(members) == len(set(members)) == 3 + 4 * 2


def test_a_mutation_changes_what_it_says_and_keeps_the_rest():
    rng = Random(3)
    parent = drawn(mixed, rng)
    for _ in range(200):
        child = mutated(parent, 2, rng)
        assert sum(parent.params[name] != child.params[name] for name in parent.params) == 2


def test_a_draft_becomes_a_member_by_asking_along_it():
    """The branch that the change opened is filled, the one that it closed is gone."""
    rng = Random(5)
    one, two = ({"blocks": blocks, "op0": "pool", "share": 0.5} for blocks in (1, 2))
    small, large = (ask(mixed, replayed(params, rng)).params for params in (one, two))
    assert "op1" in large and "op1" not in small
    again = ask(mixed, replayed({**large, "blocks": 1}, rng)).params
    assert again == {name: large[name] for name in small} | {"blocks": 1}


def test_a_cross_takes_every_answer_from_a_parent():
    rng = Random(4)
    first, second = drawn(mixed, rng), drawn(mixed, rng)
    child = crossed(first, second, rng).params
    parents = first.params, second.params
    assert all(value in [p.get(name) for p in parents] for name, value in child.items())
    assert child not in parents


def test_the_same_question_has_the_same_answer_within_a_trial():
    def space(trial):
        return trial.suggest_int("n", 0, 99), trial.suggest_int("n", 0, 99)

    answers = []
    ask(lambda trial: answers.extend(space(trial)), at_random(Random(0)))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (lambda t: (t.suggest_int("n", 0, 9), t.suggest_int("n", 0, 8)), "'n' twice"),
        (lambda t: t.suggest_int("n", 3, 2), "low first"),
        (lambda t: t.suggest_float("x", 0.0, float("inf")), "finite"),
        (lambda t: t.suggest_float("x", 0.0, 1.0, log=True), "above 0"),
        (lambda t: t.suggest_int("n", 0, 4, step=0), "step"),
        (lambda t: t.suggest_categorical("c", ()), "no choices"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_in_one_sentence(space, words):
    with pytest.raises(BadInput, match=words):
        ask(space, at_random(Random(0)))


def test_a_logarithmic_range_is_drawn_evenly_in_its_logarithm():
    rng, rate = Random(0), Number(1e-4, 1.0, log=True)
    draws = [rate.at(rng.random()) for _ in range(2000)]
    assert 0.45 < sum(draw < 1e-2 for draw in draws) / len(draws) < 0.55


def test_parameters_have_one_key_in_any_order_and_type_matters():
    assert key_of({"a": 1, "b": "x"}) == key_of({"b": "x", "a": 1})
    assert len({key_of({"a": value}) for value in (1, 1.0, True, "1", None)}) == 5
