"""The faces are worth training on: a small net learns them, an untrained one scores badly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from edgeloop.tasks.segmentation import SegmentationScorer
from edgeloop.testing.faces import draw_face

TRAINED = Path(__file__).parents[1] / "data/nets/unet-w8.onnx"
SIDE = 64
STEPS = 150


def small_net() -> nn.Module:
    """About 24,000 parameters: down twice, some width, and up again."""

    def block(inside: int, outside: int, stride: int = 1) -> list[nn.Module]:
        convolution = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        return [convolution, nn.BatchNorm2d(outside), nn.ReLU()]

    return nn.Sequential(
        *block(3, 12, 2),
        *block(12, 24, 2),
        *block(24, 32),
        *block(32, 32),
        nn.Upsample(scale_factor=2, mode="nearest"),
        *block(32, 16),
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Conv2d(16, 19, 3, 1, 1),
    )


def drawn(start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    faces = [draw_face(7, index, SIDE) for index in range(start, start + count)]
    return np.stack([image for image, _ in faces]), np.stack([labels for _, labels in faces])


def as_input(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def f1(net: nn.Module, images: np.ndarray, labels: np.ndarray) -> float:
    scorer = SegmentationScorer(curves=False)
    with torch.no_grad():
        scorer.add(net.eval()(as_input(images)).numpy(), labels)
    return scorer.score().headline


def test_a_net_that_was_trained_on_faces_knows_unseen_ones():
    images, labels = drawn(1000, 40)
    scorer = SegmentationScorer(curves=False)
    session = onnxruntime.InferenceSession(TRAINED)
    (taken,) = session.get_inputs()
    for image, label in zip(images, labels, strict=True):
        pixels = np.moveaxis(image, -1, 0)[None].astype(np.float32) / 255
        scorer.add(session.run(None, {taken.name: pixels})[0], label[None])
    assert scorer.score().headline > 0.6


@pytest.mark.soak
def test_a_small_net_learns_the_faces_and_an_untrained_one_does_not_know_them():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        images, labels = drawn(0, 200)
        unseen = drawn(1000, 40)
        net = small_net()
        assert sum(p.numel() for p in net.parameters()) < 30_000
        assert f1(net, *unseen) < 0.1
        train(net, images, labels)
        assert f1(net, *unseen) > 0.25
    finally:
        torch.set_num_threads(threads)


def train(net: nn.Module, images: np.ndarray, labels: np.ndarray) -> None:
    share = np.bincount(labels.ravel(), minlength=256)[:19] / labels.size
    weight = torch.tensor(np.clip(1 / np.sqrt(share + 1e-6), 1, 20), dtype=torch.float32)
    loss = nn.CrossEntropyLoss(weight, ignore_index=255)
    optimizer = torch.optim.AdamW(net.parameters(), 8e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    order = np.random.default_rng(0)
    net.train()
    for _ in range(STEPS):
        batch = order.integers(0, len(images), 16)
        wanted = torch.from_numpy(labels[batch].astype(np.int64))
        optimizer.zero_grad()
        loss(net(as_input(images[batch])), wanted).backward()
        optimizer.step()
        schedule.step()
