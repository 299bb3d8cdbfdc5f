"""A small net, converted once a test session, and pictures that look like something."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgeloop.platforms import Converted, QnnToolchain
from edgeloop.tasks.base import Samples
from tests.nets_torch import SmallUNet, export

SIZE = 64


@dataclass(frozen=True)
class SmallNet:
    model: Path
    converted: Converted

    @property
    def quantized(self) -> Path:
        return self.converted.files[self.converted.quantized]


def smooth_images(count: int, size: int = SIZE, seed: int = 0) -> np.ndarray:
    """Blurred noise: neighbouring pixels are alike, as in photographs."""
    dice = np.random.default_rng(seed)
    coarse = dice.integers(0, 256, (count, size // 8 + 2, size // 8 + 2, 3)).astype(np.float32)
    where = np.linspace(0, size // 8, size)
    low, part = where.astype(int), (where % 1).astype(np.float32)
    across = part[None, None, :, None]
    down = part[None, :, None, None]
    rows = coarse[:, :, low] * (1 - across) + coarse[:, :, low + 1] * across
    return (rows[:, low] * (1 - down) + rows[:, low + 1] * down).astype(np.uint8)


def samples(images: np.ndarray, folder: Path | None = None) -> Samples:
    """With a folder the images are mapped from a file, as tasks give them."""
    if folder is not None:
        path = folder / "images.npy"
        np.save(path, images)
        images = np.load(path, mmap_mode="r")
    labels = np.zeros(images.shape[:3], np.uint8)
    return Samples(images, labels, "test")


@pytest.fixture(scope="session")
def toolchain() -> Iterator[QnnToolchain]:
    with QnnToolchain(limit_s=60) as chain:
        yield chain


@pytest.fixture(scope="session")
def small_net(toolchain: QnnToolchain, tmp_path_factory: pytest.TempPathFactory) -> SmallNet:
    folder = tmp_path_factory.mktemp("small")
    model = export(SmallUNet(), folder / "unet.onnx", SIZE)
    calibration = samples(smooth_images(16), folder)
    chips = ("snapdragon-888", "rb3-gen-2")
    return SmallNet(model, toolchain.convert(model, calibration, folder / "out", chips=chips))
