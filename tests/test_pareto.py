"""The Pareto front and its hypervolume, compared with brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeloop import pareto
from edgeloop.pareto import hypervolume, hypervolume_gain, non_dominated, scale_of, share

INF, NAN = float("inf"), float("nan")

# Few distinct values: ties, equal points, infinities and NaN are the rule.
COORDINATES = st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0, 4.0, INF, -INF, NAN])


def points(objectives: int, most: int = 40) -> st.SearchStrategy[list[list[float]]]:
    row = st.lists(COORDINATES, min_size=objectives, max_size=objectives)
    return st.lists(row, min_size=1, max_size=most)


def brute_force(rows: np.ndarray) -> list[bool]:
    """A row stays when it is whole and no other is at least as good everywhere and better once."""
    return [
        not np.isnan(row).any()
        and not any((other <= row).all() and (other < row).any() for other in rows)
        for row in rows
    ]


@pytest.fixture
def halving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs take the code path of large ones."""
    monkeypatch.setattr(pareto, "_FEW", 2)
    monkeypatch.setattr(pareto, "_PAIRS", 2)


@pytest.mark.parametrize("objectives", [1, 2, 3, 4, 5])
def test_the_front_is_what_comparing_all_with_all_gives(objectives: int):
    @given(points(objectives))
    @settings(max_examples=60, deadline=None)
    def check(rows: list[list[float]]) -> None:
        assert non_dominated(rows).tolist() == brute_force(np.array(rows))

    check()


@pytest.mark.parametrize("objectives", [3, 4, 5])
@pytest.mark.usefixtures("halving")
def test_so_it_is_by_halving(objectives: int):
    @given(points(objectives))
    @settings(max_examples=60, deadline=None)
    def check(rows: list[list[float]]) -> None:
        assert non_dominated(rows).tolist() == brute_force(np.array(rows))

    check()


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_so_it_is_for_a_large_front(objectives: int):
    rng = np.random.default_rng(objectives)
    rows = rng.integers(0, 40, (1500, objectives)).astype(float)
    rows[rng.random(rows.shape) < 0.01] = INF
    at_most, below = (rows[:, None] <= rows).all(axis=2), (rows[:, None] < rows).any(axis=2)
    assert non_dominated(rows).tolist() == (~(at_most & below).any(axis=0)).tolist()


def test_a_front_of_everything_is_everything():
    rng = np.random.default_rng(1)
    sphere = -np.abs(rng.normal(size=(2000, 3)))
    sphere /= np.linalg.norm(sphere, axis=1)[:, None]
    assert non_dominated(sphere).all()


def test_no_points_have_no_front_and_no_volume():
    assert non_dominated(np.empty((0, 2))).tolist() == []
    assert hypervolume(np.empty((0, 2)), [1, 1]) == 0.0
    assert non_dominated([]).tolist() == [] and hypervolume([], [1]) == 0.0


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_the_volume_is_the_number_of_unit_cubes_that_are_won(objectives: int):
    cubes = np.array(list(itertools.product(range(4), repeat=objectives)), dtype=float)

    @given(st.lists(st.tuples(*[st.integers(0, 5)] * objectives), min_size=1, max_size=12))
    @settings(max_examples=60, deadline=None)
    def check(rows: list[tuple[int, ...]]) -> None:
        won = sum(any((np.array(row) <= cube).all() for row in rows) for cube in cubes)
        assert hypervolume(np.array(rows, dtype=float), [4] * objectives) == pytest.approx(won)

    check()


cells = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8)


@given(cells, cells)
def test_the_gain_of_a_point_is_the_difference_of_two_hypervolumes(front, added):
    corner = np.full(2, 4.0)
    gains = hypervolume_gain(np.array(added, float), np.array(front, float), corner)
    for point, gain in zip(added, gains, strict=True):
        after = hypervolume([*front, point], corner)
        assert gain == pytest.approx(after - hypervolume(front, corner))


def test_nan_is_on_no_front_dominates_nothing_and_adds_no_volume():
    assert non_dominated([(NAN, 0.0), (1.0, 1.0), (2.0, NAN)]).tolist() == [False, True, False]
    assert hypervolume([[0.0, NAN], [1.0, 1.0]], [2, 2]) == pytest.approx(1.0)


def test_infinity_is_worse_than_any_number_and_adds_no_volume():
    assert non_dominated([(0.0, INF), (1.0, 5.0), (1.0, INF)]).tolist() == [True, True, False]
    assert non_dominated([(INF, INF), (INF, INF)]).all()
    assert hypervolume([(0.0, INF), (0.5, 0.5)], (1.0, 1.0)) == pytest.approx(0.25)
    assert hypervolume([(-INF, 0.5)], (1.0, 1.0)) == INF
    with pytest.raises(ValueError, match="must be finite"):
        hypervolume([(0.0, 0.0)], (1.0, INF))


def test_points_outside_the_reference_add_nothing():
    assert hypervolume([(2.0, 0.0), (0.5, 0.5)], (1.0, 1.0)) == pytest.approx(0.25)
    assert hypervolume([(0.0, 1.0)], (1.0, 1.0)) == 0.0


def test_a_scale_of_results_that_are_all_beyond_the_given_worst_has_a_box():
    scale = scale_of([8e5, 9e5], "max", worst=1e6)
    assert scale.best > scale.worst == 1e6
    assert share([[9e5]], [scale]) == 0.0
    assert 0.0 < share([[scale.worst + 1]], [scale]) < 1.0


def test_what_is_better_than_the_ideal_fills_the_box_and_no_more():
    scales = [scale_of([3.0, 2.0], "min", best=1.0, worst=4.0), scale_of([0.5], "max", ideal=1.0)]
    assert share([[0.2, 1.0]], scales) == pytest.approx(share([[1.0, 1.0]], scales)) == 1.0
