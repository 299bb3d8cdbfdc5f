"""Calibration and test never share an image, whatever is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgeloop.errors import BadInput
from edgeloop.tasks.dataset import for_calibration, for_test

ROOT = Path("faces")


@given(some.integers(2, 120_000), some.integers(1, 20_000), some.integers(1, 20_000))
def test_the_two_parts_never_overlap(total: int, calibrating: int, testing: int):
    items = range(total)
    first, _ = for_calibration(items, calibrating, ROOT)
    last, _ = for_test(items, testing, ROOT)
    assert 1 <= len(first) <= calibrating and 1 <= len(last) <= testing
    assert first[0] == 0 and last[-1] == total - 1
    assert first[-1] < last[0]


@pytest.mark.parametrize(
    ("total", "calibrating", "testing"),
    [
        (100_000, 1_000, 1_000),
        (100_000, 1_000, 10_000),
        (11_000, 1_000, 10_000),
        (2_000, 1_000, 1_000),
        (200, 100, 100),
    ],
)
def test_what_fits_is_given_without_a_note(total: int, calibrating: int, testing: int):
    first, note = for_calibration(range(total), calibrating, ROOT)
    assert (list(first), note) == (list(range(calibrating)), "")
    last, note = for_test(range(total), testing, ROOT)
    assert (list(last), note) == (list(range(total - testing, total)), "")


def test_a_small_dataset_is_split_in_proportion_and_says_so():
    first, note = for_calibration(range(30), 1_000, ROOT)
    assert list(first) == list(range(15))
    assert note.startswith("15 calibration images instead of 1000: the dataset has 30")
    last, note = for_test(range(30), 1_000, ROOT)
    assert list(last) == list(range(15, 30))
    assert note.startswith("15 test images instead of 1000")


def test_one_image_is_not_enough_for_two_parts():
    with pytest.raises(BadInput, match="at least one each"):
        for_test(range(1), 1, ROOT)


@pytest.mark.parametrize("count", [0, -5])
def test_no_image_is_not_a_part(count: int):
    with pytest.raises(BadInput, match=f"not {count}"):
        for_calibration(range(10), count, ROOT)
