"""Which trainings continue: ranks, forecasts, and what is never stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeloop.errors import BadInput
from edgeloop.pareto import non_dominated
from edgeloop.search.stopping import RungMember, Rungs, StoppingRule, forecast

RUNGS = Rungs(total=9)


def member(key: str, latency: float, *scores: float, waits: bool = True) -> RungMember:
    """Scores at 1, 3 and 9, higher is better."""
    reached = {mark: (-score,) for mark, score in zip(RUNGS.marks, scores, strict=False)}
    return RungMember(key, (None, latency), reached, waits)


def test_rungs_grow_by_a_factor_and_end_before_the_whole_training():
    assert Rungs(27).pauses == (1, 3, 9)
    assert Rungs(28).pauses == (1, 3, 9, 27)
    assert Rungs(300, first=25, factor=2, unit="steps").marks == (25, 50, 100, 200, 300)
    assert [RUNGS.after(at) for at in (0, 1, 3, 9)] == [1, 3, 9, 9]
    assert Rungs(1).pauses == ()
    with pytest.raises(BadInput, match="factor 2 or more"):
        Rungs(9, factor=1)


def test_the_best_third_is_promoted_and_who_came_furthest_is_first():
    members = [member(str(n), 1.0, n / 10) for n in range(9)]
    rule = StoppingRule(RUNGS, sure=1e9)
    assert rule.promotable(members) == ["8", "7", "6"]
    assert rule.promotable(members[:2]) == []
    further = [member(f"f{n}", 1.0, 0.5, 0.5 + n / 10) for n in range(3)]
    assert rule.promotable([*members, *further])[0] == "f2"


def test_a_slow_network_must_be_better_to_survive():
    fast, slower = member("fast", 1.0, 0.5), member("slower", 2.0, 0.49)
    slow_and_better = member("better", 3.0, 0.8)
    rule = StoppingRule(RUNGS, sure=0.0)
    others = [member(str(n), 4.0 + n, 0.1) for n in range(6)]
    chosen = rule.promotable([*others, slower, slow_and_better, fast])
    assert set(chosen) == {"fast", "better"}
    assert rule.promotable([*others, slower, slow_and_better, fast], is_last=True) == chosen


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
    """Large networks gain more; the forecast knows it from six examples."""

    def curve(latency: float) -> tuple[float, float, float]:
        return 0.2 + 0.01 * latency, 0.4 + 0.03 * latency, 0.5 + 0.05 * latency

    whole = [member(str(n), float(n), *curve(n), waits=False) for n in range(1, 13)]
    started = member("new", 6.5, curve(6.5)[0])
    found = forecast([*whole, started], RUNGS)
    assert found.mean[-1, 0] == pytest.approx(-curve(6.5)[2], abs=0.02)
    assert 0 < found.deviation[-1, 0] < 0.1
    assert found.deviation[:-1].max() == 0 and found.mean[0, 0] == -curve(1)[2]
    alone = forecast([member("a", 1.0, 0.3), member("b", 2.0, 0.4)], RUNGS)
    assert alone.mean[:, 0].tolist() == [-0.3, -0.4]  # nobody knows more
    assert alone.deviation.min() > 0.05


def test_the_noise_of_the_curves_decides_how_much_worse_is_beaten():
    def beaten(noise: float) -> set[str]:
        chance = np.random.default_rng(1)
        known = [
            member(str(n), 9.0 + n, 0.3, 0.5, 0.7 + noise * chance.normal(), waits=False)
            for n in range(20)
        ]
        best = member("best", 1.0, 0.3, 0.5, 0.7, waits=False)
        return StoppingRule(RUNGS).beaten([*known, best, member("late", 5.0, 0.3, 0.46)])

    assert "late" in beaten(0.001) and "late" not in beaten(0.05)


def test_nothing_that_waits_alone_or_without_scores_is_an_error():
    rule = StoppingRule(RUNGS)
    assert rule.promotable([]) == [] and rule.promotable([member("a", 1.0, waits=False)]) == []
    assert rule.promotable([member("a", 1.0, 0.5)], is_last=True) == ["a"]
    assert rule.beaten([member("a", 1.0, float("nan")), member("b", 1.0, 0.5)]) <= {"a"}


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(1, 2))
def test_no_member_of_the_front_is_stopped_where_curves_keep_their_order(seed, count, trained):
    """Followed to its end, for any number of candidates and of trained objectives."""
    chance = np.random.default_rng(seed)
    final = chance.random((count, trained))
    latency = chance.permutation(count).astype(float)
    shares = {1: 0.3, 3: 0.6, 9: 1.0}
    rule, scores = StoppingRule(RUNGS), [{1: tuple(0.3 * row)} for row in final]
    while True:
        members = [
            RungMember(str(n), (*[None] * trained, latency[n]), scores[n], 9 not in scores[n])
            for n in range(count)
        ]
        chosen = rule.promotable(members, is_last=True)
        shuffled = rule.promotable(list(reversed(members)), is_last=True)
        assert set(shuffled) == set(chosen)
        if not chosen:
            break
        for key in chosen[:2]:
            mark = RUNGS.after(members[int(key)].reached)
            scores[int(key)][mark] = tuple(shares[mark] * final[int(key)])
    front = np.flatnonzero(non_dominated(np.column_stack([final, latency])))
    assert all(9 in scores[n] for n in front)
