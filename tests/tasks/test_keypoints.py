"""Keypoints: crops of boxes, outputs of every usual form, PCK, and pycocotools' OKS AP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks import Labels, Samples, Score, Tensors, open_task
from edgeloop.tasks.keypoints import COCO_SIGMAS, Keypoints, Pose, oks_precision
from tests.tasks import coco
from tests.tasks.coco_reference import coco_stats

POINTS = 5
HEIGHT, WIDTH = 64, 48


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coco.write(tmp_path_factory.mktemp("poses") / "data", coco.poses())


@pytest.fixture(scope="module")
def samples(dataset: Path) -> Samples:
    return opened(dataset).test(HEIGHT, WIDTH, 100)


def opened(root: Path) -> Keypoints:
    task = open_task("keypoints", root, root.parent / "cache")
    assert isinstance(task, Keypoints)
    return task


def with_options(root: Path, folder: Path, **options: object) -> Keypoints:
    (folder / "data").symlink_to(root)
    (folder / "keypoints.json").write_text(json.dumps(options))
    return opened(folder / "data")


def scored(task: Keypoints, outputs: Tensors, labels: Labels) -> Score:
    task.check_outputs({name: array.shape for name, array in outputs.items()})
    scorer = task.scorer()
    scorer.add(outputs, labels)
    return scorer.score()


def heatmaps(points: np.ndarray, high: int = 64, wide: int = 48) -> np.ndarray:
    """Bumps on a grid of the input's size."""
    y, x = np.mgrid[:high, :wide]
    away = (x - points[..., 0, None, None]) ** 2 + (y - points[..., 1, None, None]) ** 2
    return np.exp(-away / 8)


def axis_scores(places: np.ndarray, length: int) -> np.ndarray:
    return np.exp(-((np.arange(2 * length) / 2 - places[..., None]) ** 2) / 8)


FORMS: dict[str, Callable[[np.ndarray], Tensors]] = {
    "heatmaps": lambda p: {"maps": heatmaps(p)},
    "heatmaps, channels last": lambda p: {"maps": heatmaps(p).transpose(0, 2, 3, 1)},
    "heatmaps, a background and an earlier stack": lambda p: {
        "stack1": np.zeros((len(p), POINTS, 16, 16)),
        "stack2": np.concatenate([heatmaps(p), 1 - heatmaps(p[:, :1])], axis=1),
    },
    "coordinates, pixels": lambda p: {"points": p},
    "coordinates, scores": lambda p: {
        "points": np.concatenate([p / (WIDTH, HEIGHT), np.ones((len(p), POINTS, 1))], axis=2)
    },
    "coordinates, an axis between": lambda p: {"points": p[:, None]},
    "coordinates, in a row": lambda p: {"points": p.reshape(len(p), -1), "score": p[:, :1, 0]},
    "SimCC": lambda p: {
        "x": axis_scores(p[..., 0], WIDTH),
        "y": axis_scores(p[..., 1], HEIGHT),
    },
    "SimCC, the other way round": lambda p: {
        "1": axis_scores(p[..., 1], HEIGHT),
        "2": axis_scores(p[..., 0], WIDTH),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_form_the_outputs_have_perfect_points_score_one(
    dataset: Path, samples: Samples, form: str
):
    outputs = FORMS[form](np.array(samples.labels[:, :POINTS, :2]))
    outputs = {name: array.astype(np.float32) for name, array in outputs.items()}
    score = scored(opened(dataset), outputs, samples.labels)
    assert score.headline == 1
    assert score.table["OKS_mAP"]["overall"] > 0.9
    assert form.partition(",")[0] in score.note
    assert not score.curves


def test_points_that_are_too_far_away_are_wrong(dataset: Path, samples: Samples):
    """A tenth of the box is right; points of the first half of the keypoints are farther off."""
    task = opened(dataset)
    side = samples.labels[:, POINTS, :1]
    points = np.array(samples.labels[:, :POINTS, :2])
    points[:, :, 0] += 0.099 * side
    assert scored(task, {"points": points}, samples.labels).headline == 1
    points[:, 1:3, 0] += 0.01 * side
    score = scored(task, {"points": points}, samples.labels)
    labelled = samples.labels[:, :POINTS, 2] > 0
    assert score.headline == pytest.approx(labelled[:, [0, 3, 4]].sum() / labelled.sum())
    assert (score.table["PCK"]["point1"], score.table["PCK"]["point3"]) == (0, 1)
    assert task.interval(score.counts).value == score.headline


def test_crops_show_the_box_and_labels_are_in_their_pixels(tmp_path: Path):
    """A white box in a black image, which is stored at twice its annotated size."""
    document = coco.poses(4, 2)
    box = [20, 8, 12, 32]
    document["annotations"] = [
        {
            **{"id": n, "image_id": n, "category_id": 1, "bbox": box, "area": 384},
            "keypoints": [20, 8, 2, 32, 40, 1],
        }
        for n in range(4)
    ]
    root = coco.write(tmp_path / "data", document)
    for path in (root / "images").iterdir():
        image = Image.new("RGB", (128, 128))
        image.paste((255, 255, 255), (40, 16, 64, 80))
        image.save(path)
    samples = opened(root).test(64, 32, 4)
    (left, top, _), (right, bottom, _) = samples.labels[0, :2]
    assert samples.labels[0, 0, 2] > 0
    inside = samples.images[0, :, :, 0] > 128
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    assert (rows[0], rows[-1] + 1) == pytest.approx((top, bottom), abs=1)
    assert (columns[0], columns[-1] + 1) == pytest.approx((left, right), abs=1)
    assert bottom - top == pytest.approx(64 / 1.25, abs=1)
    assert samples.labels[0, 2, 0] == pytest.approx(bottom - top)


def test_objects_of_one_image_are_never_in_both_parts(dataset: Path):
    task = opened(dataset)
    for count in (3, 100):
        calibration, test = task.calibration(32, 32, count), task.test(32, 32, count)
        assert len(calibration) <= count and len(test) <= count
    document = json.loads((dataset / "annotations.json").read_text())
    assert len(calibration) + len(test) == len(document["annotations"])


def random_poses(dice: np.random.Generator) -> list[Pose]:
    poses = []
    for image in range(20):
        for _ in range(int(dice.integers(1, 5))):
            size = dice.uniform(20, 80, 2)
            truth = dice.random((17, 2)) * size + dice.uniform(0, 30, 2)
            labelled = dice.random(17) < 0.7
            labelled[0] = True
            answer = truth + dice.normal(0, 0.08, (17, 2)) * size * dice.random()
            score = float(np.float32(dice.random().__round__(2)))
            poses.append(Pose(image, answer, score, truth, labelled, float(size.prod())))
    return poses


def pycocotools(poses: list[Pose]) -> Any:

    real, answers = [], []
    for number, pose in enumerate(poses, 1):
        row = {"image_id": pose.image + 1, "category_id": 1}
        labels = np.column_stack([pose.truth, 2 * pose.is_labelled])
        box = [*pose.truth.min(axis=0).tolist(), *np.ptp(pose.truth, axis=0).tolist()]
        more = {"id": number, "iscrowd": 0, "num_keypoints": int(pose.is_labelled.sum())}
        points = labels.ravel().tolist()
        real.append({**row, **more, "keypoints": points, "bbox": box, "area": pose.area})
        points = np.column_stack([pose.answer, np.ones(17)]).ravel().tolist()
        answers.append({**row, "keypoints": points, "score": pose.score})
    return coco_stats("keypoints", 20, ["person"], real, answers)


@pytest.mark.parametrize("seed", range(3))
def test_oks_scores_are_those_of_pycocotools(seed: int):
    poses = random_poses(np.random.default_rng(seed))
    found = oks_precision(poses, COCO_SIGMAS)
    stats = pycocotools(poses)
    assert [found.mean(), found[0], found[5]] == pytest.approx(stats[:3].tolist(), abs=1e-9)
    assert 0.1 < found.mean() < 0.95


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"a": (1, 17, 16, 12)}, "do not fit 5 keypoints"),
        ({"a": (1, 1000)}, r"heatmaps \[n, 5, height, width\]"),
        ({"a": (1, 5, 99), "b": (1, 5, 99), "c": (1, 5, 99)}, "do not fit 5 keypoints"),
    ],
)
def test_outputs_that_are_no_keypoints_are_refused(dataset: Path, shapes: Any, said: str):
    with pytest.raises(BadInput, match=said):
        opened(dataset).check_outputs(shapes)


def test_options_say_what_shapes_do_not(dataset: Path, tmp_path: Path, samples: Samples):
    named = {"points": "b"}
    task = with_options(dataset, tmp_path, order="yx", outputs=named, sigmas=[0.1] * POINTS)
    points = np.array(samples.labels[:, :POINTS, :2])
    outputs = {"b": points[..., ::-1], "a": np.zeros_like(points)}
    assert scored(task, outputs, samples.labels).headline == 1
    with pytest.raises(BadInput, match=r"keypoints\.json names the output 'b'"):
        task.check_outputs({"a": (1, 5, 2)})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["annotations"][0].update(keypoints=[1, 2]), "no list of x, y and"),
        (lambda d: d["annotations"][0].update(keypoints=[1, 2, 2]), "with 1 and 5 keypoints"),
        (lambda d: [a.pop("keypoints") for a in d["annotations"]], "no annotation with keypoints"),
        (lambda d: [a.update(iscrowd=1) for a in d["annotations"]], "no annotation with keypoints"),
    ],
)
def test_annotations_that_cannot_be_used_are_explained(
    dataset: Path, tmp_path: Path, change: Callable[[Any], object], said: str
):
    document = coco.poses()
    change(document)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").symlink_to(dataset / "images")
    (tmp_path / "data" / "annotations.json").write_text(json.dumps(document))
    with pytest.raises((BadInput, NotFound), match=said):
        opened(tmp_path / "data").test(32, 32, 2)


def test_without_boxes_the_whole_image_is_seen(dataset: Path, tmp_path: Path):
    document = coco.poses()
    for row in document["annotations"]:
        del row["bbox"], row["area"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").symlink_to(dataset / "images")
    (tmp_path / "data" / "annotations.json").write_text(json.dumps(document))
    task = opened(tmp_path / "data")
    samples = task.test(64, 64, 100)
    originals = {Image.open(path).tobytes() for path in (dataset / "images").iterdir()}
    assert {image.tobytes() for image in samples.images} <= originals
    score = scored(task, {"points": np.array(samples.labels[:, :POINTS, :2])}, samples.labels)
    assert score.headline == 1
    assert list(score.table) == ["PCK"]
