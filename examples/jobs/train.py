"""Train a small face-segmentation net. A plain script: it knows nothing of Edgeloop.

It reads pictures from a folder, writes to `outputs/`, and appends a line to `outputs/metrics.jsonl`
after every epoch; that is all it takes to run anywhere and to show up in `edgeloop job status`.

    edgeloop run train.py --data working/faces64 -- --lr 1e-2
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

CLASSES, IGNORED, BATCH = 19, 255, 16


def main() -> None:
    options = _options()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    outputs = Path("outputs")
    outputs.mkdir(exist_ok=True)
    images, labels = _load(options.faces)
    held_out = max(1, len(images) // 5)
    net = _net(options.width)
    optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr)
    for epoch in range(1, options.epochs + 1):
        started = time.perf_counter()
        loss = _epoch(net, optimizer, images[held_out:], labels[held_out:])
        accuracy = _accuracy(net, images[:held_out], labels[:held_out])
        line = {"epoch": epoch, "loss": round(loss, 4), "accuracy": round(accuracy, 4)}
        with (outputs / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        took = f"{time.perf_counter() - started:.1f} s"
        print(f"epoch {epoch}/{options.epochs}  loss {loss:.3f}  accuracy {accuracy:.3f}  {took}")
        torch.save(net.state_dict(), outputs / "net.pt")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faces", type=Path, default=Path("data/working/faces64"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def _load(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """All pictures as one array, decoded once; small ones fit into memory many times over."""
    files = sorted(path for path in folder.glob("*.png") if not path.stem.endswith("_seg"))
    if not files:
        raise SystemExit(f"there are no pictures in {folder}")
    images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in files])
    segmented = [path.with_stem(f"{path.stem}_seg") for path in files]
    labels = np.stack([np.asarray(Image.open(path)) for path in segmented])
    as_floats = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return as_floats, torch.from_numpy(labels).long()


def _net(width: int) -> nn.Sequential:
    def layer(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
        convolution = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU())

    return nn.Sequential(
        layer(3, width, 2),
        layer(width, 2 * width, 2),
        layer(2 * width, 2 * width),
        layer(2 * width, 2 * width),
        nn.Conv2d(2 * width, CLASSES, 1),
        nn.Upsample(scale_factor=4, mode="bilinear"),
    )


def _epoch(
    net: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> float:
    net.train()
    total = 0.0
    order = torch.randperm(len(images)).split(BATCH)
    for chosen in order:
        loss = functional.cross_entropy(net(images[chosen]), labels[chosen], ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / len(order)
    return total


@torch.no_grad()
def _accuracy(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    net.eval()
    right, counted = 0, 0
    for chosen in torch.arange(len(images)).split(BATCH):
        known = labels[chosen] != IGNORED
        right += int(((net(images[chosen]).argmax(1) == labels[chosen]) & known).sum())
        counted += int(known.sum())
    return right / max(1, counted)


if __name__ == "__main__":
    main()
