"""Calibration without a dataset: on images or tensors that somebody gives, else on random ones.

Latency depends on a model's graph, not on its scales, so a benchmark needs no dataset. What was
calibrated on random images must not be scored, and says so.

Given are a folder or a file: images (`.png`, `.jpg`), arrays (`.npy`, and every array of an `.npz`)
of one image or a batch, channels first or last, and raw files of one image, channels last. Numbers
are bytes, or floats from 0 to 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks.base import Images, Interval, Samples, Scorer

SEED = 20_261_116
RANDOM_IMAGES = 8
_PICTURES = (".png", ".jpg", ".jpeg")
_RAW = (".raw", ".bin")
_KNOWN = (*_PICTURES, ".npy", ".npz", *_RAW)
_NO_ACCURACY = "accuracy needs a dataset: --dataset FOLDER, or INPUT_DATASET in the environment"


class Calibration:
    """A task that can calibrate and nothing else: any output fits, and none can be scored."""

    name = "calibration"
    classes: Sequence[str] = ()

    def __init__(self, source: Path | None = None) -> None:
        self._source = source

    @property
    def is_random(self) -> bool:
        return self._source is None

    def calibration(self, height: int, width: int, count: int) -> Samples:
        if self._source is None:
            return _random(height, width, min(count, RANDOM_IMAGES))
        images = _given(self._source, height, width, count)
        note = f"calibrated on {len(images)} images of {self._source.name}"
        return _samples(images, "given", note)

    def check_output(self, shape: Sequence[int]) -> None:
        """Whatever a model gives, its latency can be measured."""

    def test(self, height: int, width: int, count: int) -> Samples:
        _refuse()

    def scorer(self, curves: bool = True) -> Scorer:
        _refuse()

    def interval(self, counts: NDArray[np.int64]) -> Interval:
        _refuse()

    def difference(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> Interval:
        _refuse()


def _refuse() -> NoReturn:
    raise BadInput(reason=_NO_ACCURACY)


def _random(height: int, width: int, count: int) -> Samples:
    """The same for everybody, so that two machines quantize a model alike."""
    dice = np.random.default_rng(SEED)
    images = dice.integers(0, 256, (count, height, width, 3), np.uint8)
    note = (
        f"calibrated on {count} random images (seed {SEED}): good for latency, not for accuracy; "
        "for accuracy, reset convert and start a runner with a dataset"
    )
    return _samples(images, "random", note)


def _samples(images: Images, origin: str, note: str) -> Samples:
    key = hashlib.sha256(images.tobytes()).hexdigest()
    return Samples(images, np.zeros(len(images), np.uint8), key, note, origin)


def _given(source: Path, height: int, width: int, count: int) -> Images:
    found: list[Images] = []
    for path in _files(source):
        for images in _images_in(path, height, width):
            found.append(images[: count - sum(map(len, found))])
        if sum(map(len, found)) >= count:
            break
    if not sum(map(len, found)):
        raise BadInput(reason=f"{source} holds no image to calibrate on")
    return np.concatenate(found)


def _files(source: Path) -> list[Path]:
    """Label images of a dataset are left out."""
    from edgeloop.tasks.dataset import SUFFIX

    if source.is_file():
        paths = [source]
    elif source.is_dir():
        paths = sorted(path for path in source.iterdir() if not path.name.startswith("."))
    else:
        raise NotFound(reason=f"the calibration data {source} is not there: name another")
    known = [path for path in paths if path.suffix.lower() in _KNOWN and path.is_file()]
    known = [path for path in known if not path.stem.endswith(SUFFIX)]
    if not known:
        kinds = ", ".join(_KNOWN)
        raise BadInput(reason=f"{source} holds nothing to calibrate on: it takes {kinds}")
    return known


def _images_in(path: Path, height: int, width: int) -> Iterator[Images]:
    from edgeloop.tasks.dataset import as_rgb, load

    kind = path.suffix.lower()
    if kind in _PICTURES:
        yield as_rgb(load(path), height, width)[None]
    elif kind in _RAW:
        yield _as_images(path, _raw(path, height, width), height, width)
    else:
        for array in _arrays(path):
            yield _as_images(path, array, height, width)


def _arrays(path: Path) -> Iterator[NDArray[Any]]:
    """Never unpickled: a file of objects is refused by NumPy itself."""
    try:
        if path.suffix.lower() == ".npy":
            yield np.load(path, mmap_mode="r", allow_pickle=False)
            return
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                yield archive[name]
    except (OSError, ValueError, EOFError, KeyError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BadInput(reason=f"{path} cannot be read as arrays ({reason})") from None


def _raw(path: Path, height: int, width: int) -> NDArray[Any]:
    """Bytes or floats, by its size."""
    values, size = height * width * 3, path.stat().st_size
    kinds = {values: np.uint8, 4 * values: np.float32}
    if size not in kinds:
        raise BadInput(
            reason=f"{path} has {size} bytes; an image of {height} × {width} × 3 has {values}, or "
            f"{4 * values} as floats"
        )
    return np.fromfile(path, kinds[size]).reshape(height, width, 3)


def _as_images(path: Path, array: NDArray[Any], height: int, width: int) -> Images:
    """A batch of bytes, channels last."""
    batch = array[None] if array.ndim == 3 else array
    if batch.ndim == 4 and batch.shape[1:] == (3, height, width):
        batch = batch.transpose(0, 2, 3, 1)
    if batch.shape[1:] != (height, width, 3):
        raise BadInput(
            reason=f"{path} holds an array {list(array.shape)}; the model takes images of {height} "
            f"× {width} × 3, channels first or last, one or a batch of them"
        )
    if batch.dtype == np.uint8:
        return np.ascontiguousarray(batch)
    low, high = (float(batch.min()), float(batch.max())) if batch.size else (0.0, 0.0)
    if batch.dtype.kind != "f" or not (low >= 0 and high <= 1):
        raise BadInput(
            reason=f"{path} holds {batch.dtype} from {low:g} to {high:g}; calibration takes uint8, "
            "or floats from 0 to 1"
        )
    return np.ascontiguousarray(np.rint(batch * 255).astype(np.uint8))
