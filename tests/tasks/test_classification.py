"""Classification: a folder a class, or a table; macro F1."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks import Score, open_task
from edgeloop.tasks.classification import Classification, ClassificationScorer
from tests.tasks import exact

NAMES = ("bird", "cat", "dog")


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Each picture's first channel says its class."""
    for label, name in enumerate(NAMES):
        (tmp_path / "animals" / name).mkdir(parents=True)
        for number in range(8):
            ending = "png" if number % 2 else "jpg"
            picture = Image.new("RGB", (20, 16), (label * 100, 0, number))
            picture.save(tmp_path / "animals" / name / f"{number}.{ending}")
    return tmp_path / "animals"


def opened(dataset: Path) -> Classification:
    task = open_task("classification", dataset, dataset.parent / "cache")
    assert isinstance(task, Classification)
    return task


def scored(outputs: np.ndarray, labels: np.ndarray, classes: int = 3) -> Score:
    scorer = ClassificationScorer([f"c{n}" for n in range(classes)])
    scorer.add(outputs, labels)
    return scorer.score()


def test_folders_are_the_classes_and_both_parts_have_several(animals: Path):
    task = opened(animals)
    assert tuple(task.classes) == NAMES
    first, last = task.calibration(8, 8, 12), task.test(8, 8, 12)
    for samples in (first, last):
        assert samples.images.shape == (12, 8, 8, 3)
        red = samples.images[:, 4, 4, 0].astype(int)
        assert np.array_equal(np.round(red / 100), samples.labels)
        assert len(set(samples.labels.tolist())) == 3


def test_a_table_says_the_same(animals: Path):
    rows = [f"{p.relative_to(animals)},{p.parent.name}" for p in sorted(animals.glob("*/*"))]
    by_folder = opened(animals).test(8, 8, 12)
    (animals / "labels.csv").write_text("file,label\n" + "\n".join(rows))
    by_table = opened(animals).test(8, 8, 12)
    assert by_table.key == by_folder.key


def test_numbers_as_classes_are_sorted_as_numbers(animals: Path):
    rows = [f"dog/{n}.{'png' if n % 2 else 'jpg'},{n + 5}" for n in range(8)]
    (animals / "labels.csv").write_text("file,label\n" + "\n".join(rows))
    assert opened(animals).classes == tuple(str(n) for n in range(5, 13))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,label\na,b\n", "needs the columns file,label"),
        ("file,label\n../secret.png,cat\n", "no file below"),
        ("file,label\n/etc/passwd,cat\n", "no file below"),
        ("file,label\ncat/99.png,cat\n", "'cat/99.png', which is not there"),
        ("file,label\ncat/1.png,\n", "a row without a label"),
        ("file,label\n", "names no picture"),
    ],
)
def test_a_bad_table_is_explained(animals: Path, text: str, said: str):
    (animals / "labels.csv").write_text(text)
    with pytest.raises((BadInput, NotFound), match=said):
        opened(animals).test(8, 8, 2)


def test_a_broken_picture_is_named_and_an_empty_folder_explained(animals: Path, tmp_path: Path):
    for path in animals.glob("*/*"):
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(BadInput, match="cannot be read as an image"):
        opened(animals).test(8, 8, 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="one folder per class"):
        opened(tmp_path / "empty").test(8, 8, 2)


def test_f1_is_the_mean_over_the_classes_that_occur():
    truth = np.array([0, 0, 0, 1, 1, 1, 1, 0], np.uint16)
    answer = np.array([0, 0, 1, 1, 1, 2, 1, 0])
    iou, f1, _ = exact.iou_and_f1(exact.confusion(truth, answer, 3))
    score = scored(answer, truth)
    assert score.headline == pytest.approx((f1[0] + f1[1]) / 2, abs=1e-12)
    assert list(score.table["iou"].values())[:3] == pytest.approx(iou, abs=1e-12)
    assert score.counts.tolist() == np.stack([truth, answer], 1).tolist()


def test_logits_are_scored_with_curves():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 500).astype(np.uint16)
    logits = rng.standard_normal((500, 3)).astype(np.float32) + np.eye(3)[labels] * 2
    score = scored(logits.astype(np.float32), labels)
    probability = exact.softmax(logits.T)
    for c in range(3):
        expected = exact.average_precision(probability[c], labels == c)
        assert score.table["AP"][f"c{c}"] == pytest.approx(expected, abs=3e-3)
    assert score.headline == scored(logits.argmax(axis=1), labels).headline
    pooled = scored(logits.reshape(500, 3, 1, 1).astype(np.float32), labels)
    assert pooled.headline == score.headline


def test_class_255_is_a_class_like_any_other():
    labels = np.arange(300, dtype=np.uint16)
    score = scored(np.eye(300, dtype=np.float32) * 20, labels, 300)
    assert score.headline == 1 and score.table["AP"]["c255"] == 1


def test_scores_have_intervals_and_differences(animals: Path):
    task = opened(animals)
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 3, 60)
    good = np.where(rng.random(60) < 0.9, truth, (truth + 1) % 3)
    bad = np.where(rng.random(60) < 0.5, good, (truth + 2) % 3)
    first, second = (np.stack([truth, answer], axis=1) for answer in (good, bad))
    ours = task.interval(first)
    assert ours.low < ours.value < ours.high <= 1
    assert ours.value == pytest.approx(scored(good, truth.astype(np.uint16)).headline, abs=1e-12)
    assert task.difference(first, second).low > 0
    assert task.difference(first, first).high == 0


@pytest.mark.parametrize("shape", [(1, 3), (4, 3, 1, 1), (4,), (4, 1)])
def test_outputs_of_these_shapes_fit(animals: Path, shape: tuple[int, ...]):
    opened(animals).check_output(shape)


@pytest.mark.parametrize("shape", [(1, 4), (1, 3, 3), (1, 19, 8, 8)])
def test_outputs_that_do_not_fit(animals: Path, shape: tuple[int, ...]):
    with pytest.raises(BadInput, match="does not fit a classification into 3 classes"):
        opened(animals).check_output(shape)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (np.zeros((2, 4), np.float32), "does not fit 2 images in 3 classes"),
        (np.full((2, 3), np.nan, np.float32), "NaN or infinite"),
        (np.array([0, 3]), "answered class 3"),
    ],
)
def test_outputs_that_cannot_be_scored(outputs: np.ndarray, said: str):
    with pytest.raises(BadInput, match=said):
        scored(outputs, np.array([0, 1], np.uint16))


def test_nothing_scored_is_no_score():
    with pytest.raises(BadInput, match="no image was scored"):
        ClassificationScorer(NAMES).score()


@pytest.mark.parametrize("form", ["logits", "probabilities", "whole"])
def test_one_output_is_the_score_of_the_second_of_two_classes(form: str):
    labels = np.array([0, 1, 1, 0, 1], np.uint16)
    logits = np.array([-2, 3, -0.5, 1, 0.4], np.float32)
    outputs = {
        "logits": logits[:, None],
        "probabilities": 1 / (1 + np.exp(-logits)),
        "whole": (logits > 0).astype(np.float32),
    }[form]
    two = np.stack([np.zeros_like(logits), logits], axis=1)
    assert scored(outputs, labels, 2).counts.tolist() == scored(two, labels, 2).counts.tolist()


def test_fractions_are_no_class_numbers():
    with pytest.raises(BadInput, match=r"number of a class, but it is 0\.5: 3 classes need"):
        scored(np.array([0.5, 1], np.float32), np.array([0, 1], np.uint16))


def test_a_label_map_says_what_the_outputs_of_a_model_mean(animals: Path):
    """Of ten outputs, two are cats, one each the others; the rest can never be an answer."""
    named = {"7": "cat", "2": "cat", "4": "dog", "0": "bird", "5": None}
    (animals / "label_map.json").write_text(json.dumps(named))
    task = opened(animals)
    assert tuple(task.classes) == ("bird", "cat", "dog")
    samples = task.test(8, 8, 12)
    task.check_output((1, 10))
    with pytest.raises(BadInput, match="speaks of output 7, but the model has only 3 outputs"):
        task.check_output((1, 3))
    outputs = np.zeros((12, 10), np.float32)
    place = np.array([0, 7, 4])[samples.labels]
    place[:1] = np.array([0, 2, 4])[samples.labels[:1]]
    outputs[np.arange(12), place] = 3
    outputs[:, 9] = 9
    for given in (outputs, place):
        scorer = task.scorer()
        scorer.add(given, samples.labels)
        assert scorer.score().headline == 1
    with pytest.raises(BadInput, match="answered class 9, which"):
        task.scorer().add(outputs.argmax(axis=1), samples.labels)
    (animals / "label_map.json").write_text('["cat", "dog"]')
    with pytest.raises(BadInput, match=r"images of 'bird', a class that its label_map\.json"):
        opened(animals).test(8, 8, 12)
    (animals / "label_map.json").write_text('{"0": "cat"}')
    with pytest.raises(BadInput, match="at least two classes"):
        opened(animals).test(8, 8, 12)


def test_of_several_outputs_the_one_that_fits_is_scored(animals: Path):
    task = opened(animals)
    samples = task.test(8, 8, 4)
    right = np.eye(len(NAMES), dtype=np.float32)[samples.labels]
    outputs = {"features": np.zeros((len(right), 64), np.float32), "scores": right}
    task.check_outputs({name: array.shape for name, array in outputs.items()})
    scorer = task.scorer()
    scorer.add(outputs, samples.labels)
    assert (
        scorer.score().table["f1"]["overall"]
        == scored(right, samples.labels).table["f1"]["overall"]
    )
    with pytest.raises(BadInput):
        task.check_outputs({"one": (1, 7), "two": (1, 9)})
