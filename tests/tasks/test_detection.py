"""Detection: COCO's layout, outputs recognized by their shapes, and pycocotools' mAP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks import Samples, Score, Tensors, open_task
from edgeloop.tasks.coco import Found, Truth, matched, matches_type, score_of
from edgeloop.tasks.detection import Detection, suppressed
from tests.tasks import coco
from tests.tasks.coco_reference import coco_stats


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coco.write(tmp_path_factory.mktemp("coco") / "data", coco.content())


def opened(root: Path, **options: object) -> Detection:
    if options:
        (root / "detection.json").write_text(json.dumps(options))
    task = open_task("detection", root, root.parent / "cache")
    assert isinstance(task, Detection)
    return task


def scored(task: Detection, outputs: Tensors, samples: Samples) -> Score:
    task.check_outputs({name: array.shape for name, array in outputs.items()})
    scorer = task.scorer()
    scorer.add(outputs, samples.labels)
    return scorer.score()


def centres(boxes: np.ndarray) -> np.ndarray:
    size = boxes[..., 2:] - boxes[..., :2]
    return np.concatenate([boxes[..., :2] + size / 2, size], axis=-1)


def logit(scores: np.ndarray) -> np.ndarray:
    share = np.clip(scores, 1e-4, 1 - 1e-4)
    return np.log(share / (1 - share))


def with_background(scores: np.ndarray, first: bool) -> np.ndarray:
    """Logits of a softmax: nothing, where there is no class."""
    nothing = 1 - scores.sum(axis=-1, keepdims=True)
    parts = (nothing, scores) if first else (scores, nothing)
    return np.log(np.concatenate(parts, axis=-1) + 1e-6)


def by_id(scores: np.ndarray) -> np.ndarray:
    """The categories are 1, 3 and 7."""
    result = np.zeros((*scores.shape[:2], 8), np.float32)
    result[..., [1, 3, 7]] = scores
    return result


def final(boxes: np.ndarray, scores: np.ndarray) -> dict[str, np.ndarray]:
    return {"a": boxes, "b": scores.argmax(-1).astype(np.int64), "c": scores.max(-1)}


def joined(*parts: np.ndarray) -> dict[str, np.ndarray]:
    return {"output0": np.concatenate(parts, axis=-1)}


FORMS: dict[str, Callable[[np.ndarray, np.ndarray], Tensors]] = {
    "split": lambda b, s: {"boxes": b, "scores": s},
    "split, pixels, channels first": lambda b, s: {
        "boxes": 128 * b.transpose(0, 2, 1),
        "scores": logit(s).transpose(0, 2, 1),
    },
    "split, unnamed, with a mask": lambda b, s: {
        "1": s,
        "2": b,
        "3": np.zeros((len(b), 32, 16, 16)),
    },
    "split, an axis between": lambda b, s: {"boxes": b[:, :, None], "confs": s},
    "DETR": lambda b, s: {"logits": with_background(s, first=False), "pred_boxes": centres(b)},
    "SSD": lambda b, s: {"scores": with_background(s, first=True), "boxes": b},
    "by category": lambda b, s: {"scores": by_id(s), "boxes": b},
    "YOLOv8": lambda b, s: {
        "output0": np.concatenate([128 * centres(b), s], axis=-1).transpose(0, 2, 1)
    },
    "YOLOv5": lambda b, s: joined(128 * centres(b), s.max(-1, keepdims=True), (s > 0) * 1.0),
    "YOLOX, raw": lambda b, s: joined(
        128 * centres(b), logit(s.max(-1, keepdims=True)), logit((s > 0) * 1.0)
    ),
    "final": final,
    "final, one tensor": lambda b, s: joined(
        128 * b, s.max(-1, keepdims=True), s.argmax(-1)[..., None]
    ),
    "final, TensorFlow": lambda b, s: {
        "detection_boxes": b[..., [1, 0, 3, 2]],
        "detection_classes": s.argmax(-1).astype(np.float32),
        "detection_scores": s.max(-1),
        "num_detections": np.full(len(b), 8.0),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_form_the_outputs_have_perfect_boxes_score_one(dataset: Path, form: str):
    task = opened(dataset)
    samples = task.test(128, 128, 6)
    perfect = coco.boxes_and_scores(samples.labels, 3, anchors=40)
    outputs = FORMS[form](perfect["boxes"], perfect["scores"])
    score = scored(task, {n: a.astype(np.float32) for n, a in outputs.items()}, samples)
    assert score.headline == pytest.approx(1.0)
    assert {"mAP", "AP50", "AP75"} == set(score.table)
    assert "outputs read as" in score.note
    recall, precision = score.curves[next(iter(score.curves))]
    assert recall[-1] == precision[-1] == 1


def test_a_known_shift_has_a_known_score(dataset: Path):
    """Boxes moved by a fifth of their width overlap by 0.8 / 1.2: four of ten thresholds."""
    task = opened(dataset)
    samples = task.test(64, 64, 6)
    outputs = coco.boxes_and_scores(samples.labels, 3)
    boxes = outputs["boxes"]
    boxes[..., ::2] += 0.2 * (boxes[..., 2:3] - boxes[..., :1])
    score = scored(task, outputs, samples)
    assert score.headline == pytest.approx(0.4)
    assert (score.table["AP50"]["overall"], score.table["AP75"]["overall"]) == (1, 0)


def random_images(dice: np.random.Generator, classes: int) -> tuple[list[Truth], list[Found]]:
    truths, founds = [], []
    for _ in range(25):
        count = int(dice.integers(0, 14))
        corner = dice.random((count, 2)) * 70
        boxes = np.concatenate([corner, corner + 5 + 30 * dice.random((count, 2))], axis=1)
        labels = dice.integers(0, classes, count)
        truths.append(Truth(boxes, labels, dice.random(count) < 0.15))
        near = boxes + dice.normal(0, 1.5, boxes.shape)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 0.5)
        answers = np.concatenate([labels, dice.integers(0, classes, count)])
        # Rounded, so that there are equal ones.
        scores = dice.random(2 * count).round(1).astype(np.float32).astype(np.float64)
        order = np.argsort(-scores, kind="stable")
        every = np.concatenate([near, near + 3])
        founds.append(Found(every[order], scores[order], answers[order]))
    return truths, founds


def pycocotools(truths: list[Truth], founds: list[Found], classes: int) -> Any:

    def box(corners: np.ndarray) -> list[float]:
        return [*corners[:2].tolist(), *(corners[2:] - corners[:2]).tolist()]

    real: list[dict[str, Any]] = []
    answers = []
    for image, (truth, found) in enumerate(zip(truths, founds, strict=True), 1):
        for corners, label, crowd in zip(truth.boxes, truth.classes, truth.is_crowd, strict=True):
            area = float(np.prod(corners[2:] - corners[:2]))
            row = {"image_id": image, "category_id": int(label) + 1, "bbox": box(corners)}
            real.append({**row, "id": len(real) + 1, "area": area, "iscrowd": int(crowd)})
        for corners, label, score in zip(found.boxes, found.classes, found.scores, strict=True):
            row = {"image_id": image, "category_id": int(label) + 1, "bbox": box(corners)}
            answers.append({**row, "score": float(score)})
    return coco_stats("bbox", len(truths), [str(n) for n in range(classes)], real, answers)


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_pycocotools(seed: int):
    """With crowds, equal scores, images without objects and a class that does not occur."""
    truths, founds = random_images(np.random.default_rng(seed), 4)
    kind = matches_type(5, 100)
    matches = np.concatenate([matched(*p, kind) for p in zip(founds, truths, strict=True)])
    score = score_of(matches, ["a", "b", "c", "d", "never"], "")
    stats = pycocotools(truths, founds, 5)
    found = [score.table[row]["overall"] for row in ("mAP", "AP50", "AP75")]
    assert found == pytest.approx(stats[:3].tolist(), abs=1e-9)
    assert 0.05 < found[0] < 0.9
    assert "never" not in score.table["mAP"]


def test_duplicates_of_a_class_are_suppressed_and_others_kept():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 8], [20, 0, 30, 10]], float)
    classes = np.array([0, 0, 1, 0])
    assert suppressed(boxes, classes, 0.5, 100).tolist() == [0, 2, 3]
    assert suppressed(boxes, classes, 0.5, 2).tolist() == [0, 2]
    assert suppressed(boxes, classes, 1.0, 100).tolist() == [0, 1, 2, 3]


def test_a_better_model_is_found_to_be_better(dataset: Path):
    task = opened(dataset)
    samples = task.test(64, 64, 6)
    good = coco.boxes_and_scores(samples.labels, 3)
    bad = coco.boxes_and_scores(samples.labels, 3)
    bad["scores"] = bad["scores"] * (np.arange(8) % 2)[:, None].astype(np.float32)
    first, second = (scored(task, outputs, samples) for outputs in (good, bad))
    assert second.headline < 1
    assert task.difference(first.counts, second.counts).low > 0
    interval = task.interval(second.counts)
    assert interval.low <= second.headline <= interval.high


def test_a_letterbox_keeps_the_aspect_ratio(tmp_path: Path):
    document = coco.content(4)
    for image in document["images"]:
        image["height"] = 32
    root = coco.write(tmp_path / "data", document)
    for path in (root / "images").iterdir():
        Image.new("RGB", (64, 32), "white").save(path)
    document["annotations"] = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [0, 0, 64, 32]} for n in range(4)
    ]
    (root / "annotations.json").write_text(json.dumps(document))
    expected = {"center": (0, 0.25, 1, 0.75), "top-left": (0, 0, 1, 0.5), "none": (0, 0, 1, 1)}
    for fit, box in expected.items():
        samples = opened(root, letterbox=fit).test(64, 64, 2)
        assert samples.labels[0, 0, :4] == pytest.approx(box)
        left, top, right, bottom = (int(64 * side) for side in box)
        assert (samples.images[0, top:bottom, left:right] == 255).all()
        assert (samples.images[0, bottom:] == 114).all()


def test_annotations_beside_the_images_and_files_that_are_missing(tmp_path: Path):
    root = coco.write(tmp_path / "data", coco.content())
    (tmp_path / "annotations").mkdir()
    (root / "images").rename(tmp_path / "val2017")
    (root / "annotations.json").rename(tmp_path / "annotations" / "instances_val2017.json")
    (tmp_path / "val2017" / "0003.png").unlink()
    samples = opened(tmp_path / "val2017").test(32, 32, 4)
    assert "1 of the 12 images of instances_val2017.json are not there" in samples.note
    whole = opened(tmp_path).test(32, 32, 4)
    assert whole.key == samples.key


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["annotations"][0].update(category_id=99), "category 99, which"),
        (lambda d: d["annotations"][0].update(bbox=[1, 2, 3]), r"has the box \[1, 2, 3\]"),
        (lambda d: d["annotations"][0].update(bbox=[1, 2, -3, 4]), "has the box"),
        (lambda d: d["annotations"][0].update(bbox=[1, 2, "x", 4]), "has the box"),
        (lambda d: d["images"][0].update(file_name="../secret.png"), "no file below"),
        (lambda d: d["images"][0].update(id="x"), "id 'x' where a whole number is due"),
        (lambda d: d.pop("categories"), "needs a list 'categories'"),
        (lambda d: d.update(categories=[], annotations=[]), "no categories"),
        (lambda d: d.update(images=[]), "lists no images"),
        (
            lambda d: d.update(annotations=[{**d["annotations"][0]} for _ in range(2001)]),
            "2000 is the most",
        ),
        (lambda d: [i.update(file_name=f"x{i['id']}.png") for i in d["images"]], "none of the 12"),
    ],
)
def test_annotations_that_cannot_be_used_are_explained(
    dataset: Path, tmp_path: Path, change: Callable[[Any], object], said: str
):
    document = coco.content()
    change(document)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").symlink_to(dataset / "images")
    (tmp_path / "data" / "annotations.json").write_text(json.dumps(document))
    with pytest.raises((BadInput, NotFound), match=said):
        opened(tmp_path / "data").test(32, 32, 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [("[1]", "needs|mapping"), ("{", "not valid JSON"), ("[" * 100_000, "not valid JSON")],
)
def test_a_file_that_is_no_annotations_is_explained(tmp_path: Path, content: str, said: str):
    (tmp_path / "annotations.json").write_text(content)
    with pytest.raises(BadInput, match=said):
        opened(tmp_path).test(32, 32, 2)
    (tmp_path / "annotations.json").unlink()
    with pytest.raises(NotFound, match=r"no annotations in .*annotations\.json"):
        opened(tmp_path).test(32, 32, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"letterbx": "center"}, "unknown key 'letterbx': did you mean 'letterbox'"),
        ({"boxes": "ltrb"}, "boxes"),
        ({"nms_iou": 1.5}, "nms_iou"),
        ({"classes": ["cat", "cow"]}, "class 'cow', which no category"),
        ({"outputs": {"boxes": "b"}}, "boxes are the output 'b', but the model's outputs are"),
    ],
)
def test_wrong_options_are_explained(dataset: Path, tmp_path: Path, options: Any, said: str):
    (tmp_path / "data").symlink_to(dataset)
    (tmp_path / "detection.json").write_text(json.dumps(options))  # beside the dataset
    task = open_task("detection", tmp_path / "data", tmp_path / "cache")
    with pytest.raises(BadInput, match=said):
        task.check_outputs({"boxes": (1, 9, 4), "scores": (1, 9, 2)})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"a": (1, 255, 80, 80), "b": (1, 255, 40, 40)}, "do not fit a detection of 3 categories"),
        ({"a": (1, 99, 4), "b": (1, 99, 20)}, r"a \[1, 99, 4\], b \[1, 99, 20\]"),
        ({"a": (1, 99, 4), "b": (1, 99, 4)}, "name them in detection.json"),
        ({"a": (1, 1000)}, "raw heads must be decoded"),
    ],
)
def test_outputs_that_are_no_detections_are_refused(dataset: Path, shapes: Any, said: str):
    with pytest.raises(BadInput, match=said):
        opened(dataset).check_outputs(shapes)


def test_labels_by_id_are_asked_for(dataset: Path, tmp_path: Path):
    samples = opened(dataset).test(64, 64, 6)
    perfect = coco.boxes_and_scores(samples.labels, 3)
    outputs = final(perfect["boxes"], perfect["scores"])
    outputs["b"] = np.array([1, 3, 7])[outputs["b"]]
    with pytest.raises(BadInput, match=r"answered class \d.*'labels': 'id' in detection\.json"):
        scored(opened(dataset), outputs, samples)
    (tmp_path / "data").symlink_to(dataset)
    (tmp_path / "detection.json").write_text('{"labels": "id", "outputs": {"labels": "b"}}')
    task = open_task("detection", tmp_path / "data", tmp_path / "cache")
    assert isinstance(task, Detection)
    assert scored(task, outputs, samples).headline == pytest.approx(1.0)


def test_raw_offsets_to_anchors_are_no_boxes(dataset: Path):
    """Of an SSD before its decoding: small numbers around zero."""
    task = opened(dataset)
    samples = task.test(64, 64, 6)
    dice = np.random.default_rng(0)
    raw = {"boxes": dice.normal(0, 0.5, (6, 200, 4)), "scores": dice.normal(-3, 1, (6, 200, 4))}
    with pytest.raises(BadInput, match="raw offsets to anchors, which the model itself must"):
        scored(task, raw, samples)
