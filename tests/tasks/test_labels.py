"""Classes come from the dataset's label map, and a model may have fewer where none that counts is
missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.errors import BadInput
from edgeloop.tasks import FACE_CLASSES, TakesOutputs, open_task
from edgeloop.tasks.segmentation import SegmentationScorer
from tests.tasks.outputs import made_up


def dataset(root: Path, labels: np.ndarray, content: object = None) -> Path:
    root.mkdir()
    for number in range(8):
        image = np.full((*labels.shape, 3), 10 * number, np.uint8)
        Image.fromarray(image).save(root / f"{number:06d}.png")
        Image.fromarray(labels.astype(np.uint8)).save(root / f"{number:06d}_seg.png")
    if content is not None:
        (root / "label_map.json").write_text(json.dumps(content))
    return root


def test_a_map_names_joins_and_leaves_out_classes(tmp_path: Path):
    labels = np.array([[0, 40], [41, 9]])
    names = {"40": "road", "41": "road", "0": "background", "50": "car", "9": None}
    task = open_task("segmentation", dataset(tmp_path / "d", labels, names), tmp_path / "cache")
    assert task.classes == ("background", "road", "car")
    samples = task.test(2, 2, 4)
    assert samples.labels[0].tolist() == [[0, 1], [1, 255]]
    task.check_output((1, 3, 2, 2))
    for shape in ((1, 2, 8, 8), (1, 19, 8, 8)):  # no car; too many
        with pytest.raises(BadInput, match=r"the 3 classes of .*label_map\.json"):
            task.check_output(shape)
    scorer = task.scorer()
    right = np.stack([samples.labels == number for number in range(3)], axis=1)
    scorer.add(right.astype(np.float32), samples.labels)
    score = scorer.score()
    assert score.headline == pytest.approx(1.0)
    assert list(score.table["f1"]) == ["background", "road", "car", "overall"]
    assert task.interval(score.counts).value == pytest.approx(1.0)


def test_a_changed_map_is_not_answered_from_the_cache(tmp_path: Path):
    labels = np.array([[0, 1], [2, 0]])
    root, cache = dataset(tmp_path / "d", labels, ["background", "a", "b"]), tmp_path / "cache"
    before = open_task("segmentation", root, cache).test(2, 2, 4)
    (root / "label_map.json").write_text(json.dumps(["background", "a", "a"]))
    after = open_task("segmentation", root, cache).test(2, 2, 4)
    assert (before.labels.max(), after.labels.max()) == (2, 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"0": "background", "x": "road"}, "pixel value 'x'"),
        ({"0": "background", "300": "road"}, "pixel value '300'"),
        ({"0": "background", "1": 7}, "7 in place of a class name"),
        ({"0": "background"}, "at least two classes"),
        ({"0": "background", "255": "road"}, "never counts"),
        ("background", "must map pixel values"),
    ],
)
def test_a_map_that_cannot_be_one_is_refused(tmp_path: Path, content: object, said: str):
    root = dataset(tmp_path / "d", np.zeros((2, 2)), content)
    with pytest.raises(BadInput, match=said):
        _ = open_task("segmentation", root, tmp_path / "cache").classes


def test_labels_outside_of_the_map_name_the_remedy(tmp_path: Path):
    root = dataset(tmp_path / "d", np.full((2, 2), 30))
    with pytest.raises(BadInput, match=r"holds label 30.*label_map\.json"):
        open_task("segmentation", root, tmp_path / "cache").test(2, 2, 4)


@pytest.mark.parametrize("layout", ["first", "last"])
def test_a_model_without_the_class_that_does_not_count_scores_as_if_it_never_answered_it(
    layout: str,
):
    """18 classes beside 19: as one with a 19th that is always the least likely."""
    logits, labels = made_up(1)
    scores = []
    for outputs in (logits[:, :18], np.concatenate([logits[:, :18], -1e9 + logits[:, 18:]], 1)):
        scorer = SegmentationScorer()
        scorer.add(outputs if layout == "first" else outputs.transpose(0, 2, 3, 1), labels)
        scores.append(scorer.score())
    assert (labels == 18).any()
    assert scores[0].headline == scores[1].headline
    assert scores[0].table == scores[1].table
    assert list(scores[0].table["f1"]) == [*FACE_CLASSES, "overall"]


def of_one_channel(labels: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """Logits of the second class that are right nine times out of ten."""
    right = np.where(dice.random(labels.shape) < 0.9, 1.0, -1.0)
    return (2 * (labels == 1) - 1) * right * dice.uniform(0.5, 4, labels.shape)


@pytest.mark.parametrize("form", ["logits", "probabilities", "quantized", "whole"])
def test_one_channel_is_the_score_of_the_second_of_two_classes(form: str, tmp_path: Path):
    dice = np.random.default_rng(5)
    labels = dice.integers(0, 2, (4, 16, 16)).astype(np.uint8)
    labels[:, 0] = 255
    logits = of_one_channel(labels, dice).astype(np.float32)
    probabilities = 1 / (1 + np.exp(-logits))
    outputs = {
        "logits": logits[:, None],
        "probabilities": probabilities[..., None],
        "quantized": np.rint(probabilities * 257) / 256 - 1 / 512,  # leaves 0 to 1
        "whole": (logits > 0).astype(np.float32),
    }[form].astype(np.float32)
    one = SegmentationScorer(("background", "person"), (1,))
    one.add(outputs, labels)
    two = SegmentationScorer(("background", "person"), (1,))
    two.add(np.stack([np.zeros_like(logits), logits], axis=1), labels)
    assert one.score().headline == two.score().headline
    assert 0.8 < one.score().headline < 1
    if form in ("logits", "probabilities"):
        expected = two.score().table["AP"]["person"]
        assert one.score().table["AP"]["person"] == pytest.approx(expected, abs=2e-3)


def test_a_model_of_the_wrong_classes_is_told_which(tmp_path: Path):
    names = ["background", "road", "car", "tree", "sky", "rail"]
    root = dataset(tmp_path / "d", np.zeros((2, 2)), names)
    task = open_task("segmentation", root, tmp_path / "cache")
    with pytest.raises(BadInput, match="with 2 classes it lacks car, tree, sky and 1 more;"):
        task.check_output((1, 2, 64, 64))
    with pytest.raises(BadInput, match="it has 21 classes, 15 too many;"):
        task.check_output((1, 64, 64, 21))


def test_of_several_outputs_the_one_that_fits_is_scored(tmp_path: Path):
    labels = np.array([[0, 1], [2, 0]])
    root = dataset(tmp_path / "d", labels, ["background", "a", "b"])
    task = open_task("segmentation", root, tmp_path / "cache")
    assert isinstance(task, TakesOutputs)
    samples = task.test(2, 2, 4)
    right = np.stack([samples.labels == number for number in range(3)], axis=1).astype(np.float32)
    outputs = {"features": np.zeros((4, 64, 8, 8), np.float32), "out": right, "aux": 0 * right}
    task.check_outputs({name: array.shape for name, array in outputs.items()})
    scorer = task.scorer()
    scorer.add(outputs, samples.labels)
    assert scorer.score().headline == 1
    with pytest.raises(BadInput, match=r"\[1, 7, 2, 2\] does not fit the 3 classes"):
        task.check_outputs({"one": (1, 7, 2, 2), "two": (1, 9, 2, 2)})
