"""A folder in the FaceSynthetics layout: `NNNNNN.png` beside `NNNNNN_seg.png`.

Which images are for calibration and which for the test.

Files are sorted and cut once, at a place that depends on how many there are and on nothing else:
whatever counts are asked for, in whatever order, the two never share an image.

    11,000 files or more   the last 10,000 are for the test, all before them for calibration
    2,000 to 11,000        the first 1,000 are for calibration, the rest for the test
    fewer                  half and half, as 1,000 and 1,000 would be

Calibration takes the first of its part, the test takes the last of its own. Asking for more than
there is gives what there is, and a note that says so.

Training has the part for calibration, less its last tenth (at most 2,000), which is for validation:
no net ever learns from a test image or is chosen by one. Calibration meets a validation image only
where it asks for nearly all of its part.

Reading one image, with an error that names the file.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from edgeloop._util.files import open_regular
from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks.base import Images, Labels, Samples
from edgeloop.tasks.cache import Preparation, prepared
from edgeloop.tasks.labels import FILE, IGNORE, LabelMap

CALIBRATION = 1_000
TEST = 10_000
VALIDATION = 2_000

Item = TypeVar("Item")


def boundary(total: int) -> int:
    """The index of the first file that is for the test."""
    return max(min(CALIBRATION, total // 2), total - TEST)


def for_calibration(items: Sequence[Item], count: int, root: Path) -> tuple[Sequence[Item], str]:
    """The first `count` of the files for calibration, and a note when there are fewer."""
    _check(items, count, root)
    part = items[: boundary(len(items))]
    return part[:count], _note("calibration", count, len(part), len(items))


def for_test(items: Sequence[Item], count: int, root: Path) -> tuple[Sequence[Item], str]:
    """The last `count` of the files for the test, and a note when there are fewer."""
    _check(items, count, root)
    part = items[boundary(len(items)) :]
    return part[-count:], _note("test", count, len(part), len(items))


def for_training(items: Sequence[Item], root: Path) -> Sequence[Item]:
    """What a model may learn from."""
    _check_trainable(items, root)
    return items[: _first_for_validation(len(items))]


def for_validation(items: Sequence[Item], root: Path) -> Sequence[Item]:
    """What a model in training is watched with: neither learnt from nor tested on."""
    _check_trainable(items, root)
    return items[_first_for_validation(len(items)) : boundary(len(items))]


def shuffled(name: str) -> bytes:
    """A sort key: the same order everywhere, which has nothing to do with that of the names. Sorted
    by name, the first images may all be of one class or scene."""
    return hashlib.sha256(name.encode()).digest()


def _first_for_validation(total: int) -> int:
    part = boundary(total)
    return part - min(VALIDATION, max(1, part // 10))


def _check_trainable(items: Sequence[Item], root: Path) -> None:
    if boundary(len(items)) < 2:
        reason = f"{root} holds {len(items)} images: training, validation and test need at least 4"
        raise BadInput(reason=reason)


def _check(items: Sequence[Item], count: int, root: Path) -> None:
    if count < 1:
        raise BadInput(reason=f"at least 1 image is needed, not {count}")
    if len(items) < 2:
        raise BadInput(
            reason=f"{root} holds {len(items)} image: calibration and test need at least one each"
        )


def _note(purpose: str, asked: int, there: int, total: int) -> str:
    if asked <= there:
        return ""
    return (
        f"{there} {purpose} images instead of {asked}: the dataset has {total}, split in "
        "proportion so that calibration and test never overlap"
    )


# What Pillow raises on broken files, which is more than it says.
BROKEN_IMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    zlib.error,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    struct.error,
    Image.DecompressionBombError,
)


MOST_PIXELS = 40_000_000  # of one image: decoded and converted, that is 320 MB
# By its content and not by its name. Others run programs (EPS), or have layers of any size (PSD).
_FORMATS = ("PNG", "JPEG", "MPO", "BMP", "WEBP", "GIF", "TIFF", "PPM", "JPEG2000")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # checked here


def load(path: Path) -> Image.Image:
    """The decoded image."""
    with _opened(path) as picture:
        picture.load()
        return picture


def image_size(path: Path) -> tuple[int, int]:
    """Width and height, without decoding it."""
    with _opened(path) as picture:
        return picture.size


def decoded_bytes(path: Path) -> int:
    """About how much memory an image takes once it is decoded and converted."""
    with _opened(path) as picture:
        width, height = picture.size
        return width * height * (4 if picture.mode in ("L", "P", "1", "RGB") else 8)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """A file of a few kilobytes may claim any size, so that is checked before it is decoded."""
    with (
        _reading(path),
        open_regular(path) as file,
        Image.open(file, formats=_FORMATS) as picture,
    ):
        width, height = picture.size
        if width * height > MOST_PIXELS:
            reason = f"{width:,} × {height:,} pixels are more than {MOST_PIXELS:,}"
            raise ValueError(reason)
        yield picture


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BadInput(reason=f"{path} is not there") from None
    except BROKEN_IMAGE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BadInput(
            reason=f"{path} cannot be read as an image ({reason}): replace it or take it out of "
            "the dataset"
        ) from error


def as_rgb(picture: Image.Image, height: int, width: int) -> Images:
    """RGB, resized bilinearly: (height, width, 3) uint8."""
    colour = picture if picture.mode == "RGB" else picture.convert("RGB")
    if colour.size != (width, height):
        colour = colour.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(colour, dtype=np.uint8)


SUFFIX = "_seg"
_MAKE_SOME = "'edgeloop data faces DIR' makes a small dataset"


@dataclass(frozen=True)
class Pair:
    """An image and its label image."""

    image: Path
    label: Path


@dataclass(frozen=True)
class FaceFolder:
    """The dataset and where its prepared arrays are kept."""

    root: Path
    cache: Path
    labels: LabelMap

    def calibration(self, height: int, width: int, count: int) -> Samples:
        return self._prepared(*for_calibration(self.pairs(), count, self.root), height, width)

    def test(self, height: int, width: int, count: int) -> Samples:
        return self._prepared(*for_test(self.pairs(), count, self.root), height, width)

    def training(self, height: int, width: int) -> Samples:
        return self._prepared(for_training(self.pairs(), self.root), "", height, width)

    def validation(self, height: int, width: int) -> Samples:
        return self._prepared(for_validation(self.pairs(), self.root), "", height, width)

    def pairs(self) -> list[Pair]:
        """Sorted by name. Hidden files and others that are no PNG are left alone."""
        check_folder(self.root)
        files = [path.name for path in self.root.iterdir() if path.suffix == ".png"]
        names = {name for name in files if not name.startswith(".")}
        images = sorted(name for name in names if not name.endswith(f"{SUFFIX}.png"))
        if not images:
            raise NotFound(
                reason=f"there are no images NNNNNN.png in {self.root}: name another folder "
                f"({_MAKE_SOME})"
            )
        labels = {f"{name.removesuffix('.png')}{SUFFIX}.png" for name in images}
        for missing in sorted(labels - names)[:1]:
            raise BadInput(
                reason=f"{self.root / missing} is not there: every image needs its labels"
            )
        for alone in sorted(names - labels - set(images))[:1]:
            raise BadInput(reason=f"{self.root / alone} has labels, but its image is not there")
        return [
            Pair(self.root / name, self.root / f"{name.removesuffix('.png')}{SUFFIX}.png")
            for name in images
        ]

    def _prepared(self, pairs: Sequence[Pair], note: str, height: int, width: int) -> Samples:
        recipe = Preparation(
            root=self.root,
            items=pairs,
            files_of=lambda pair: (pair.image, pair.label),
            decode=partial(decode_pair, height=height, width=width, labels=self.labels),
            image_shape=(height, width, 3),
            label_shape=(height, width),
            also=(f"segmentation of {self.labels.digest}",),
        )
        return prepared(self.cache, recipe, note)


def check_folder(root: Path) -> None:
    if not root.is_dir():
        what = "is no folder" if root.exists() else "is not there"
        raise NotFound(reason=f"the dataset {root} {what}: name another ({_MAKE_SOME})")


def decode_pair(pair: Pair, height: int, width: int, labels: LabelMap) -> tuple[Images, Labels]:
    """Image (height, width, 3), bilinear; classes (height, width), nearest, checked before that."""
    image, label = load(pair.image), load(pair.label)
    _check_labels(pair, image, label, labels)
    if label.size != (width, height):
        label = label.resize((width, height), Image.Resampling.NEAREST)
    return as_rgb(image, height, width), labels.table[np.asarray(label, dtype=np.uint8)]


def _check_labels(pair: Pair, image: Image.Image, label: Image.Image, labels: LabelMap) -> None:
    if label.mode not in ("L", "P"):
        raise BadInput(
            reason=f"{pair.label} must have one channel of 8 bits with the classes, but its "
            f"pixels are {label.mode}"
        )
    present = np.array(label.histogram()[:256])
    unknown = np.flatnonzero((present > 0) & labels.unknown)
    if unknown.size:
        raise BadInput(
            reason=f"{pair.label} holds label {unknown[0]}, but the classes are "
            f"0–{len(labels.classes) - 1} (and {IGNORE} for pixels that do not count); other "
            f"labels need a {FILE} in the dataset"
        )
    check_aspect(pair, image.size, label.size)


def check_aspect(pair: Pair, image: tuple[int, int], label: tuple[int, int]) -> None:
    """Sizes are (width, height)."""
    (wide, high), (label_wide, label_high) = image, label
    if abs(wide * label_high - high * label_wide) > max(wide, high):  # a rounded side is no error
        raise BadInput(
            reason=f"{pair.label} is {label_wide} × {label_high}, not the aspect ratio of its "
            f"image, {wide} × {high}"
        )
