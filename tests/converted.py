"""A small net, converted once a test session, and pictures that look like something."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
from tests.kept import kept
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
    def convert(folder: Path) -> SmallModel:
        model = export(SmallUNet(), folder / "unet.onnx", SIZE)
        calibration = samples(smooth_images(16), folder)
        chips = ("snapdragon-888", "rb3-gen-2")
        return SmallModel(model, toolchain.convert(model, calibration, folder / "out", chips=chips))

    return kept_models("small-net", tmp_path_factory, lambda folder: {"": convert(folder)})[""]


@pytest.fixture(scope="session")
def tensor_models(
    toolchain: QnnToolchain, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, SmallModel]:
    """Models with other inputs and outputs than one image and one map."""
    return kept_models(
        "tensor-models", tmp_path_factory, lambda folder: convert_tensor_models(toolchain, folder)
    )


def kept_models(
    what: str,
    tmp_path_factory: pytest.TempPathFactory,
    make: Callable[[Path], Mapping[str, SmallModel]],
) -> dict[str, SmallModel]:
    """Models as `make` converts them in a folder, or did in an earlier run of the same code."""
    listing = "models.pickle"

    def write(folder: Path) -> None:
        made = {name: _moved(model, folder, Path()) for name, model in make(folder).items()}
        (folder / listing).write_bytes(pickle.dumps(made))

    folder = kept(what, tmp_path_factory.mktemp(what), write)
    found: dict[str, SmallModel] = pickle.loads((folder / listing).read_bytes())
    (folder / listing).unlink()
    return {name: _moved(model, Path(), folder) for name, model in found.items()}


def _moved(small: SmallModel, source: Path, target: Path) -> SmallModel:
    """With its files below another folder."""

    def moved(path: Path) -> Path:
        return target / path.relative_to(source)

    files = {name: moved(path) for name, path in small.converted.files.items()}
    return SmallModel(moved(small.model), replace(small.converted, files=files))
