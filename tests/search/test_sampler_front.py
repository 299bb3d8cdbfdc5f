"""Fronts and hypervolumes beside what one gets by counting."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeloop.search.sampler.hypervolume import gain_of_two, hypervolume, non_dominated

SIDE = 4


def sets_of(dimensions):
    point = st.tuples(*[st.integers(0, SIDE) for _ in range(dimensions)])
    return st.lists(point, min_size=1, max_size=8)


sets = st.integers(1, 4).flatmap(sets_of)


def counted(points):
    """Unit cells of a SIDE-sized box that some point dominates."""
    cells = product(range(SIDE), repeat=len(points[0]))
    return sum(
        any(all(p <= c for p, c in zip(point, cell, strict=True)) for point in points)
        for cell in cells
    )


@given(sets)
def test_the_hypervolume_is_that_of_counting_cells(points):
    corner = [SIDE] * len(points[0])
    assert hypervolume(points, corner) == pytest.approx(counted(points))


@given(sets)
def test_a_point_stays_exactly_if_no_other_beats_it(points):
    rows = np.array(points)
    expected = [not any((o <= r).all() and (o < r).any() for o in rows) for r in rows]
    assert non_dominated(points).tolist() == expected


@given(sets_of(2), sets_of(2))
def test_the_gain_of_a_point_is_the_difference_of_two_hypervolumes(front, points):
    corner = np.full(2, float(SIDE))
    gains = gain_of_two(np.array(points, float), np.array(front, float), corner)
    for point, gain in zip(points, gains, strict=True):
        after = hypervolume([*front, point], corner)
        assert gain == pytest.approx(after - hypervolume(front, corner))


def test_a_row_with_nan_is_on_no_front_and_hides_nobody():
    nan = float("nan")
    assert non_dominated([(nan, 0.0), (1.0, 1.0), (2.0, nan)]).tolist() == [False, True, False]


def test_points_outside_the_reference_count_nothing():
    assert hypervolume([(2.0, 0.0), (0.5, 0.5)], (1.0, 1.0)) == pytest.approx(0.25)
    assert hypervolume(np.empty((0, 2)), (1.0, 1.0)) == 0.0
