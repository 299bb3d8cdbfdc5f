"""The front and its volume, held against the plainest way to say what they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeloop import pareto as front
from edgeloop.report import hypervolume, non_dominated
from edgeloop.search.sampler.hypervolume import non_dominated as of_the_search

# Few distinct values: ties, equal points and NaN are the rule.
COORDINATES = st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0, 4.0, float("inf"), float("nan")])


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
    """Small tables take the way of large ones."""
    monkeypatch.setattr(front, "_FEW", 2)
    monkeypatch.setattr(front, "_PAIRS", 2)


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
def test_a_large_front_is_that_of_the_search(objectives: int):
    rng = np.random.default_rng(objectives)
    rows = rng.integers(0, 40, (1500, objectives)).astype(float)
    assert non_dominated(rows).tolist() == of_the_search(rows).tolist()


def test_a_front_of_everything_is_everything():
    rng = np.random.default_rng(1)
    sphere = -np.abs(rng.normal(size=(2000, 3)))
    sphere /= np.linalg.norm(sphere, axis=1)[:, None]
    assert non_dominated(sphere).all()


def test_no_points_have_no_front_and_no_volume():
    assert non_dominated(np.empty((0, 2))).tolist() == []
    assert hypervolume(np.empty((0, 2)), [1, 1]) == 0.0


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_the_volume_is_the_number_of_unit_cubes_that_are_won(objectives: int):
    cubes = np.array(list(itertools.product(range(4), repeat=objectives)), dtype=float)

    @given(st.lists(st.tuples(*[st.integers(0, 5)] * objectives), min_size=1, max_size=12))
    @settings(max_examples=60, deadline=None)
    def check(rows: list[tuple[int, ...]]) -> None:
        won = sum(any((np.array(row) <= cube).all() for row in rows) for cube in cubes)
        assert hypervolume(np.array(rows, dtype=float), [4] * objectives) == pytest.approx(won)

    check()


def test_a_point_with_nan_wins_nothing():
    assert hypervolume([[0.0, float("nan")], [1.0, 1.0]], [2, 2]) == pytest.approx(1.0)
