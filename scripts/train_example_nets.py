"""Trains the nets of edgeloop/view/demo_data on drawn faces: a minute on a GPU, an hour without.

python scripts/train_example_nets.py edgeloop/view/demo_data

Their latency on a chip differs by more than the estimates of two networks of one family are off:
what decides it is the side of the largest map, so they differ in where they first halve the image.
"""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from edgeloop.testing.faces import draw_face

SIDE = 256
FACES = 1_500
STEPS = 2_500
BATCH = 16
CLASSES = 19
IGNORED = 255
SEED = 1


@dataclass(frozen=True)
class Size:
    """The image is halved `halved` times before the first block, and then once per level."""

    name: str
    width: int
    halved: int
    levels: int


SIZES = (
    Size("unet-small", width=8, halved=2, levels=3),
    Size("unet-medium", width=16, halved=1, levels=4),
    Size("unet-large", width=16, halved=0, levels=5),
)
WIDEST = 32


class UNet(nn.Module):
    """Down and up again, with the map of each level added; classes at full resolution."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        halving = [_block(3 if n == 0 else width, width, 2) for n in range(size.halved)]
        self.stem = nn.Sequential(*(halving or [_block(3, width)]))
        widths = [min(WIDEST, width * 2**level) for level in range(size.levels + 1)]
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(_block(upper, lower, 2) for upper, lower in pairs)
        self.up = nn.ModuleList(_block(lower, upper) for upper, lower in pairs)
        self.head = nn.Conv2d(width, CLASSES, 1)
        self.factor = float(2**size.halved)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = [self.stem(image)]
        for block in self.down:
            maps.append(block(maps[-1]))
        lowest = maps.pop()
        for block in reversed(self.up):
            doubled = functional.interpolate(block(lowest), scale_factor=2.0, mode="nearest")
            lowest = doubled + maps.pop()
        answer = self.head(lowest)
        if self.factor == 1:
            return answer
        return functional.interpolate(
            answer, scale_factor=self.factor, mode="bilinear", align_corners=False
        )


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def train(size: Size, images: torch.Tensor, labels: torch.Tensor) -> UNet:
    torch.manual_seed(SEED)
    device = images.device
    net = UNet(size).to(device)
    counts = torch.bincount(labels[labels < CLASSES].long().ravel(), minlength=CLASSES)
    weights = torch.clip(1 / torch.sqrt(counts / labels.numel() + 1e-4), 1, 12)
    optimiser = torch.optim.AdamW(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for step in range(STEPS):
        chosen = torch.randint(len(images), (BATCH,), device=device)
        batch = images[chosen].permute(0, 3, 1, 2).float() / 255
        truth = labels[chosen].long()
        loss = functional.cross_entropy(net(batch), truth, weights, ignore_index=IGNORED)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 250 == 0 or step == STEPS - 1:
            print(f"{size.name}, step {step}: loss {loss.item():.3f}", flush=True)
    return net.cpu().eval()


def main(target: Path) -> None:
    warnings.filterwarnings("ignore")
    target.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        drawn = list(pool.map(partial(draw_face, SEED, size=SIDE), range(FACES), chunksize=16))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = torch.from_numpy(np.stack([image for image, _ in drawn])).to(device)
    labels = torch.from_numpy(np.stack([label for _, label in drawn])).to(device)
    for size in SIZES:
        net = train(size, images, labels)
        example = torch.rand(1, 3, SIDE, SIDE)
        path = target / f"{size.name}.onnx"
        torch.onnx.export(net, (example,), str(path), opset_version=18, dynamo=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
