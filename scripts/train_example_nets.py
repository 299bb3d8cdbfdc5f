"""Trains the three small nets of edgeloop/view/demo_data on drawn faces, in a few minutes.

python scripts/train_example_nets.py edgeloop/view/demo_data
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from edgeloop.tasks import open_task
from edgeloop.testing.faces import make_faces

SIDE = 64
FACES = 1_500
STEPS = 700
BATCH = 16
WIDTHS = (8, 16, 24)


class SmallUNet(nn.Module):
    """Two levels down, two up, with skips; classes at full resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _block(3, width, 2)
        self.second = _block(width, 2 * width, 2)
        self.third = _block(2 * width, 4 * width, 2)
        self.up_third = _block(4 * width, 2 * width)
        self.up_second = _block(2 * width, width)
        self.head = nn.Conv2d(width, 19, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.first(image)
        second = self.second(first)
        third = self.third(second)
        second = _twice(self.up_third(third)) + second
        first = _twice(self.up_second(second)) + first
        return _twice(self.head(first))


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _twice(tensor: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(tensor, scale_factor=2, mode="bilinear", align_corners=False)


def train(width: int, images: np.ndarray, labels: np.ndarray) -> SmallUNet:
    torch.manual_seed(width)
    dice = np.random.default_rng(width)
    net = SmallUNet(width)
    frequency = np.bincount(labels[labels < 19].ravel(), minlength=19) / labels.size
    weights = torch.tensor(np.clip(1 / np.sqrt(frequency + 1e-4), 1, 12), dtype=torch.float32)
    optimiser = torch.optim.AdamW(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for step in range(STEPS):
        chosen = np.sort(dice.choice(len(images), BATCH, replace=False))
        batch = torch.from_numpy(images[chosen]).permute(0, 3, 1, 2).float() / 255
        truth = torch.from_numpy(labels[chosen]).long()
        loss = functional.cross_entropy(net(batch), truth, weights, ignore_index=255)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"width {width}, step {step}: loss {loss.item():.3f}", flush=True)
    return net.eval()


def main(target: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_faces(folder / "faces", FACES, SIDE, seed=1)
        task = open_task("segmentation", folder / "faces", folder / "cache")
        samples = task.calibration(SIDE, SIDE, FACES - 100)
        images, labels = np.array(samples.images), np.array(samples.labels)
    for width in WIDTHS:
        net = train(width, images, labels)
        path = target / f"unet-w{width}.onnx"
        example = torch.rand(1, 3, SIDE, SIDE)
        torch.onnx.export(net, (example,), str(path), opset_version=18, dynamo=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
