"""The scorer takes what models give, piece by piece, and keeps no logits."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from edgeloop.errors import BadInput
from edgeloop.tasks import Score
from edgeloop.tasks.segmentation import SegmentationScorer
from tests.tasks.outputs import CLASSES, made_up, task


def same(first: Score, second: Score) -> bool:
    return (
        first.headline == second.headline
        and first.table == second.table
        and np.array_equal(first.counts, second.counts)
        and all(np.array_equal(first.curves[n], second.curves[n]) for n in first.curves)
    )


def one_shot(outputs: np.ndarray, labels: np.ndarray) -> Score:
    scorer = SegmentationScorer()
    scorer.add(outputs, labels)
    return scorer.score()


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_give_what_the_whole_gives(threads: int):
    logits, labels = made_up(1, 7, 100)
    scorer = SegmentationScorer(threads=threads)
    for start, end in ((0, 1), (1, 4), (4, 7)):
        scorer.add(logits[start:end], labels[start:end])
    assert same(scorer.score(), one_shot(logits, labels))


def test_the_order_of_channels_does_not_matter():
    logits, labels = made_up(1)
    last = np.ascontiguousarray(logits.transpose(0, 2, 3, 1))
    assert same(one_shot(last, labels), one_shot(logits, labels))
    assert same(one_shot(last.transpose(0, 3, 1, 2), labels), one_shot(logits, labels))


@pytest.mark.parametrize("kind", [np.float64, np.float16])
def test_other_float_types_are_taken(kind: type):
    logits, labels = made_up(1)
    typed = logits.astype(kind)
    assert same(one_shot(typed, labels), one_shot(typed.astype(np.float32), labels))


@pytest.mark.parametrize("shape", ["nhw", "n1hw", "nhw1"])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8, np.float32])
def test_class_maps_score_as_their_logits_without_curves(kind: type, shape: str):
    logits, labels = made_up(1)
    maps = logits.argmax(axis=1).astype(kind)
    maps = {"nhw": maps, "n1hw": maps[:, None], "nhw1": maps[..., None]}[shape]
    ours, theirs = one_shot(maps, labels), one_shot(logits, labels)
    assert ours.headline == theirs.headline
    assert np.array_equal(ours.counts, theirs.counts)
    assert ours.curves == {} and set(ours.table) == {"iou", "f1"}


def test_without_curves_everything_else_is_the_same():
    logits, labels = made_up(1)
    scorer = SegmentationScorer(curves=False)
    scorer.add(logits, labels)
    ours, theirs = scorer.score(), one_shot(logits, labels)
    assert ours.headline == theirs.headline
    assert set(theirs.table) - set(ours.table) == {"AP"} and ours.curves == {}


def test_memory_given_is_not_changed():
    logits, labels = made_up(1)
    copies = logits.copy(), labels.copy()
    one_shot(logits, labels)
    assert np.array_equal(logits, copies[0]) and np.array_equal(labels, copies[1])


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((3, CLASSES, 12, 12), "smaller than its input; let the model end with a Resize"),
        ((3, 12, 12, CLASSES), "smaller than its input"),
        ((3, CLASSES, 48, 48), "larger than its input"),
        ((3, 21, 24, 24), r"\[3, 21, 24, 24\] does not fit labels \[3, 24, 24\]"),
        ((2, CLASSES, 24, 24), "does not fit"),
        ((3, CLASSES), "does not fit"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_in_a_sentence(shape: tuple[int, ...], said: str):
    _, labels = made_up(1)
    with pytest.raises(BadInput, match=said):
        one_shot(np.zeros(shape, np.float32), labels)


def test_fractions_are_no_classes_and_integers_no_logits():
    logits, labels = made_up(1)
    with pytest.raises(BadInput, match="fractions"):
        one_shot(logits[:, 0], labels)
    with pytest.raises(BadInput, match="turn quantized logits into floats"):
        one_shot(logits.astype(np.int8), labels)


def test_nothing_scored_is_no_score():
    with pytest.raises(BadInput, match="no image was scored"):
        SegmentationScorer().score()


@pytest.mark.parametrize("shape", [(1, 19, 8, 9), (4, 8, 9, 19), (1, 8, 9), (1, 1, 8, 9)])
def test_shapes_of_segmentation_are_welcome(shape: tuple[int, ...]):
    task().check_output(shape)


@pytest.mark.parametrize("shape", [(1, 19), (1, 20, 8, 9), (1,), (1, 19, 8, 8, 8)])
def test_other_shapes_are_refused_before_anything_runs(shape: tuple[int, ...]):
    with pytest.raises(BadInput, match="does not fit the 19 classes"):
        task().check_output(shape)


GROWTH = """
import resource
import numpy as np
from edgeloop.tasks.segmentation import SegmentationScorer

logits = np.random.default_rng(0).standard_normal((2, 19, 256, 256), dtype=np.float32)
labels = logits.argmax(axis=1).astype(np.uint8)
scorer = SegmentationScorer()
scorer.add(logits, labels)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(100):
    scorer.add(logits, labels)
assert len(scorer.score().counts) == 202
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_test_set():
    """200 images have 1 GB of logits; what is kept of them are 200 small matrices."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) < 24_000, "kB"
