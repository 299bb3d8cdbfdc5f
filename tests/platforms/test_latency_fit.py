"""The fit of the profiles: what it finds in made-up data, and that its files are its own work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml

from bench.latency import fit as command
from bench.latency.evaluation import ANY, Group, best_penalty, evaluate
from bench.latency.points import Point, read_points
from bench.latency.regression import SIMPLE

CHIPS = {"qcs8550": (62.0, 0.91), "x-elite": (136.0, 0.95), "sa8255p": (207.0, 1.4)}
TERMS = ("ops", "depthwise", "resize")
WEIGHTS = (0.4, -0.3, 0.0)


def made_up(
    networks=60, noise=0.02, weights=WEIGHTS, seed=3, per_family=2, chips=tuple(CHIPS)
) -> list[Point]:
    """Networks of known constants; a network is as much off on one chip as on another."""
    dice = np.random.default_rng(seed)
    points = []
    for number in range(networks):
        raw = float(np.exp(dice.uniform(np.log(60), np.log(30_000))))
        terms = dict(zip(TERMS, dice.uniform(0, 1, len(TERMS)).tolist(), strict=True))
        own = float(noise * dice.standard_normal())
        for chip in chips:
            a, b = CHIPS[chip]
            factor = sum(w * terms[name] for name, w in zip(TERMS, weights, strict=True))
            spread = own + 0.5 * noise * float(dice.standard_normal())
            time = (a + b * raw) * float(np.exp(factor + spread))
            family = f"family-{number // per_family}"
            points.append(
                Point(f"net-{number}", family, "w8a8", chip, 77, raw, time, "convolution", terms)
            )
    return points


@pytest.mark.parametrize("penalty", [SIMPLE, 1e-6])
def test_exact_times_give_the_exact_constants(penalty):
    weights = (0.0, 0.0, 0.0) if penalty == SIMPLE else WEIGHTS
    group = Group(tuple(made_up(noise=0, weights=weights)))
    found = group.fit(penalty)
    for number, chip in enumerate(group.chips):
        a, b = CHIPS[chip]
        assert found.a_us[number] == pytest.approx(a, rel=0.01)
        assert found.b[number] == pytest.approx(b, rel=0.01)
        assert found.weights == pytest.approx(weights, abs=0.01)


def test_the_better_model_is_kept_only_where_it_is_better():
    with_terms = evaluate(made_up())
    assert all(one.terms for one in with_terms)
    assert all(one.scores().median_error < 0.03 for one in with_terms)
    assert all(one.scores(is_simple=True).median_error > 0.06 for one in with_terms)
    without = evaluate(made_up(weights=(0.0, 0.0, 0.0), noise=0.05))
    assert not any(one.terms for one in without)


def test_a_doubtful_network_bends_nothing_and_is_reported():
    points = made_up()
    wrong = [
        replace(point, time_us=5 * point.time_us, doubt="another graph")
        if point.network in ("net-3", "net-8", "net-20")
        else point
        for point in points
    ]
    kept = [point for point in points if point.network not in ("net-3", "net-8", "net-20")]
    for first, second in zip(evaluate(wrong), evaluate(kept), strict=True):
        assert first.a_us == pytest.approx(second.a_us)
        assert first.scores() == second.scores()
        assert first.scores(with_doubtful=True).networks == first.scores().networks + 3
        assert first.scores(with_doubtful=True).covered < first.scores().covered


def test_held_out_means_held_out():
    """A family that is 30 % slower than all others is off by that, however many networks of it
    there are: its own times must not teach the fit."""
    points = [
        replace(point, time_us=1.3 * point.time_us, family="slow")
        if int(point.network.removeprefix("net-")) % 3 == 0
        else point
        for point in made_up(noise=0.005, weights=(0.0, 0.0, 0.0))
    ]
    for one in evaluate(points):
        pairs = zip(one.points, one.predicted, strict=True)
        errors = [p / point.time_us - 1 for point, p in pairs if point.family == "slow"]
        assert np.median(errors) == pytest.approx(1 / 1.3 - 1, abs=0.03)


def test_intervals_hold_what_they_state():
    """Networks that are alike: over several draws nine in ten are inside, not more, not fewer."""
    covered = [
        one.scores().covered
        for seed in range(8)
        for one in evaluate(made_up(80, 0.08, seed=seed, per_family=4, chips=("qcs8550",)))
    ]
    assert 0.86 < np.mean(covered) < 0.94


def test_steps_without_a_cost_are_not_fitted_to():
    points = made_up()
    flagged = [
        replace(p, missing_ops=2, time_us=9 * p.time_us) if p.network == "net-1" else p
        for p in points
    ]
    for one in evaluate(flagged):
        assert "net-1" not in {point.network for point in one.points}
        assert ANY in one.intervals


@pytest.mark.slow
def test_profiles_and_pages_are_what_the_command_makes():
    points = read_points()
    made = command.outputs(points, evaluate(points))
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path.name} is out of date: run `python -m bench latency fit`"
        )


def test_the_written_profile_predicts_as_the_fit_does():
    points = made_up()
    results = evaluate(points)
    written = yaml.safe_load(command.profiles_text(results))
    fitted = Group(tuple(points)).fit(best_penalty(Group(tuple(points))))
    rows = Group(tuple(points)).observations
    for point, expected in zip(points, fitted.predict(rows), strict=True):
        fields = written[point.chip]["w8a8"]
        terms = {"constant": 1.0, **point.terms}
        factor = sum(weight * terms[name] for name, weight in fields["terms"].items())
        predicted = (fields["a_us"] + fields["b"] * point.raw_us) * np.exp(factor)
        assert predicted == pytest.approx(expected, rel=0.005)
    assert written["qcs8550"]["w8a8"]["intervals"][ANY]["networks"] == 60
