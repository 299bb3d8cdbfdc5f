"""Fair sharing: nothing idle while somebody could use it, quotas, weights, and no shuffling."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edgeloop.operate.fleet.records import Bounds
from edgeloop.operate.fleet.supervisor import BoardTurns, Claim, fair_shares

NAMES = ("faces", "hands", "cars", "birds", "maps")


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    count = draw(st.integers(1, len(NAMES)))
    return [
        Claim(
            name,
            wanted=draw(st.integers(0, 40)),
            weight=draw(st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 10.0])),
            quota=draw(st.none() | st.integers(1, 20)),
            have=draw(st.integers(0, 30)),
        )
        for name in NAMES[:count]
    ]


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    most = draw(st.integers(1, 40))
    return Bounds(draw(st.integers(0, most)), most)


def useful(claim: Claim) -> int:
    return min(claim.wanted, claim.limit)


@given(claims(), bounds())
def test_all_runners_that_help_are_there_and_none_beyond_the_least_that_does_not(
    asked: list[Claim], limits: Bounds
):
    shares = fair_shares(asked, limits)
    helpful = sum(min(shares[claim.experiment], useful(claim)) for claim in asked)
    assert helpful == min(limits.most, sum(map(useful, asked)))
    extra = sum(shares.values()) - helpful
    assert extra == 0 or sum(shares.values()) <= limits.least


@given(claims(), bounds())
def test_no_quota_is_exceeded(asked: list[Claim], limits: Bounds):
    shares = fair_shares(asked, limits)
    assert all(shares[claim.experiment] <= claim.limit for claim in asked)


@given(claims(), bounds())
def test_who_waits_never_has_less_than_its_weight_allows(asked: list[Claim], limits: Bounds):
    """Of those whose claims are not met, each has at least its weight's share of all runners."""
    shares = fair_shares(asked, limits)
    weights = sum(claim.weight for claim in asked if claim.wanted)
    for claim in asked:
        if shares[claim.experiment] < useful(claim):
            assert shares[claim.experiment] >= int(limits.most * claim.weight / weights)


@given(claims(), bounds())
def test_nothing_moves_while_nothing_changes(asked: list[Claim], limits: Bounds):
    shares = fair_shares(asked, limits)
    after = [replace(claim, have=shares[claim.experiment]) for claim in asked]
    assert fair_shares(after, limits) == shares


@given(claims(), bounds(), st.permutations(range(len(NAMES))))
def test_the_order_of_the_claims_does_not_matter(
    asked: list[Claim], limits: Bounds, order: list[int]
):
    other = [asked[place] for place in order if place < len(asked)]
    assert fair_shares(other, limits) == fair_shares(asked, limits)


def test_weights_divide_what_both_want():
    asked = [Claim("faces", 99, weight=2.0), Claim("hands", 99)]
    assert fair_shares(asked, Bounds(0, 9)) == {"faces": 6, "hands": 3}


def test_of_an_odd_runner_who_has_it_keeps_it():
    asked = [Claim("faces", 9, have=1), Claim("hands", 9, have=2)]
    assert fair_shares(asked, Bounds(0, 3)) == {"faces": 1, "hands": 2}
    asked = [Claim("faces", 9, have=2), Claim("hands", 9, have=1)]
    assert fair_shares(asked, Bounds(0, 3)) == {"faces": 2, "hands": 1}


def test_the_least_stay_where_they_are_though_nobody_needs_them():
    asked = [Claim("faces", 0, weight=5.0), Claim("hands", 0, have=2)]
    assert fair_shares(asked, Bounds(2, 8)) == {"faces": 0, "hands": 2}


def played(
    turns: BoardTurns, weights: dict[str, float], boards: int, steps: int, step_s: float = 10.0
) -> dict[str, float]:
    """Board time of each experiment."""
    holders, held_s = [""] * boards, [0.0] * boards
    time_s = dict.fromkeys(weights, 0.0)
    for _ in range(steps):
        for board in range(boards):
            others = holders[:board] + holders[board + 1 :]
            chosen = turns.choose(holders[board], held_s[board], weights, others)
            held_s[board] = held_s[board] + step_s if chosen == holders[board] else 0.0
            holders[board] = chosen
            time_s[chosen] += step_s
        turns.account(holders, weights, step_s)
    return time_s


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([1.0, 2.0, 3.0]), min_size=1),
    st.integers(1, 4),
)
def test_board_time_goes_by_weight(weights: dict[str, float], boards: int):
    turns = BoardTurns(slice_s=50.0)
    turns.arrive(weights)
    time_s = played(turns, weights, boards, steps=1_000)
    for name, weight in weights.items():
        fair_s = boards * 10_000 * weight / sum(weights.values())
        assert abs(time_s[name] - fair_s) <= 0.05 * boards * 10_000


def test_a_board_stays_until_its_slice_is_over_or_the_work_is_gone():
    turns, weights = BoardTurns(), {"faces": 1.0, "hands": 1.0}
    turns.arrive(weights)
    assert turns.choose("faces", 299, weights, []) == "faces"
    turns.account(["faces"], weights, 300)
    assert turns.choose("faces", 300, weights, []) == "hands"
    turns.arrive(["faces"])
    assert turns.choose("hands", 10, weights, []) == "faces"
    turns.arrive([])
    assert turns.choose("faces", 9_999, weights, []) == "faces"
    assert turns.choose("", 0, weights, []) == "faces"


def test_who_was_away_is_not_owed_the_time():
    turns, weights = BoardTurns(slice_s=50.0), {"faces": 1.0, "hands": 1.0}
    turns.arrive(["faces"])
    turns.account(["faces"] * 100, weights, 100)
    turns.arrive(weights)
    time_s = played(turns, weights, 1, steps=100)
    assert abs(time_s["faces"] - time_s["hands"]) <= 100
