"""The fast formulas give what the plain ones give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra import numpy as arrays

from edgeloop.errors import BadInput
from edgeloop.tasks import Interval, Score, paired_interval
from edgeloop.tasks.depth import Depth
from edgeloop.tasks.metrics import bootstrap, rarity_weighted, tally_classes, tally_logits
from edgeloop.tasks.segmentation import COUNTED, FACE_CLASSES, SegmentationScorer
from tests.tasks import exact
from tests.tasks.outputs import CLASSES, made_up, task

LABELS = some.sampled_from([*range(CLASSES), 255])


def scored(logits: np.ndarray, labels: np.ndarray, **options: object) -> Score:
    scorer = SegmentationScorer(**options)
    scorer.add(logits, labels)
    return scorer.score()


@settings(max_examples=60, deadline=None)
@given(some.data())
def test_any_map_is_scored_as_by_hand(data: some.DataObject):
    shape = data.draw(some.tuples(some.integers(1, 3), some.integers(1, 6), some.integers(1, 6)))
    truth = data.draw(arrays.arrays(np.uint8, shape, elements=LABELS))
    answer = data.draw(arrays.arrays(np.int32, shape, elements=some.integers(0, CLASSES - 1)))
    score = scored(answer, truth)
    table = exact.confusion(truth, answer, CLASSES)
    iou, f1, pixels = exact.iou_and_f1(table)
    assert score.counts.sum(axis=0).tolist() == table
    assert list(score.table["iou"].values())[:-1] == pytest.approx(iou, abs=1e-12)
    assert list(score.table["f1"].values())[:-1] == pytest.approx(f1, abs=1e-12)
    assert score.headline == pytest.approx(exact.overall(f1, pixels, COUNTED), abs=1e-12)
    assert score.table["iou"]["overall"] == pytest.approx(
        exact.overall(iou, pixels, COUNTED), abs=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(some.data())
def test_of_equal_logits_the_first_class_wins_as_in_argmax(data: some.DataObject):
    pixels = data.draw(some.integers(1, 40))
    few = some.sampled_from([-3.0, 0.0, 0.5, 7.0])
    logits = data.draw(arrays.arrays(np.float32, (CLASSES, pixels), elements=few))
    truth = data.draw(arrays.arrays(np.uint8, pixels, elements=LABELS))
    expected = exact.confusion(truth, logits.argmax(axis=0), CLASSES)
    assert tally_logits(logits, truth).confusion.tolist() == expected


@pytest.mark.parametrize("certainty", [0.0, 0.5, 2.0, 6.0, 12.0])
def test_average_precision_is_that_of_sorting(certainty: float):
    logits, labels = made_up(1, side=96, certainty=certainty)
    score = scored(logits, labels)
    kept = labels.ravel() != 255
    truth = labels.ravel()[kept]
    probability = exact.softmax(logits.transpose(1, 0, 2, 3).reshape(CLASSES, -1)[:, kept])
    for c, name in enumerate(FACE_CLASSES):
        expected = exact.average_precision(probability[c], truth == c)
        assert score.table["AP"][name] == pytest.approx(expected, abs=1e-3), name


def test_a_perfect_model_scores_one_and_a_wrong_one_zero():
    labels = np.arange(CLASSES, dtype=np.uint8).repeat(4).reshape(1, 4, CLASSES)
    right = 50.0 * (np.arange(CLASSES)[None, :, None, None] == labels[:, None])
    score = scored(right.astype(np.float32), labels)
    assert all(value == 1 for row in score.table.values() for value in row.values())
    wrong = np.roll(right, 1, axis=1).astype(np.float32)
    assert scored(wrong, labels).headline == 0


def test_ignored_pixels_count_nowhere():
    logits, labels = made_up(2)
    before = scored(logits, labels)
    noise = np.random.default_rng(0).standard_normal(logits.shape).astype(np.float32) * 9
    changed = np.where((labels == 255)[:, None], noise, logits)
    after = scored(changed, labels)
    assert before.table == after.table
    assert np.array_equal(before.counts, after.counts)
    assert before.counts.sum() == (labels != 255).sum()


def test_an_image_of_ignored_pixels_alone_is_an_image_all_the_same():
    logits, labels = made_up(2)
    labels[1] = 255
    score = scored(logits, labels)
    assert len(score.counts) == 3 and not score.counts[1].any()


def test_a_class_without_truth_weighs_nothing():
    logits, labels = made_up(3)
    labels[np.isin(labels, (4, 9))] = 1
    score = scored(logits, labels)
    values = [score.table["f1"][name] for name in FACE_CLASSES]
    pixels = [int((labels == c).sum()) for c in range(CLASSES)]
    assert pixels[4] == pixels[9] == 0
    assert score.headline == pytest.approx(exact.overall(values, pixels, COUNTED), abs=1e-12)
    assert score.table["AP"]["left_eye"] == 0
    assert all(np.isfinite(value) for row in score.table.values() for value in row.values())


def test_background_and_facewear_are_not_in_the_headline():
    logits, labels = made_up(4)
    labels[labels == 0] = 255
    labels[labels == 18] = 255
    kept = scored(logits, labels).headline
    values = np.zeros(CLASSES)
    values[[0, 18]] = 1
    assert rarity_weighted(values, np.ones(CLASSES), COUNTED) == 0
    assert kept > 0


def test_nothing_to_weigh_is_zero_and_no_nan():
    labels = np.zeros((1, 4, 4), np.uint8)
    assert scored(np.zeros((1, 4, 4), np.int64), labels).headline == 0


def test_huge_and_tiny_logits_do_no_harm():
    logits, labels = made_up(5)
    for factor in (1e-30, 1e30):
        score = scored(logits * np.float32(factor), labels)
        assert all(0 <= value <= 1 for row in score.table.values() for value in row.values())
    shifted = scored(logits + np.float32(1000), labels)
    assert shifted.headline == pytest.approx(scored(logits, labels).headline, abs=0.02)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_outputs_that_are_no_numbers_are_refused(bad: float):
    logits, labels = made_up(6)
    logits[1, 3, 5, 5] = bad
    labels[1, 5, 5] = 3
    with pytest.raises(BadInput, match="NaN or infinite"):
        scored(logits, labels)


def test_labels_outside_the_classes_are_refused():
    logits, labels = made_up(6)
    labels[0, 0, 0] = 40
    with pytest.raises(BadInput, match="a label is 40, but the classes are 0–18"):
        scored(logits, labels)


@pytest.mark.parametrize("answer", [-1, 19])
def test_answers_outside_the_classes_are_refused(answer: int):
    with pytest.raises(BadInput, match=f"answered class {answer}"):
        tally_classes(np.array([answer]), np.array([0], np.uint8), CLASSES)


# Intervals


def counts_of(seed: int, images: int, certainty: float) -> np.ndarray:
    return scored(*made_up(seed, images, 12, certainty), curves=False).counts


def test_an_interval_is_what_drawing_images_by_hand_gives():
    counts = counts_of(1, 20, 2.0)
    got = task().interval(counts)
    rng = np.random.default_rng(99)
    drawn = []
    for _ in range(1000):
        table = counts[rng.integers(0, 20, 20)].sum(axis=0).tolist()
        _, f1, pixels = exact.iou_and_f1(table)
        drawn.append(exact.overall(f1, pixels, COUNTED))
    low, high = np.percentile(drawn, (2.5, 97.5))
    width = high - low
    assert got.low == pytest.approx(low, abs=0.15 * width)
    assert got.high == pytest.approx(high, abs=0.15 * width)
    _, f1, pixels = exact.iou_and_f1(counts.sum(axis=0).tolist())
    assert got.value == pytest.approx(exact.overall(f1, pixels, COUNTED), abs=1e-12)
    assert got.low < got.value < got.high


def test_an_interval_holds_95_percent():
    """Of the mean of 1,000 values it must be ±1.96 standard errors."""
    values = np.random.default_rng(4).standard_normal(1_000)
    got = bootstrap(1_000, lambda weights: weights @ values / 1_000)
    error = values.std() / np.sqrt(1_000)
    assert got.high - got.low == pytest.approx(2 * 1.96 * error, rel=0.08)


def test_an_interval_is_the_same_every_time_and_narrows_with_more_images():
    few, many = counts_of(1, 10, 2.0), counts_of(1, 160, 2.0)
    first = task().interval(few)
    assert first == task().interval(few)
    wide, narrow = first, task().interval(many)
    assert (narrow.high - narrow.low) < 0.5 * (wide.high - wide.low)


def test_one_image_has_an_interval_of_no_width():
    only = task().interval(counts_of(1, 1, 2.0))
    assert only.low == only.high == pytest.approx(only.value, abs=1e-12)


def test_no_image_has_no_interval():
    with pytest.raises(BadInput, match="no scored image"):
        task().interval(np.zeros((0, CLASSES, CLASSES), np.int64))


def test_a_model_does_not_differ_from_itself():
    counts = counts_of(1, 20, 2.0)
    assert task().difference(counts, counts) == Interval(0.0, 0.0, 0.0)


def test_a_paired_difference_is_tighter_than_two_intervals_and_has_a_direction():
    logits, labels = made_up(1, 40, 12, 2.0)
    slightly = logits.copy()
    slightly[:, :, ::4, ::6] = 0
    better, worse = (scored(x, labels, curves=False).counts for x in (logits, slightly))
    difference = task().difference(better, worse)
    alone = task().interval(better)
    assert 0 < difference.low < difference.value < difference.high
    assert difference.high - difference.low < 0.6 * (alone.high - alone.low)
    assert difference.value == pytest.approx(alone.value - task().interval(worse).value, abs=1e-12)
    back = task().difference(worse, better)
    assert back.low == pytest.approx(-difference.high)


@pytest.mark.parametrize("images", [2, 3, 6, 20])
def test_a_paired_interval_of_few_images_covers_what_it_says(images: int):
    """Per-image scores drawn around a known difference; 95 % of the intervals must hold it. The
    bootstrap alone holds it in 49 % of the cases with two images, and in 82 % with six."""
    dice = np.random.default_rng(images)
    whole = Depth(Path(), Path())
    held = 0
    for _ in range(150):
        first, second = dice.normal(0.6, 0.1, (2, images, 1)) + dice.normal(0, 1, (images, 1))
        found = paired_interval(whole, first, second)
        held += found.low <= 0.0 <= found.high
    assert held >= 0.88 * 150


def test_one_image_says_nothing_of_others():
    found = paired_interval(task(), counts_of(1, 1, 2.0), counts_of(2, 1, 1.0))
    assert (found.low, found.high) == (-np.inf, np.inf)
    assert found.value != 0


def test_a_difference_needs_the_same_images():
    with pytest.raises(BadInput, match="here are 3 and 4"):
        task().difference(counts_of(1, 3, 1.0), counts_of(1, 4, 1.0))


def test_many_images_are_resampled_in_bounded_pieces():
    widest = 0

    def headline(weights: np.ndarray) -> np.ndarray:
        nonlocal widest
        widest = max(widest, weights.size)
        assert (weights.sum(axis=1) == 20_000).all()
        return weights[:, 0]

    bootstrap(20_000, headline)
    assert widest <= 4_000_000
