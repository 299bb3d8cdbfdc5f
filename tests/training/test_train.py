"""Nets learn, results are the same for the same seed, and the files say what happened."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from edgeloop.errors import BadInput, LocalFileError, TrainingFailed
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.device import ImageSet, class_weights, order_of, plain, varied
from edgeloop.search.nets.engine import weighted_loss
from edgeloop.search.nets.export import architecture_in
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan, TrainingProgress, load_weights
from edgeloop.search.nets.spaces import build, find_space
from edgeloop.search.nets.train import mean_iou, train
from edgeloop.tasks import open_task

PLAN = TrainingPlan(steps=60, learning_rate=1e-2, device="cpu")
SHORT = TrainingPlan(epochs=2, device="cpu", images=64, validation_images=4)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["net"]


def same_weights(one: Path, other: Path) -> bool:
    first, second = weights_of(one), weights_of(other)
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


@pytest.mark.slow
def test_a_net_learns_faces_in_a_few_dozen_steps(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    told: list[TrainingProgress] = []
    result = train(arch, PLAN, TrainingPaths(faces, tmp_path, cache), progress=told.append)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert result.f1 > 0.3 and result.f1 > 3 * lines[0]["f1"]
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert [line["epoch"] for line in lines] == list(range(1, result.epochs + 1))
    assert told[-1].step == told[-1].steps == result.steps == 60
    assert asdict(told[-1].last) == lines[-1]
    assert json.loads((tmp_path / "metrics.json").read_text()) == asdict(result)
    assert Architecture.load(tmp_path / "arch.json") == arch
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("arch.json", "checkpoint.pt", "metrics.json", "metrics.jsonl", "model.onnx"),
    ]


@pytest.mark.slow
def test_the_exported_model_scores_what_the_training_said(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    plan = replace(PLAN, steps=30, precision="float32")
    result = train(arch, plan, TrainingPaths(faces, tmp_path, cache))
    assert architecture_in(tmp_path / "model.onnx") == arch
    task = open_task("segmentation", faces, cache)
    watched = task.validation(arch.height, arch.width)
    session = onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    scorer = task.scorer(curves=False)
    for image, labels in zip(watched.images, watched.labels, strict=True):
        pixels = image[None].transpose(0, 3, 1, 2).astype(np.float32) / 255
        scorer.add(session.run(None, {"image": pixels})[0], labels[None])
    assert scorer.score().headline == pytest.approx(result.f1, abs=1e-3)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        torch.manual_seed(len(name))  # what else drew random numbers must not matter
        train(arch, replace(SHORT, seed=seed), TrainingPaths(faces, tmp_path / name, cache))
    assert same_weights(tmp_path / "one", tmp_path / "same")
    assert not same_weights(tmp_path / "one", tmp_path / "other")
    one, same = (json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("one", "same"))
    assert (one["f1"], one["loss"]) == (same["f1"], same["loss"])


def test_a_finished_training_is_not_done_again(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    first = train(arch, SHORT, TrainingPaths(faces, tmp_path, cache))
    (tmp_path / "model.onnx").unlink()
    told: list[TrainingProgress] = []
    assert train(arch, SHORT, TrainingPaths(faces, tmp_path, cache), progress=told.append) == first
    assert not told and (tmp_path / "model.onnx").exists()
    train(arch, SHORT, TrainingPaths(faces, tmp_path, cache), progress=told.append, resume=False)
    assert told


def test_a_folder_with_another_training_is_left_alone(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    train(arch, SHORT, TrainingPaths(faces, tmp_path, cache))
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(BadInput, match=r"another learning_rate \(0.004, not 0.01\).*--fresh"):
        train(arch, replace(SHORT, learning_rate=0.01), TrainingPaths(faces, tmp_path, cache))
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_training_stops_early_and_keeps_the_best(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    """With a rate this low nothing gets better, so patience runs out."""
    plan = replace(SHORT, epochs=30, learning_rate=1e-12, patience=2)
    result = train(arch, plan, TrainingPaths(faces, tmp_path, cache))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert result.stopped_early and result.epochs < 30
    assert result.epochs == len(lines) == result.best_epoch + 2
    assert result.f1 == max(line["f1"] for line in lines)


def test_trained_weights_go_into_a_net_of_the_same_architecture_only(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    train(arch, SHORT, TrainingPaths(faces, tmp_path, cache))
    net = build(arch)
    load_weights(net, arch, tmp_path / "checkpoint.pt")
    best = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["best"]
    assert all(torch.equal(value, best[name]) for name, value in net.state_dict().items())
    other = Architecture(arch.space, arch.params, (1, 3, 64, 64), 19)
    with pytest.raises(BadInput, match=f"weights of {arch.id}, not of {other.id}"):
        load_weights(build(other), other, tmp_path / "checkpoint.pt")
    with pytest.raises(LocalFileError, match="no such checkpoint"):
        load_weights(net, arch, tmp_path / "none.pt")


def test_images_can_be_classified_too(cache: Path, tmp_path: Path):
    """Red pictures and blue ones."""
    dice = np.random.default_rng(0)
    for number in range(80):
        kind = ("blue", "red")[number % 2]
        pixels = dice.integers(0, 120, (32, 32, 3), dtype=np.uint8)
        pixels[..., 0 if kind == "red" else 2] += 120
        folder = tmp_path / "colours" / kind
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    arch = find_space("small-classifier", {"widths": [8], "most_stages": 2}).sample(
        0, (1, 3, 32, 32), 2
    )
    plan = TrainingPlan(steps=30, device="cpu", batch=8)
    result = train(arch, plan, TrainingPaths(tmp_path / "colours", tmp_path / "out", cache))
    assert result.task == "classification"
    assert result.f1 == 1.0 == result.miou


def test_nothing_is_learnt_from_or_watched_on_test_images(faces: Path, cache: Path):
    task = open_task("segmentation", faces, cache)
    learnt, watched = task.training(48, 48), task.validation(48, 48)
    tested, calibrating = task.test(48, 48, 10_000), task.calibration(48, 48, 100)
    sets = [{image.tobytes() for image in s.images} for s in (learnt, watched, tested, calibrating)]
    assert [len(each) for each in sets] == [108, 12, 120, 100]
    assert not sets[0] & sets[1] and not sets[2] & (sets[0] | sets[1])
    assert not sets[1] & sets[3]


# What goes wrong


def test_a_net_for_other_classes_is_refused(
    arch: Architecture, faces: Path, cache: Path, tmp_path: Path
):
    wrong = Architecture(arch.space, arch.params, arch.shape, 5)
    with pytest.raises(TrainingFailed, match="5 classes, but the dataset has 19"):
        train(wrong, SHORT, TrainingPaths(faces, tmp_path, cache))


def test_a_net_that_answers_smaller_than_its_image_is_refused(
    faces: Path, cache: Path, tmp_path: Path
):
    (tmp_path / "half.py").write_text(
        "from torch import nn\n"
        "def build(trial, shape, classes):\n    return nn.Conv2d(3, classes, 3, 2, 1)\n"
    )
    half = Architecture("half.py:build", {}, (1, 3, 48, 48), 19)
    with pytest.raises(TrainingFailed, match="its output is 24 × 24, not the size"):
        train(half, SHORT, TrainingPaths(faces, tmp_path / "out", cache, tmp_path))


@pytest.mark.parametrize(
    "fields",
    [
        {"epochs": 0},
        {"steps": -1},
        {"batch": 0},
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"threads": 0},
        {"seed": -1},
        {"patience": 0},
    ],
)
def test_a_plan_that_cannot_be_is_refused(fields: dict[str, object]):
    with pytest.raises(BadInput, match=next(iter(fields))):
        TrainingPlan(**fields)


def test_a_gpu_that_is_not_there_is_said(arch: Architecture, faces: Path, tmp_path: Path):
    if torch.cuda.is_available():
        assert (
            train(arch, replace(SHORT, device="cuda"), TrainingPaths(faces, tmp_path)).device
            != "this CPU"
        )
    else:
        with pytest.raises(BadInput, match="no usable GPU"):
            train(arch, replace(SHORT, device="cuda"), TrainingPaths(faces, tmp_path))


# The parts


def test_the_loss_on_bytes_is_cross_entropy_that_ignores_what_does_not_count():
    logits = torch.randn(2, 5, 4, 4, requires_grad=True)
    labels = torch.randint(0, 5, (2, 4, 4), dtype=torch.uint8)
    labels[0, :2] = 255
    weights = torch.zeros(256)
    weights[:5] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    wanted = torch.nn.functional.cross_entropy(logits, labels.long(), weights[:5], ignore_index=255)
    torch.testing.assert_close(weighted_loss(logits, labels, weights), wanted)


def test_the_loss_of_a_gpu_has_the_same_value_and_gradient():
    from edgeloop.search.nets.engine import _Loss

    labels = torch.randint(0, 5, (2, 4, 6), dtype=torch.uint8)
    labels[1, 1] = 255
    weights = torch.zeros(256)
    weights[:5] = torch.rand(5) + 0.5
    one, other = (torch.randn(2, 5, 4, 6, generator=torch.Generator().manual_seed(3)) for _ in "ab")
    one.requires_grad_(), other.requires_grad_()
    first = weighted_loss(one, labels, weights)
    second = _Loss.apply(other, labels, weights)
    torch.testing.assert_close(first, second)
    first.backward()
    second.backward()
    torch.testing.assert_close(one.grad, other.grad)


def test_rare_classes_weigh_more_within_bounds_and_ignored_labels_nothing():
    labels = torch.zeros(1, 100, 100, dtype=torch.uint8)
    labels[0, 0, :4], labels[0, 1] = 1, 255
    images = ImageSet(torch.zeros(1, 100, 100, 3, dtype=torch.uint8), labels)
    weights = class_weights(images, 3, 255)
    assert weights[0] == pytest.approx(1.0, abs=0.01)
    assert weights[1] == 20 and weights[2] == 20 and weights[3:].sum() == 0
    labels[0, 2] = 9
    with pytest.raises(BadInput, match="label 9, but the model has 3 classes"):
        class_weights(images, 3, 255)


def test_an_epoch_sees_every_image_once_and_depends_on_seed_and_number_only():
    order = order_of(5, 2, 30, 10, 3)
    assert sorted(order.index.flatten().tolist()) == list(range(30))
    torch.manual_seed(1)
    assert torch.equal(order_of(5, 2, 30, 10, 3).index, order.index)
    assert not torch.equal(order_of(5, 3, 30, 10, 3).index, order.index)
    assert not torch.equal(order_of(6, 2, 30, 10, 3).index, order.index)


def test_variety_moves_image_and_labels_together_and_none_is_plain():
    images = torch.randint(0, 255, (2, 32, 32, 3), dtype=torch.uint8)
    labels = images[..., 0].clone()
    still = torch.full((2, 8), 0.5)
    pixels, same = varied(images, labels, still, torch.float32)
    torch.testing.assert_close(pixels, plain(images, torch.float32))
    assert torch.equal(same, labels)
    moved = still.clone()
    moved[:, 0] = 1.0
    pixels, after = varied(images, labels, moved, torch.float32)
    assert torch.equal(after[:, :-2], labels[:, 2:]) and torch.equal(after[:, -1], labels[:, -1])
    torch.testing.assert_close(pixels[:, 0], after.float() / 255)


def test_a_class_in_neither_truth_nor_answers_does_not_raise_the_mean_iou():
    confusion = np.array([[8, 2, 0], [0, 10, 0], [0, 0, 0]])
    assert mean_iou(confusion) == pytest.approx((8 / 10 + 10 / 12) / 2)
    assert mean_iou(np.zeros((3, 3), np.int64)) == 0.0
