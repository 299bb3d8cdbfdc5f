"""Which trainings continue: margins, forecasts, and what is never stopped."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeloop.errors import BadInput
from edgeloop.pareto import non_dominated
from edgeloop.search.config import Rungs, config_of
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.stopping import RungMember, StoppingRule, expected_values, forecast
from edgeloop.search.study import Candidate

RUNGS = Rungs(total=9)


def member(key: str, latency: float, *scores: float, waits: bool = True) -> RungMember:
    """Scores at 1, 3, 6 and 9, higher is better."""
    reached = {mark: (-score,) for mark, score in zip(RUNGS.marks, scores, strict=False)}
    return RungMember(key, (None, latency), reached, waits)


def test_rungs_grow_by_a_factor_and_end_before_the_whole_training():
    assert Rungs(27, longest=27).pauses == (1, 3, 9)
    assert Rungs(28, longest=28).pauses == (1, 3, 9, 27)
    steps = Rungs(300, first=25, factor=2, unit="steps", longest=100)
    assert steps.marks == (25, 50, 100, 200, 300)
    assert [RUNGS.after(at) for at in (0, 1, 3, 6, 9)] == [1, 3, 6, 9, 9]
    assert Rungs(1).pauses == ()
    for wrong in ({"factor": 1}, {"longest": 0}):
        with pytest.raises(BadInput, match="factor 2 or more"):
            Rungs(9, **wrong)


@given(st.integers(1, 500), st.integers(1, 9), st.integers(2, 4))
def test_no_rung_is_longer_than_a_ninth_of_the_training(total, first, factor):
    marks = (first, *Rungs(total, first, factor).marks[1:])
    lengths = [after - before for before, after in pairwise(marks)]
    assert all(0 < length <= max(factor, -(-total // 9)) for length in lengths)


def test_the_most_probable_member_of_the_front_continues_first():
    """Its score is the best, and only what is faster can beat it."""
    members = [member(str(n), 10.0 - n, n / 10) for n in range(9)]
    assert StoppingRule(RUNGS).promotable(members) == ["8"]
    slow = member("slow", 20.0, 0.35)
    chosen = StoppingRule(RUNGS, sure=1e9).promotable([*members, slow], is_last=True)
    assert chosen[0] == "8" and len(chosen) == 10
    assert chosen.index("slow") > chosen.index("4")


def test_one_in_eight_is_trained_further_while_there_are_candidates_to_begin():
    rule = StoppingRule(RUNGS)
    members = [member(str(n), 1.0 + n, n / 30) for n in range(16)]
    assert len(rule.promotable(members[:7])) == 0
    assert len(rule.promotable(members)) == 2
    is_trained = replace(members[0], waits=False)
    assert len(rule.promotable([is_trained, *members[1:]])) == 1
    has_ended = replace(is_trained, is_stopped=True)  # by a search that has continued since
    assert len(rule.promotable([has_ended, *members[1:]])) == 1
    assert len(rule.promotable(members, is_last=True)) == 16


def test_a_slow_network_must_be_better_to_survive():
    fast, slower = member("fast", 1.0, 0.5), member("slower", 2.0, 0.4)
    slow_and_better = member("better", 3.0, 0.8)
    rule = StoppingRule(RUNGS, sure=0.0)
    others = [member(str(n), 4.0 + n, 0.1) for n in range(6)]
    chosen = rule.promotable([*others, slower, slow_and_better, fast], is_last=True)
    assert set(chosen) == {"fast", "better"}


def test_the_best_rank_of_all_fronts_counts():
    """The second is the fastest on the second chip only."""
    scores = {1: (-0.5,)}
    first = RungMember("first", (None, 1.0, 9.0), scores, waits=True)
    second = RungMember("second", (None, 9.0, 1.0), scores, waits=True)
    neither = RungMember("neither", (None, 9.5, 9.5), scores, waits=True)
    members = [neither, second, first]
    one = StoppingRule(RUNGS, fronts=((0, 1),), sure=0.0)
    both = StoppingRule(RUNGS, fronts=((0, 1), (0, 2)), sure=0.0)
    worse = [RungMember(m.key, m.values, {1: (-0.4,)}, waits=True) for m in members[:2]]
    assert one.beaten([*worse, first]) == {"second", "neither"}
    assert both.beaten([*worse, first]) == {"neither"}
    assert set(both.promotable(members, is_last=True)) == {"first", "second", "neither"}
    barred = replace(worse[1], barred=(1,))  # it is too slow for the second chip's limits
    assert both.beaten([worse[0], barred, first]) == {"second", "neither"}


def test_forecasts_learn_from_those_that_went_further():
    """Large networks gain more; the forecast knows it from twelve examples."""

    def curve(latency: float) -> tuple[float, ...]:
        return tuple(start + (start - 0.1) / 10 * latency for start in (0.2, 0.3, 0.4, 0.5))

    whole = [member(str(n), float(n), *curve(n), waits=False) for n in range(1, 13)]
    started = member("new", 6.5, curve(6.5)[0])
    found = forecast([*whole, started], RUNGS)
    assert found.mean[-1, 0] == pytest.approx(-curve(6.5)[-1], abs=0.02)
    assert 0 < found.deviation[-1, 0] < 0.1
    assert found.deviation[:-1].max() == 0 and found.mean[0, 0] == -curve(1)[-1]


def test_forecasts_learn_from_similar_architectures():
    """Scores at the first pause and latencies say nothing; a parameter decides what is gained."""

    def of(kernel: str, skips: int, *scores: float) -> RungMember:
        one = member(f"{kernel} {skips} {len(scores)}", 1.0, *scores)
        return replace(one, params={"kernel": kernel, "skips": skips})

    known = [of("3x3", n, 0.2, 0.3, 0.4, 0.5) for n in range(5)]
    known += [of("5x5", n, 0.2, 0.4, 0.6, 0.8) for n in range(5)]
    found = forecast([*known, of("3x3", 9, 0.2), of("5x5", 9, 0.2)], RUNGS)
    assert found.mean[-2, 0] > found.mean[-1, 0] + 0.15
    assert found.deviation[-2, 0] < 0.2  # of gains of 0.3 and 0.6


def test_a_search_forecasts_by_the_parameters_of_its_space():
    train = {"epochs": 9, "early_stopping": {"longest": 9}}
    objectives = {"params": {}, "val_iou": {"train": train}}
    search = {"name": "toy", "space": "toy.py:build", "size": 8}
    config = config_of({"search": search, "objectives": objectives, "data": "none"}, "toy.yaml")
    assert config.rungs is not None and config.rungs.pauses == (1, 3)

    def candidate(number: int, scores: dict[int, float]) -> Candidate:
        params = {"kernel": f"conv{number % 2}", "skips": number}
        arch = Architecture("toy.py:build", params, (1, 3, 8, 8), 19)
        rungs = {at: {"params": 9.0, "val_iou": score} for at, score in scores.items()}
        values = rungs.pop(9, {})
        state = "complete" if values else "running"
        return Candidate(number, arch, params, state, values, rungs=rungs)

    ends = {0: {1: 0.2, 3: 0.3, 9: 0.5}, 1: {1: 0.2, 3: 0.5, 9: 0.8}}
    known = [candidate(number, ends[number % 2]) for number in range(8)]
    new = [candidate(number, {1: 0.2}) for number in (8, 9)]
    found = expected_values(config, [*known, *new])
    low, high = (found[item.arch.id]["val_iou"] for item in new)
    assert high > low + 0.1


def test_where_nobody_has_been_scores_are_carried_on_with_much_doubt():
    alone = forecast([member("a", 1.0, 0.3), member("b", 2.0, 0.4)], RUNGS)
    assert alone.mean[:, 0].tolist() == [-0.3, -0.4]  # nobody knows more
    assert alone.deviation.min() > 0.05


def test_doubt_is_as_small_as_the_gains_that_are_left():
    """Scores differ by 0.4, but at the third pause nobody gains more than 0.0005."""
    chance = np.random.default_rng(5)

    def curve() -> tuple[float, ...]:
        score = 0.3 + 0.4 * chance.random()
        before, after = chance.random(2)
        return score / 4, score - 0.005 * before, score, score + 0.0005 * after

    known = [member(str(n), 1.0 + chance.random(), *curve(), waits=False) for n in range(12)]
    late, early = (member("new", 1.5, *curve()[:count]) for count in (3, 2))
    assert 0.0001 < forecast([*known, late], RUNGS).deviation[-1, 0] < 0.001
    assert forecast([*known, early], RUNGS).deviation[-1, 0] > 0.002


def test_what_all_gain_alike_is_no_doubt():
    """Everyone gains 0.2 in each step, and nobody more than 0.002 besides."""
    chance = np.random.default_rng(6)

    def curve() -> tuple[float, ...]:
        start = 0.1 + chance.normal() / 50
        return tuple(start + 0.2 * step + chance.normal() / 1000 for step in range(4))

    known = [member(str(n), 1.0 + n, *curve(), waits=False) for n in range(20)]
    found = forecast([*known, member("new", 8.5, 0.1)], RUNGS)
    assert found.mean[-1, 0] == pytest.approx(-0.7, abs=0.02)
    assert found.deviation[-1, 0] < 0.03


@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_deviations_are_what_forecasts_miss_by(noise):
    """Curves that rise late or early by a parameter, with little and with much noise: at each
    pause, misses divided by deviations are neither tiny nor large."""
    chance = np.random.default_rng(7)
    misses: dict[int, list[float]] = {mark: [] for mark in RUNGS.pauses}
    for _ in range(6):
        members, finals = [], []
        for n in range(60):
            width, depth = float(chance.integers(1, 9)), float(chance.integers(1, 5))
            shares = 1 / (1 + np.exp((1 + depth - np.array(RUNGS.marks)) / 1.5))
            scores = 0.6 * width / (2 + width) * shares
            scores = np.maximum.accumulate(scores + noise * chance.normal(size=4) * shares)
            reached = 4 if n < 20 else 1 + n % 3
            one = member(str(n), width * depth, *scores[:reached])
            members.append(replace(one, params={"width": width, "depth": depth}))
            finals.append(-scores[-1])
        found = forecast(members, RUNGS)
        for n in range(20, 60):
            ratio = (finals[n] - found.mean[n, 0]) / found.deviation[n, 0]
            misses[members[n].reached].append(ratio)
    for mark, ratios in misses.items():
        assert 0.4 < np.sqrt(np.mean(np.square(ratios))) < 1.4, mark


def test_the_noise_of_the_curves_decides_how_much_worse_is_beaten():
    def beaten(noise: float) -> set[str]:
        chance = np.random.default_rng(1)
        known = []
        for n in range(20):
            third = 0.52 + n / 200
            end = third + 0.1 + noise * chance.normal()
            known.append(member(str(n), 9.0 + n, 0.3, 0.5, third, end, waits=False))
        best = member("best", 1.0, 0.3, 0.5, 0.6, 0.7, waits=False)
        return StoppingRule(RUNGS).beaten([*known, best, member("late", 5.0, 0.3, 0.5, 0.56)])

    assert "late" in beaten(0.001) and "late" not in beaten(0.05)


def test_the_less_is_left_to_save_the_surer_a_stop_must_be():
    rule = StoppingRule(RUNGS, sure=2.0)
    least = [
        next(margin for margin in np.arange(0, 9, 0.01) if rule._is_beaten(margin, mark))
        for mark in RUNGS.marks[:-1]
    ]
    assert least == sorted(least) and 2.0 < least[0] < 2.1 and 2.3 < least[-1] < 2.5
    assert not rule._is_beaten(99.0, RUNGS.total)


def test_a_handful_of_good_results_stops_nobody_after_the_first_pause():
    """Eight that were chosen for their scores show little of how the others would continue."""
    chance = np.random.default_rng(3)
    good = [
        member(f"good {n}", 1.0 + n / 9, 0.2, 0.3, 0.4, 0.5 + chance.normal() / 50, waits=False)
        for n in range(8)
    ]
    late = [member(str(n), 2.0 + n, 0.2 + chance.normal() / 50) for n in range(40)]
    assert len(StoppingRule(RUNGS).promotable([*good, *late], is_last=True)) > 30


def test_nothing_that_waits_alone_or_without_scores_is_an_error():
    rule = StoppingRule(RUNGS)
    assert rule.promotable([]) == [] and rule.promotable([member("a", 1.0, waits=False)]) == []
    assert rule.promotable([member("a", 1.0, 0.5)], is_last=True) == ["a"]
    assert rule.beaten([member("a", 1.0, float("nan")), member("b", 1.0, 0.5)]) <= {"a"}


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 2))
def test_no_member_of_the_front_is_stopped_where_curves_keep_their_order(seed, count, trained):
    """Followed to its end, for any number of candidates and of trained objectives."""
    chance = np.random.default_rng(seed)
    final = chance.random((count, trained))
    latency = chance.permutation(count).astype(float)
    shares = {1: 0.3, 3: 0.6, 6: 0.8, 9: 1.0}
    rule, scores = StoppingRule(RUNGS), [{1: tuple(0.3 * row)} for row in final]
    while True:
        members = [
            RungMember(str(n), (*[None] * trained, latency[n]), scores[n], 9 not in scores[n])
            for n in range(count)
        ]
        chosen = rule.promotable(members, is_last=True)
        assert rule.promotable(list(reversed(members)), is_last=True) == chosen
        if not chosen:
            break
        for key in chosen[:5]:
            mark = RUNGS.after(members[int(key)].reached)
            scores[int(key)][mark] = tuple(shares[mark] * final[int(key)])
    front = np.flatnonzero(non_dominated(np.column_stack([final, latency])))
    assert all(9 in scores[n] for n in front)
