"""Super-resolution: an image with more pixels, scored by PSNR.

The dataset has pairs, `lr/NAME.png` and `hr/NAME.png`, or high-resolution images alone, which are
then reduced by the factor of the model (bicubic). Nothing is stretched: of each image the middle is
taken, as large as the model's input. Images that are smaller than that are left out.

PSNR and SSIM are those of the luminance (Y of BT.601), as papers have them, without a border as
wide as the factor; `super-resolution.json` says otherwise. An exact image has 100 dB, not infinity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from edgeloop._util.schema import Section, key
from edgeloop.errors import BadInput, DatasetMisfit, NotFound
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
    Preparation,
    check_folder,
    for_calibration,
    for_test,
    image_size,
    load,
    prepared,
    shuffled,
)
from edgeloop.tasks.metrics import Floats, as_images, chosen, mean_difference, mean_interval

MOST_PSNR = 100.0  # dB, of an exact image
DEFAULT_FACTOR, MOST_FACTOR = 4, 16
_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_LABELS = {"seg": "segmentation", "depth": "depth"}  # by the ends of their names
_LOW, _HIGH = ("lr", "LR", "low"), ("hr", "HR", "high")
_WANTED = "an image: [n, 3, height, width] or [n, height, width, 3]"
_BYTES = 8.0  # values from 0 to 1 are never that large
_PEAK = 255.0
_LUMINANCE = np.array([65.481, 128.553, 24.966]) / 255
_LUMINANCE_BLACK = 16.0
_WINDOW = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
_WINDOW /= _WINDOW.sum()


class SuperResolutionOptions(Section):
    """Keys of `super-resolution.json`."""

    factor: int | None = Field(
        None,
        ge=1,
        le=MOST_FACTOR,
        description="How many times wider the model's images become; by default as its output is.",
    )
    channels: Literal["y", "rgb"] = key("y", "What is compared: the luminance, or all colours.")
    border: int | None = Field(
        None,
        ge=0,
        le=64,
        description="Pixels that are left out on each side; as many as the factor by default.",
    )


@dataclass(frozen=True)
class Sharpened:
    """An image, and the same with fewer pixels; None: to be made."""

    high: Path
    low: Path | None
    size: tuple[int, int]  # of the low one, or of the high one where there is only that
    factor: int = 1


class SuperResolution:
    """Scored by PSNR in dB, the mean over images."""

    name = "super-resolution"
    metric = "PSNR"
    classes: Sequence[str] = ()
    counts_what = ""

    def __init__(
        self, dataset: Path, cache: Path, factor: int | None = None, misfit: str = ""
    ) -> None:
        """`misfit` says why no image can be made for the model."""
        self._root, self._cache, self._factor, self._misfit = dataset, cache, factor, misfit

    def entries(self) -> Sequence[DatasetEntry]:
        return [DatasetEntry(image.high) for image in self._images]

    def for_model(
        self, height: int, width: int, shapes: Mapping[str, Sequence[int]]
    ) -> SuperResolution:
        """The same with the factor of a model, by the sizes of its input and output."""
        try:
            shape = shapes[chosen(shapes, 3, _WANTED)]
        except BadInput as error:
            return SuperResolution(self._root, self._cache, misfit=str(error))
        high, wide = shape[2:] if shape[1] == 3 else shape[1:3]
        factor = high // height
        if factor < 1 or (high, wide) != (factor * height, factor * width):
            misfit = (
                f"the model makes {high} × {wide} of {height} × {width}, which is not a whole "
                "number of times larger"
            )
            return SuperResolution(self._root, self._cache, misfit=misfit)
        return SuperResolution(self._root, self._cache, factor)

    def calibration(self, height: int, width: int, count: int) -> Samples:
        images, left_out = self._large_enough(height, width)
        return self._prepared(*for_calibration(images, count, self._root), left_out, height, width)

    def test(self, height: int, width: int, count: int) -> Samples:
        images, left_out = self._large_enough(height, width)
        return self._prepared(*for_test(images, count, self._root), left_out, height, width)

    def scorer(self, curves: bool = True) -> SuperResolutionScorer:
        border = self._options.border
        is_y = self._options.channels == "y"
        return SuperResolutionScorer(is_y, self._scale if border is None else border)

    def check_output(self, shape: Sequence[int]) -> None:
        self.check_outputs({"output": shape})

    def check_outputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        chosen(shapes, 3, _WANTED)
        if self._misfit:
            raise BadInput(reason=self._misfit)
        if self._factor:
            _ = self._scale  # pairs may have another

    def interval(self, counts: Floats) -> Interval:
        return mean_interval(counts)

    def difference(self, first: Floats, second: Floats) -> Interval:
        return mean_difference(first, second)

    @cached_property
    def _options(self) -> SuperResolutionOptions:
        return read_options(SuperResolutionOptions, self._root, self.name)

    @cached_property
    def _scale(self) -> int:
        """That of the pairs; else of the model, the options, or the usual one."""
        pairs = {image.factor for image in self._images if image.low is not None}
        if not pairs:
            return self._factor or self._options.factor or DEFAULT_FACTOR
        factor = max(pairs)
        if len(pairs) > 1 or self._factor not in (None, factor):
            theirs = " and ".join(f"{factor_of_pair}×" for factor_of_pair in sorted(pairs))
            model = f", and the model makes {self._factor}×" if self._factor else ""
            kind = BadInput if len(pairs) > 1 else DatasetMisfit
            raise kind(reason=f"the pairs of {self._root} differ by {theirs}{model}")
        return factor

    @cached_property
    def _images(self) -> list[Sharpened]:
        check_folder(self._root)
        low, high = (_folder(self._root, names) for names in (_LOW, _HIGH))
        files = _files(high or self._root)
        if not files:
            raise NotFound(
                reason=f"there are no images in {self._root}: super-resolution needs "
                "high-resolution images, in hr/ if there is a folder lr/ with the same at a part "
                "of their size"
            )
        _check_are_images(files)
        if low is None:
            return [Sharpened(path, None, image_size(path)) for path in _in_order(files)]
        small = _files(low)
        for name in sorted(small.keys() ^ files.keys())[:1]:
            side = low if name in files else high
            raise BadInput(reason=f"{side} lacks {name!r}: every image of lr/ needs one of hr/")
        return [_pair(path, small[_stem(path)]) for path in _in_order(files)]

    def _large_enough(self, height: int, width: int) -> tuple[list[Sharpened], str]:
        images, scale = self._images, self._scale
        fitting = []
        for image in images:
            part = 1 if image.low is not None else scale
            if image.size[0] >= width * part and image.size[1] >= height * part:
                fitting.append(image)
        if not fitting:
            raise DatasetMisfit(
                reason=f"the images of {self._root} are smaller than the model needs, "
                f"{width * scale} × {height * scale}: use larger ones, or a model with a smaller "
                "input"
            )
        missing = len(images) - len(fitting)
        return fitting, f"{missing} of {len(images)} images are too small" if missing else ""

    def _prepared(
        self, images: Sequence[Sharpened], note: str, left_out: str, height: int, width: int
    ) -> Samples:
        scale = self._scale
        recipe = Preparation(
            root=self._root,
            items=images,
            files_of=lambda image: [p for p in (image.high, image.low) if p is not None],
            decode=partial(_decode, height=height, width=width, scale=scale),
            image_shape=(height, width, 3),
            label_shape=(height * scale, width * scale, 3),
            also=("super-resolution", str(scale)),
        )
        notes = [text for text in (note, left_out) if text]
        return prepared(self._cache, recipe, "; ".join(notes))


class SuperResolutionScorer:
    """Keeps PSNR and SSIM of each image."""

    def __init__(self, is_luminance: bool, border: int) -> None:
        self._is_luminance, self._border = is_luminance, border
        self._gives_bytes = False
        self._found: list[tuple[float, float]] = []

    def add(self, outputs: Tensors, labels: Labels) -> None:
        images = as_images(outputs, 3, _WANTED, len(labels))
        if images.shape != labels.shape:
            (_, high, wide, _), (_, true_high, true_wide, _) = images.shape, labels.shape
            raise BadInput(
                reason=f"the model's images are {high} × {wide}, those of the dataset {true_high} "
                f"× {true_wide}: 'factor' in super-resolution.json, or another model"
            )
        self._gives_bytes = self._gives_bytes or bool(np.abs(images).max(initial=0.0) > _BYTES)
        for image, truth in zip(images, labels, strict=True):
            pixels = image if self._gives_bytes else image * _PEAK
            predicted = self._compared(np.rint(np.clip(pixels, 0, _PEAK)))
            real = self._compared(truth)
            self._found.append((psnr(predicted, real), ssim(predicted, real)))

    def score(self) -> Score:
        if not self._found:
            raise BadInput(reason="no image was scored: the test set is empty")
        values = np.array(self._found)
        table = {"PSNR": {"overall": float(values[:, 0].mean())}}
        if np.isfinite(values[:, 1]).all():
            table["SSIM"] = {"overall": float(values[:, 1].mean())}
        what = "luminance (Y)" if self._is_luminance else "RGB"
        span = "0 to 255" if self._gives_bytes else "0 to 1"
        note = f"{what} without a border of {self._border} pixels, outputs read as {span}"
        return Score(table["PSNR"]["overall"], table, values, {}, note=note)

    def _compared(self, image: NDArray[Any]) -> Floats:
        """(H, W, channels) without the border."""
        inner = image
        if 2 * self._border < min(image.shape[:2]) and self._border:
            inner = image[self._border : -self._border, self._border : -self._border]
        colours = inner.astype(np.float64)
        if self._is_luminance:
            return (colours @ _LUMINANCE + _LUMINANCE_BLACK)[..., None]
        return colours


def psnr(image: Floats, real: Floats) -> float:
    """In dB, of values from 0 to 255."""
    error = float(((image - real) ** 2).mean())
    return MOST_PSNR if error == 0 else min(MOST_PSNR, 10 * float(np.log10(_PEAK**2 / error)))


def ssim(image: Floats, real: Floats) -> float:
    """The mean over channels and windows of 11 × 11 pixels, as Wang et al. defined it; NaN for
    images that are smaller than that."""
    if min(image.shape[:2]) < len(_WINDOW):
        return float("nan")
    low, high = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2
    mean, other = _blurred(image), _blurred(real)
    spread, other_spread = _blurred(image**2) - mean**2, _blurred(real**2) - other**2
    shared = _blurred(image * real) - mean * other
    alike = (2 * mean * other + low) * (2 * shared + high)
    most = (mean**2 + other**2 + low) * (spread + other_spread + high)
    return float((alike / most).mean())


def _blurred(image: Floats) -> Floats:
    """Gaussian, where the whole window lies inside."""
    for axis in (0, 1):
        length = image.shape[axis] - len(_WINDOW) + 1
        pieces = (
            weight * image.take(range(start, start + length), axis)
            for start, weight in enumerate(_WINDOW)
        )
        image = sum(pieces, np.zeros(()))
    return image


def _folder(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _files(folder: Path) -> dict[str, Path]:
    """By name without the factor that some datasets add: `0001x4.png`."""
    images = [path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS]
    return {_stem(path): path for path in images if not path.name.startswith(".")}


def _check_are_images(files: Mapping[str, Path]) -> None:
    """The labels of another task beside its images are no images to make sharper."""
    for name, path in files.items():
        stem, mark, kind = name.rpartition("_")
        if mark and kind in _LABELS and stem in files:
            raise BadInput(
                reason=f"{path} is a label of {files[stem].name} for the task {_LABELS[kind]}: "
                "super-resolution needs a folder of images only. Choose another dataset or --task"
            )


def _stem(path: Path) -> str:
    return re.sub(r"x\d$", "", path.stem)


def _in_order(files: Mapping[str, Path]) -> list[Path]:
    return [files[name] for name in sorted(files, key=shuffled)]


def _pair(high: Path, low: Path) -> Sharpened:
    size, small = image_size(high), image_size(low)
    factor = size[0] // small[0]
    if size != (factor * small[0], factor * small[1]) or not 1 <= factor <= MOST_FACTOR:
        raise BadInput(
            reason=f"{high} is {size[0]} × {size[1]}, which is not a whole number of times "
            f"{small[0]} × {small[1]}, the size of {low.name}"
        )
    return Sharpened(high, low, small, factor)


def _decode(item: Sharpened, height: int, width: int, scale: int) -> tuple[Images, Labels]:
    whole_image = load(item.high).convert("RGB")
    if item.low is None:
        large = _middle(whole_image, width * scale, height * scale)
        small = large.resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(small, np.uint8), np.asarray(large, np.uint8)
    source = load(item.low).convert("RGB")
    left, top = (source.width - width) // 2, (source.height - height) // 2
    small = source.crop((left, top, left + width, top + height))
    box = (left * scale, top * scale, (left + width) * scale, (top + height) * scale)
    return np.asarray(small, np.uint8), np.asarray(whole_image.crop(box), np.uint8)


def _middle(image: Image.Image, width: int, height: int) -> Image.Image:
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
