"""What every task promises: splits that never overlap, and scores that add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from edgeloop.errors import BadInput
from edgeloop.tasks import (
    Illustrates,
    Labels,
    Output,
    Samples,
    Score,
    TakesOutputs,
    Task,
    Tensors,
    Trainable,
    paired_interval,
)

MANY = 10_000


def contents(samples: Samples) -> set[bytes]:
    return {image.tobytes() for image in samples.images}


def score(task: Task, pieces: Iterable[tuple[Output | Tensors, Labels]]) -> Score:
    scorer = task.scorer()
    for outputs, labels in pieces:
        scorer.add(outputs, labels)
    return scorer.score()


def each(outputs: Output | Tensors, change: Any) -> Any:
    """An output, or all outputs by name, changed."""
    if isinstance(outputs, Mapping):
        return {name: change(array) for name, array in outputs.items()}
    return change(outputs)


class TaskContract:
    """Fixture: `task`, open on a dataset of at least eight different images. Override `perfect`
    where the outputs of a model that is always right are not logits of the labels' classes, and
    `best` where its score is not 1. For a task that `TakesOutputs`, they are outputs by name."""

    height = 32
    width = 32
    best = 1.0

    def perfect(self, task: Task, labels: Labels) -> Output | Tensors:
        """Logits (n, classes, …) whose largest is the label's."""
        return np.stack([labels == c for c in range(len(task.classes))], axis=1).astype(np.float32)

    @pytest.fixture
    def tested(self, task: Task) -> Samples:
        return task.test(self.height, self.width, MANY)

    # Samples

    def test_images_have_the_shape_that_was_asked_for_and_a_label_each(
        self, task: Task, tested: Samples
    ) -> None:
        for samples in (tested, task.calibration(self.height, self.width, MANY)):
            assert len(samples) > 0
            assert samples.images.shape == (len(samples), self.height, self.width, 3)
            assert samples.images.dtype == np.uint8
            assert len(samples.labels) == len(samples)

    def test_calibration_never_sees_an_image_of_the_test(self, task: Task, tested: Samples) -> None:
        calibration = task.calibration(self.height, self.width, MANY)
        assert not contents(calibration) & contents(tested)

    def test_training_and_validation_never_see_an_image_of_the_test(
        self, task: Task, tested: Samples
    ) -> None:
        if not isinstance(task, Trainable):
            return
        training = contents(task.training(self.height, self.width))
        validation = contents(task.validation(self.height, self.width))
        assert training and validation
        assert not (training | validation) & contents(tested)
        assert not training & validation

    def test_no_more_images_come_than_were_asked_for(self, task: Task, tested: Samples) -> None:
        assert len(task.calibration(self.height, self.width, 2)) == 2
        some = task.test(self.height, self.width, 2)
        assert len(some) == 2
        assert contents(some) <= contents(tested)

    def test_the_key_names_the_content(self, task: Task, tested: Samples) -> None:
        again = task.test(self.height, self.width, MANY)
        assert again.key == tested.key
        np.testing.assert_array_equal(again.images, tested.images)
        np.testing.assert_array_equal(again.labels, tested.labels)
        others = [
            task.test(2 * self.height, self.width, MANY),
            task.test(self.height, self.width, 2),
            task.calibration(self.height, self.width, 2),
        ]
        assert len({tested.key, *(samples.key for samples in others)}) == 4

    # Scores

    def test_a_model_that_is_always_right_scores_best(self, task: Task, tested: Samples) -> None:
        outputs = self.perfect(task, tested.labels)
        if isinstance(outputs, Mapping):
            assert isinstance(task, TakesOutputs)
            task.check_outputs({name: array.shape for name, array in outputs.items()})
        else:
            task.check_output(outputs.shape)
        found = score(task, [(outputs, tested.labels)])
        assert found.headline == pytest.approx(self.best)
        assert len(found.counts) == len(tested)

    def test_a_model_that_says_the_same_of_every_image_scores_less(
        self, task: Task, tested: Samples
    ) -> None:
        outputs = self.perfect(task, tested.labels)
        right = score(task, [(outputs, tested.labels)])
        wrong = score(task, [(each(outputs, np.zeros_like), tested.labels)])
        assert wrong.headline < right.headline
        difference = task.difference(right.counts, wrong.counts)
        assert difference.value == pytest.approx(right.headline - wrong.headline)
        assert difference.low <= difference.value <= difference.high
        wider = paired_interval(task, right.counts, wrong.counts)
        assert wider.value == difference.value
        assert wider.low <= difference.low <= difference.high <= wider.high

    def test_pieces_score_as_the_whole_does(self, task: Task, tested: Samples) -> None:
        dice = np.random.default_rng(0)

        def noisy(array: Output) -> Output:
            spread = max(0.7, 0.05 * float(np.abs(array).max()))
            changed: Output = array + dice.normal(0, spread, array.shape).astype(array.dtype)
            return changed

        outputs = each(self.perfect(task, tested.labels), noisy)
        whole = score(task, [(outputs, tested.labels)])
        parts = score(
            task,
            [
                (each(outputs, lambda array, i=i: array[i : i + 1]), tested.labels[i : i + 1])
                for i in range(len(tested))
            ],
        )
        assert parts.headline == whole.headline
        assert parts.table == whole.table
        np.testing.assert_array_equal(parts.counts, whole.counts)

    def test_the_interval_holds_the_headline(self, task: Task, tested: Samples) -> None:
        found = score(task, [(self.perfect(task, tested.labels), tested.labels)])
        interval = task.interval(found.counts)
        assert interval.value == pytest.approx(found.headline)
        assert interval.low <= interval.value <= interval.high
        same = paired_interval(task, found.counts, found.counts)
        assert (same.low, same.value, same.high) == (0, 0, 0)

    # Images

    def test_images_of_a_model_that_is_always_right_show_the_truth(
        self, task: Task, tested: Samples
    ) -> None:
        scorer, outputs = task.scorer(), self.perfect(task, tested.labels)
        scorer.add(outputs, tested.labels)
        if not isinstance(scorer, Illustrates):
            return
        last = each(outputs, lambda array: array[-2:])
        shown = scorer.illustrate(last, tested.labels[-2:])
        assert shown.truth.ndim == 3 and shown.truth.shape == shown.answers.shape
        assert len(shown.truth) == 2
        counted = (shown.truth >= 0) & (shown.truth < len(shown.classes))
        np.testing.assert_array_equal(shown.answers[counted], shown.truth[counted])

    # What is refused

    def test_outputs_that_cannot_be_scored_are_refused(self, task: Task, tested: Samples) -> None:
        with pytest.raises(BadInput):
            task.check_output((1, 2, 3, 4, 5, 6))
        scorer, wrong = task.scorer(), np.zeros((len(tested), 2, 3, 4, 5, 6), np.float32)
        with pytest.raises(BadInput):
            is_named = isinstance(task, TakesOutputs)
            scorer.add({"output": wrong} if is_named else wrong, tested.labels)

    def test_a_score_of_nothing_is_refused(self, task: Task) -> None:
        with pytest.raises(BadInput):
            task.scorer().score()
