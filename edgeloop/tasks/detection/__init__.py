"""Detection: boxes with a class, scored by COCO's mAP.

The labels of an image are (objects, 6): left, top, right, bottom in units of the model's input,
the class, and whether it is a crowd; class −1 where an image has fewer objects than others. Overlap
does not change when images are stretched, so boxes need not go back to the original image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from PIL import Image

from edgeloop.errors import BadInput
from edgeloop.tasks.base import Images, Interval, Labels, Samples, Score, Tensors
from edgeloop.tasks.cache import Preparation, prepared
from edgeloop.tasks.coco import CocoDataset, CocoImage, digest_of, read_coco
from edgeloop.tasks.dataset import as_rgb, for_calibration, for_test, load
from edgeloop.tasks.detection.decode import Decoder
from edgeloop.tasks.detection.layout import Classes, recognized
from edgeloop.tasks.detection.metric import (
    Matches,
    Truth,
    difference_of,
    interval_of,
    matched,
    matches_type,
    score_of,
)
from edgeloop.tasks.detection.options import DetectionOptions
from edgeloop.tasks.options import read_options

__all__ = ["Detection", "DetectionOptions", "DetectionScorer"]

_FIELDS = 6
_GREY = (114, 114, 114)  # what most detectors were trained with around an image


class Detection:
    """Scored by mAP, the mean of AP over classes and over overlaps of 0.5 to 0.95."""

    name = "detection"
    metric = "mAP"

    def __init__(self, dataset: Path, cache: Path) -> None:
        self._root, self._cache = dataset, cache

    @property
    def classes(self) -> Sequence[str]:
        return [category.name for category in self._dataset.categories]

    def calibration(self, height: int, width: int, count: int) -> Samples:
        images, note = for_calibration(self._dataset.images, count, self._root)
        return self._prepared(images, note, height, width)

    def test(self, height: int, width: int, count: int) -> Samples:
        images, note = for_test(self._dataset.images, count, self._root)
        return self._prepared(images, note, height, width)

    def scorer(self, curves: bool = True) -> DetectionScorer:
        return DetectionScorer(self._known, self.classes)

    def check_output(self, shape: Sequence[int]) -> None:
        self.check_outputs({"output": shape})

    def check_outputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        recognized(shapes, self._known)

    def interval(self, counts: Matches) -> Interval:
        return interval_of(counts)

    def difference(self, first: Matches, second: Matches) -> Interval:
        return difference_of(first, second)

    @cached_property
    def _options(self) -> DetectionOptions:
        return read_options(DetectionOptions, self._root, self.name)

    @cached_property
    def _dataset(self) -> CocoDataset:
        options = self._options
        return read_coco(self._root, ("instances",), options.annotations, options.images)

    @cached_property
    def _known(self) -> Classes:
        return Classes(self._dataset.categories, self._dataset.annotated, self._options)

    def _prepared(self, images: Sequence[CocoImage], note: str, height: int, width: int) -> Samples:
        most = max(1, *(len(image.objects) for image in images))
        fit = self._options.letterbox
        recipe = Preparation(
            root=self._root,
            items=images,
            files_of=lambda image: (image.file,),
            decode=partial(_decode, height=height, width=width, most=most, fit=fit),
            image_shape=(height, width, 3),
            label_shape=(most + 1, _FIELDS),
            label_type=np.float64,
            also=("detection", fit, digest_of(images)),
        )
        notes = [text for text in (note, self._dataset.note) if text]
        return prepared(self._cache, recipe, "; ".join(notes))


class DetectionScorer:
    """Keeps which detections of an image matched; see `metric`."""

    def __init__(self, known: Classes, classes: Sequence[str]) -> None:
        self._known, self._classes = known, classes
        self._decoder: Decoder | None = None
        self._matches: list[Matches] = []

    def add(self, outputs: Tensors, labels: Labels) -> None:
        """The last row of an image's labels is the size of the model's input."""
        if not len(labels):
            return
        if self._decoder is None:
            width, height = labels[0, -1, :2]
            self._decoder = Decoder(self._known, int(height), int(width))
        kind = matches_type(len(self._classes), self._known.options.max_detections)
        found = list(self._decoder.decode(outputs))
        if len(found) != len(labels):
            raise BadInput(reason=f"{len(found)} images were answered, but {len(labels)} asked")
        for own, label in zip(found, labels, strict=True):
            self._matches.append(matched(own, _truth(label[:-1]), kind))

    def score(self) -> Score:
        if self._decoder is None:
            raise BadInput(reason="no image was scored: the test set is empty")
        matches = np.concatenate(self._matches)
        if not matches["truth"].any():
            raise BadInput(reason="the test images have no objects: there is nothing to find")
        return score_of(matches, self._classes, self._decoder.note)


def _truth(rows: Labels) -> Truth:
    there = rows[rows[:, 4] >= 0]
    return Truth(there[:, :4], there[:, 4].astype(np.intp), there[:, 5] > 0)


def _decode(item: CocoImage, height: int, width: int, most: int, fit: str) -> tuple[Images, Labels]:
    picture = load(item.file)
    size = np.array(item.size or picture.size, np.float64)
    room = np.array([width, height], np.float64)
    scale, start = 1 / size, np.zeros(2)
    if fit == "none":
        image = as_rgb(picture, height, width)
    else:
        share = (room / size).min()
        inner = np.maximum(1, np.rint(size * share)).astype(int)
        corner = (room.astype(int) - inner) // 2 if fit == "center" else np.zeros(2, int)
        image = _letterboxed(picture, (width, height), inner, corner)
        scale, start = inner / size / room, corner / room
    labels = np.full((most + 1, _FIELDS), -1.0)
    things = [thing for thing in item.objects if thing.box is not None]
    for row, thing in zip(labels, things, strict=False):
        left_top, sides = np.array(thing.box).reshape(2, 2)
        row[:2] = left_top * scale + start
        row[2:4] = (left_top + sides) * scale + start
        row[4:] = thing.category, thing.is_crowd
    labels[-1, :2] = width, height
    return image, labels


def _letterboxed(
    picture: Image.Image, size: tuple[int, int], inner: Labels, corner: Labels
) -> Images:
    canvas = Image.new("RGB", size, _GREY)
    width, height = map(int, inner)
    pixels = as_rgb(picture, height, width)
    canvas.paste(Image.fromarray(pixels), (int(corner[0]), int(corner[1])))
    return np.asarray(canvas, dtype=np.uint8)
