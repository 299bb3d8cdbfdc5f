"""A folder in the FaceSynthetics layout: `NNNNNN.png` beside `NNNNNN_seg.png`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks.base import Images, Labels, Samples
from edgeloop.tasks.cache import Recipe, prepared
from edgeloop.tasks.pictures import as_rgb, load
from edgeloop.tasks.split import for_calibration, for_test, for_training, for_validation
from edgeloop.tasks.tally import IGNORE

SUFFIX = "_seg"
_MAKE_SOME = "'edgeloop data faces DIR' makes a small dataset"


@dataclass(frozen=True)
class Pair:
    """A picture and the picture of its labels."""

    image: Path
    label: Path


@dataclass(frozen=True)
class FaceFolder:
    """The dataset and where its prepared arrays are kept."""

    root: Path
    cache: Path
    classes: int

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
        names = {path.name for path in self.root.iterdir() if _is_png(path.name)}
        images = sorted(name for name in names if not name.endswith(f"{SUFFIX}.png"))
        if not images:
            raise NotFound(
                reason=f"There are no pictures NNNNNN.png in {self.root}: name another folder "
                f"({_MAKE_SOME})"
            )
        labels = {f"{name.removesuffix('.png')}{SUFFIX}.png" for name in images}
        for missing in sorted(labels - names)[:1]:
            raise BadInput(
                reason=f"{self.root / missing} is not there: every picture needs its labels"
            )
        for alone in sorted(names - labels - set(images))[:1]:
            raise BadInput(reason=f"{self.root / alone} has labels, but its picture is not there")
        return [
            Pair(self.root / name, self.root / f"{name.removesuffix('.png')}{SUFFIX}.png")
            for name in images
        ]

    def _prepared(self, pairs: Sequence[Pair], note: str, height: int, width: int) -> Samples:
        recipe = Recipe(
            root=self.root,
            items=pairs,
            files_of=lambda pair: (pair.image, pair.label),
            decode=partial(decode_pair, height=height, width=width, classes=self.classes),
            image_shape=(height, width, 3),
            label_shape=(height, width),
            also=(f"segmentation of {self.classes}",),
        )
        return prepared(self.cache, recipe, note)


def check_folder(root: Path) -> None:
    if not root.is_dir():
        what = "is no folder" if root.exists() else "is not there"
        raise NotFound(reason=f"The dataset {root} {what}: name another ({_MAKE_SOME})")


def decode_pair(pair: Pair, height: int, width: int, classes: int) -> tuple[Images, Labels]:
    """Image (height, width, 3), bilinear; labels (height, width), nearest, checked before that."""
    image, label = load(pair.image), load(pair.label)
    _check_labels(pair, image, label, classes)
    if label.size != (width, height):
        label = label.resize((width, height), Image.Resampling.NEAREST)
    return as_rgb(image, height, width), np.asarray(label, dtype=np.uint8)


def _check_labels(pair: Pair, image: Image.Image, label: Image.Image, classes: int) -> None:
    if label.mode not in ("L", "P"):
        raise BadInput(
            reason=f"{pair.label} must have one channel of 8 bits with the classes, but its "
            f"pixels are {label.mode}"
        )
    present = np.bincount(np.asarray(label).ravel(), minlength=256)
    unknown = np.flatnonzero(present[classes:IGNORE])
    if unknown.size:
        raise BadInput(
            reason=f"{pair.label} holds label {unknown[0] + classes}, but the classes are "
            f"0–{classes - 1} (and {IGNORE} for pixels that do not count)"
        )
    (wide, high), (label_wide, label_high) = image.size, label.size
    if abs(wide * label_high - high * label_wide) > max(wide, high):  # a rounded side is no error
        raise BadInput(
            reason=f"{pair.label} is {label_wide} × {label_high}, which is not the form of its "
            f"picture, {wide} × {high}"
        )


def _is_png(name: str) -> bool:
    return name.endswith(".png") and not name.startswith(".")
