"""Depth: a distance per pixel, in metres.

The dataset has `NAME.png` (or .jpg) beside `NAME_depth.png` (16 bits) or `NAME_depth.npy` (metres).
0, NaN and what is outside of the limits do not count. `depth.json` says how many values are a
metre, and what a model without a scale of its own gives: some predict disparity, the inverse of
depth, or depth up to a factor and a shift that each image may choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgeloop._util.files import open_regular
from edgeloop._util.schema import Section, key
from edgeloop._util.values import number
from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks.base import (
    DatasetEntry,
    Images,
    Interval,
    Labels,
    Samples,
    Score,
    Tensors,
    read_options,
)
from edgeloop.tasks.dataset import (
    BROKEN_ARRAY,
    MOST_PIXELS,
    FolderTask,
    Pair,
    Preparation,
    as_rgb,
    check_aspect,
    check_folder,
    load,
    prepared,
    shuffled,
)
from edgeloop.tasks.metrics import Floats, as_images, chosen, mean_difference, mean_interval

SUFFIX = "_depth"
METRICS = ("delta1", "delta2", "delta3", "abs_rel", "rmse")
_ENDINGS = (".png", ".jpg", ".jpeg")
_FACTOR = 1.25  # a pixel is right if it is wrong by less
_TINY = 1e-12
_WANTED = "a map of depths: [n, height, width], with one channel at most"

_Positive = Annotated[float, number(is_open=True)]


class DepthOptions(Section):
    """Keys of `depth.json`."""

    scale: _Positive = key(1000.0, "Values of a depth image that are a metre.")
    min_depth: _Positive = key(1e-3, "Nearer pixels do not count, in metres.")
    max_depth: _Positive = key(1000.0, "Farther pixels do not count, in metres.")
    prediction: Literal["depth", "disparity"] = key(
        "depth", "What the model gives: metres, or their inverse."
    )
    alignment: Literal["none", "median", "scale-shift"] = key(
        "none", "How each image's prediction is fitted to the truth before it is scored."
    )


class Depth(FolderTask[Pair]):
    """Scored by delta1, the share of pixels that are wrong by less than a quarter."""

    name = "depth"
    metric = "delta1"
    classes: Sequence[str] = ()
    counts_what = ""

    def entries(self) -> Sequence[DatasetEntry]:
        return [DatasetEntry(pair.image) for pair in self._items]

    def scorer(self, curves: bool = True) -> DepthScorer:
        return DepthScorer(self._options)

    def check_output(self, shape: Sequence[int]) -> None:
        self.check_outputs({"output": shape})

    def check_outputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        chosen(shapes, 1, _WANTED)

    def interval(self, counts: Floats) -> Interval:
        return mean_interval(counts)

    def difference(self, first: Floats, second: Floats) -> Interval:
        return mean_difference(first, second)

    @cached_property
    def _options(self) -> DepthOptions:
        return read_options(DepthOptions, self._root, self.name)

    @cached_property
    def _items(self) -> list[Pair]:
        check_folder(self._root)
        files = [path for path in self._root.iterdir() if not path.name.startswith(".")]
        depths = {
            path.stem.removesuffix(SUFFIX): path
            for path in files
            if path.stem.endswith(SUFFIX) and path.suffix in (".png", ".npy")
        }
        images = {
            path.stem: path
            for path in files
            if path.suffix.lower() in _ENDINGS and not path.stem.endswith(SUFFIX)
        }
        if not images or not depths:
            raise NotFound(
                reason=f"there are no images with depths in {self._root}: depth needs NAME.png "
                "beside NAME_depth.png (16 bits) or NAME_depth.npy (metres)"
            )
        for name in sorted(images.keys() ^ depths.keys())[:1]:
            missing = f"{name}{SUFFIX}.png or .npy" if name in images else f"{name}.png or .jpg"
            raise BadInput(reason=f"{self._root} lacks {missing}: images and depths are in pairs")
        return [Pair(images[name], depths[name]) for name in sorted(images, key=shuffled)]

    def _prepared(self, items: Sequence[Pair], note: str, height: int, width: int) -> Samples:
        scale = self._options.scale
        recipe = Preparation(
            root=self._root,
            items=items,
            files_of=lambda pair: (pair.image, pair.label),
            decode=partial(_decode, height=height, width=width, scale=scale),
            image_shape=(height, width, 3),
            label_shape=(height, width),
            label_type=np.float32,
            also=("depth", repr(scale)),
        )
        return prepared(self._cache, recipe, note)


class DepthScorer:
    """Keeps five numbers per image."""

    def __init__(self, options: DepthOptions) -> None:
        self._options = options
        self._found: list[list[float]] = []

    def add(self, outputs: Tensors, labels: Labels) -> None:
        maps = as_images(outputs, 1, _WANTED, len(labels))[..., 0]
        for predicted, truth in zip(maps, labels, strict=True):
            self._found.append(self._errors(_resized(predicted, truth.shape), truth))

    def score(self) -> Score:
        if not self._found:
            raise BadInput(reason="no image was scored: the test set is empty")
        values = np.array(self._found)
        if not np.isfinite(values[:, 0]).any():
            options = self._options
            raise BadInput(
                reason=f"no pixel of the test images is {options.min_depth:g} to "
                f"{options.max_depth:g} metres away: check 'scale' in depth.json"
            )
        means = np.nanmean(values, axis=0)
        table = {name: {"overall": float(m)} for name, m in zip(METRICS, means, strict=True)}
        return Score(float(means[0]), table, values, {}, note=self._note)

    @property
    def _note(self) -> str:
        how = {
            "none": "not aligned",
            "median": "each image scaled by its median",
            "scale-shift": "each image aligned by scale and shift",
        }[self._options.alignment]
        return f"outputs read as {self._options.prediction}, {how} (depth.json can say otherwise)"

    def _errors(self, predicted: NDArray[Any], truth: Labels) -> list[float]:
        """The five metrics of an image; NaN if it has no truth."""
        options = self._options
        valid = np.isfinite(truth) & (truth >= options.min_depth) & (truth <= options.max_depth)
        if not valid.any():
            return [np.nan] * len(METRICS)
        real = truth[valid].astype(np.float64)
        depth = self._depth(predicted[valid].astype(np.float64), real)
        ratio = np.maximum(depth / real, real / depth)
        away = depth - real
        shares = [float((ratio < _FACTOR**power).mean()) for power in (1, 2, 3)]
        return [*shares, float((np.abs(away) / real).mean()), float(np.sqrt((away**2).mean()))]

    def _depth(self, predicted: Floats, real: Floats) -> Floats:
        """Metres, within the limits."""
        options = self._options
        is_inverse = options.prediction == "disparity"
        if options.alignment == "scale-shift":
            predicted = _fitted(predicted, 1 / real if is_inverse else real)
        if is_inverse:
            predicted = 1 / np.maximum(predicted, 1 / options.max_depth)
        if options.alignment == "median":
            predicted = predicted * (np.median(real) / max(float(np.median(predicted)), _TINY))
        return np.clip(predicted, options.min_depth, options.max_depth)


def _fitted(predicted: Floats, real: Floats) -> Floats:
    """s · predicted + t with the least squared error."""
    centred = predicted - predicted.mean()
    scale = float(centred @ (real - real.mean())) / max(float(centred @ centred), _TINY)
    fitted: Floats = scale * centred + real.mean()
    return fitted


def _resized(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Bilinear: many models answer at a part of their input's size."""
    if values.shape == shape:
        return values
    height, width = shape
    picture = Image.fromarray(np.ascontiguousarray(values, np.float32))
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))


def _decode(pair: Pair, height: int, width: int, scale: float) -> tuple[Images, Labels]:
    image = load(pair.image)
    depth = _metres(pair.label, scale)
    check_aspect(pair, image.size, (depth.shape[1], depth.shape[0]))
    rows = ((np.arange(height) + 0.5) * depth.shape[0] / height).astype(np.intp)
    columns = ((np.arange(width) + 0.5) * depth.shape[1] / width).astype(np.intp)
    nearest = np.nan_to_num(depth[rows[:, None], columns], nan=0.0, posinf=0.0, neginf=0.0)
    return as_rgb(image, height, width), nearest.astype(np.float32)


def _metres(path: Path, scale: float) -> NDArray[Any]:
    if path.suffix == ".npy":
        return _array(path)
    picture = load(path)
    if not picture.mode.startswith(("I", "L", "F")) or len(picture.getbands()) != 1:
        raise BadInput(
            reason=f"{path} must have one channel of 16 bits with the depths, but its pixels are "
            f"{picture.mode}"
        )
    return np.asarray(picture, np.float32) / np.float32(scale)


def _array(path: Path) -> NDArray[Any]:
    try:
        with open_regular(path):  # a pipe would never end
            array = np.load(path, mmap_mode="r", allow_pickle=False).squeeze()
    except BROKEN_ARRAY as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BadInput(reason=f"{path} cannot be read as an array ({reason})") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu" or array.size > MOST_PIXELS:
        raise BadInput(
            reason=f"{path} holds an array {list(array.shape)} of {array.dtype}; depths are "
            "[height, width] in metres"
        )
    return np.asarray(array, np.float32)
