"""The models behind a proposal: scales, the surrogate, and the acquisition function."""

from __future__ import annotations

from random import Random
from statistics import NormalDist

import numpy as np
import pytest

from edgeloop.search.base import Observation
from edgeloop.search.sampler.bank import FeatureScale
from edgeloop.search.sampler.members import SpaceEncoding, ask, at_random, knows_enough
from edgeloop.search.sampler.surrogate import (
    Acquisition,
    Kernel,
    Kernels,
    Scale,
    Surrogate,
    telling,
)
from tests.search.spaces import deep, deep_costs

TRIALS = [ask(deep, at_random(Random(seed))) for seed in range(24)]
MEMBERS = [trial.params for trial in TRIALS]
ENCODING = SpaceEncoding.of(trial.distributions for trial in TRIALS)
ENCODED = ENCODING.encode(MEMBERS)
KERNEL = Kernel({}, linear=-2.0, product=-2.0)  # far from 1: a variance is no deviation


def surrogate(seen, targets):
    return Surrogate(KERNEL, ENCODING.names, ENCODING.groups, seen, targets)


def acquisition(results, pending=()):
    count = len(results[0].values)
    return Acquisition(ENCODING, Kernels([KERNEL] * count, KERNEL), results, pending, 0)


@pytest.mark.parametrize(
    ("values", "is_log"),
    [([0.2, 0.5, 0.6, 0.7, 0.8], False), ([-3.0, 0.0, 1.0, 90.0], False), ([1, 9, 80], True)],
)
def test_scaling_an_objective_and_back_gives_the_same_values(values, is_log):
    column = np.array(values, dtype=np.float64)
    scale = Scale.of(column)
    assert scale.is_log == is_log
    assert scale.inverse(scale.forward(column)) == pytest.approx(column)


@pytest.mark.parametrize("values", [(0, 1, 2, 40), (-8, -1, 0, 3), (1, 10, 100, 1000)])
def test_a_feature_keeps_its_order_whatever_its_sign(values):
    column = np.array(values, dtype=np.float64)
    scale = FeatureScale.of("macs", column)
    assert scale is not None
    assert (np.diff(scale.column(column)) > 0).all()


def test_the_surrogate_is_surest_of_what_was_measured():
    model = surrogate(ENCODED[:12], np.linspace(-1, 1, 12))
    _, variance = model.predict(ENCODED)
    assert variance[:12].max() < variance[12:].min()


def test_the_acquisition_of_one_objective_is_the_expected_improvement():
    values = np.linspace(-1.0, 1.0, 12)
    seen = zip(MEMBERS[:12], values.tolist(), strict=True)
    results = [Observation(params, (value,)) for params, value in seen]
    scale = Scale.of(values)
    model = surrogate(ENCODED[:12], scale.forward(values))
    mean, variance = model.predict(ENCODED[:2])
    deviation = np.sqrt(variance + model.noise_variance)
    normal = NormalDist()
    gain = scale.forward(values[:1]) - mean
    expected = [
        scale.unit * (g * normal.cdf(g / d) + d * normal.pdf(g / d)) / np.ptp(values)
        for g, d in zip(gain, deviation, strict=True)
    ]
    assert acquisition(results).of(MEMBERS[:2]) == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize(
    ("ended", "pending", "is_enough"),
    [(5, 5, True), (10, 0, True), (5, 4, False), (1, 20, False), (4, 20, False)],
)
def test_results_decide_when_half_of_the_first_candidates_have_ended(ended, pending, is_enough):
    results = [Observation(params, deep_costs(params)) for params in MEMBERS[:ended]]
    assert knows_enough(results, MEMBERS[-1:] * pending, 10) == is_enough
    failed = [Observation(params, None) for params in MEMBERS[:ended]]
    assert not knows_enough(failed, MEMBERS[-1:] * pending, 10)


def test_a_pending_candidate_is_less_attractive_to_propose_again():
    results = [Observation(params, deep_costs(params)) for params in MEMBERS[:12]]
    for params in MEMBERS[12:]:
        alone, beside = acquisition(results), acquisition(results, [params])
        assert beside.of([params]) < 0.7 * alone.of([params])


def many_results(count):
    """On a line from good to bad in both objectives; every tenth failed."""
    return [
        Observation({"place": place}, None if place % 10 == 9 else (float(place), float(place)))
        for place in range(count)
    ]


def test_few_results_are_all_telling():
    results = many_results(50)
    assert telling(results, 50) == results
    assert telling([], 50) == []


def test_of_many_results_the_best_are_telling_and_no_region_is_forgotten():
    results = many_results(1_000)[::-1]
    chosen = telling(results, 100)
    places = [int(result.params["place"]) for result in chosen]
    assert places == sorted(places, reverse=True), "in their order"
    assert len(set(places)) == 100
    assert {place for place in range(55) if place % 10 != 9} <= set(places)
    for low in range(100, 1_000, 300):
        assert any(low <= place < low + 300 for place in places)
    assert any(result.values is None for result in chosen)
    assert telling(results, 100) == chosen, "the same for the same results"


def test_where_all_failed_some_are_telling():
    failed = [Observation({"place": place}, None) for place in range(100)]
    assert len(telling(failed, 10)) == 10


def test_a_long_history_costs_no_more_than_what_is_telling(monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    fitted = Surrogate.__init__

    def noted(self, kernel, names, groups, encoded, *rest):
        sizes.append(len(encoded))
        fitted(self, kernel, names, groups, encoded, *rest)

    monkeypatch.setattr(Surrogate, "__init__", noted)
    params = [ask(deep, at_random(Random(seed))).params for seed in range(600)]
    results = [Observation(each, deep_costs(each)) for each in params]
    assert acquisition(results).of(params[:5]).shape == (5,)
    assert set(sizes) == {400}
