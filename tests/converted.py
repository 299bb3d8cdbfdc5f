"""A small net, converted once a test session, and pictures that look like something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeloop.platforms.qnn import QnnPlatform
from edgeloop.platforms.qnn.device import HtpDevice
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.settings import Settings
from edgeloop.tasks.base import Samples
from edgeloop.testing.contracts.platform import (
    SIZE,
    SmallModel,
    convert_tensor_models,
    smooth_images,
)
from tests.nets_torch import SmallUNet, export


def samples(images: np.ndarray, folder: Path | None = None) -> Samples:
    """With a folder the images are mapped from a file, as tasks give them."""
    if folder is not None:
        path = folder / "images.npy"
        np.save(path, images)
        images = np.load(path, mmap_mode="r")
    labels = np.zeros(images.shape[:3], np.uint8)
    return Samples(images, labels, "test")


def open_htp(name: str = "htp", project: Path | None = None, workers: int = 1) -> HtpDevice:
    """The simulator, on few cores."""
    return QnnPlatform().open_device(name, Settings.load(project), workers)


@pytest.fixture(scope="session")
def toolchain() -> Iterator[QnnToolchain]:
    with QnnToolchain(limit_s=60) as chain:
        yield chain


@pytest.fixture(scope="session")
def small_net(toolchain: QnnToolchain, tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    folder = tmp_path_factory.mktemp("small")
    model = export(SmallUNet(), folder / "unet.onnx", SIZE)
    calibration = samples(smooth_images(16), folder)
    chips = ("snapdragon-888", "rb3-gen-2")
    return SmallModel(model, toolchain.convert(model, calibration, folder / "out", chips=chips))


@pytest.fixture(scope="session")
def tensor_models(
    toolchain: QnnToolchain, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, SmallModel]:
    """Models with other inputs and outputs than one image and one map."""
    return convert_tensor_models(toolchain, tmp_path_factory.mktemp("tensors"))
