"""Keypoints: the places of joints or landmarks, scored by PCK.

A sample is an object: its box is cut out of the image, enlarged a little and to the shape of the
model's input, black where the image ends. Samples of one image are never in both calibration and
test. The labels of a sample are (K + 3, 3): x, y and visibility of the K keypoints in pixels of the
input; the longer side of the box, and width and height of the input; left, top and area of the
object in the image; the size of a pixel there, and the number of the image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks.base import Images, Interval, Labels, Samples, Score, Tensors
from edgeloop.tasks.cache import Preparation, prepared
from edgeloop.tasks.coco import CocoDataset, CocoImage, CocoObject, read_coco
from edgeloop.tasks.dataset import as_rgb, for_calibration, for_test, load
from edgeloop.tasks.keypoints.decode import PointDecoder, recognized_points
from edgeloop.tasks.keypoints.metric import (
    COCO_SIGMAS,
    OTHER_SIGMA,
    Pose,
    oks_precision,
    pck_difference,
    pck_interval,
)
from edgeloop.tasks.keypoints.options import KeypointsOptions
from edgeloop.tasks.metrics import Floats
from edgeloop.tasks.options import read_options

__all__ = ["Keypoints", "KeypointsOptions", "KeypointsScorer"]

_POINT, _MORE_ROWS = 3, 3
_AT_50 = 0


@dataclass(frozen=True)
class Instance:
    """One object of an image, and the number of that image."""

    image: CocoImage
    thing: CocoObject
    number: int


class Keypoints:
    """Scored by PCK, the share of keypoints that are right within a tenth of the object's box."""

    name = "keypoints"
    metric = "PCK"

    def __init__(self, dataset: Path, cache: Path) -> None:
        self._root, self._cache = dataset, cache

    @property
    def classes(self) -> Sequence[str]:
        """The names of the keypoints."""
        thing = self._images[0].objects[0]
        count = len(thing.keypoints) // _POINT
        named = self._dataset.categories[thing.category].keypoints
        return named if len(named) == count else [str(number) for number in range(count)]

    def calibration(self, height: int, width: int, count: int) -> Samples:
        images, note = for_calibration(self._images, count, self._root)
        return self._prepared(self._instances(images)[:count], note, height, width)

    def test(self, height: int, width: int, count: int) -> Samples:
        images, note = for_test(self._images, count, self._root)
        return self._prepared(self._instances(images)[-count:], note, height, width)

    def scorer(self, curves: bool = True) -> KeypointsScorer:
        return KeypointsScorer(self.classes, self._options)

    def check_output(self, shape: Sequence[int]) -> None:
        self.check_outputs({"output": shape})

    def check_outputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        recognized_points(shapes, len(self.classes), self._options)

    def interval(self, counts: NDArray[np.int64]) -> Interval:
        return pck_interval(counts)

    def difference(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> Interval:
        return pck_difference(first, second)

    @cached_property
    def _options(self) -> KeypointsOptions:
        return read_options(KeypointsOptions, self._root, self.name)

    @cached_property
    def _dataset(self) -> CocoDataset:
        options, prefixes = self._options, ("person_keypoints", "keypoints")
        return read_coco(self._root, prefixes, options.annotations, options.images)

    @cached_property
    def _images(self) -> list[CocoImage]:
        """Those with at least one object that has keypoints, without all other objects."""
        found = [
            CocoImage(image.file, image.size, things)
            for image in self._dataset.images
            if (things := tuple(filter(_is_labelled, image.objects)))
        ]
        if not found:
            raise NotFound(reason=f"{self._dataset.file} has no annotation with keypoints")
        counts = {len(thing.keypoints) for image in found for thing in image.objects}
        if len(counts) > 1:
            listed = " and ".join(str(count // _POINT) for count in sorted(counts))
            raise BadInput(
                reason=f"{self._dataset.file} has annotations with {listed} keypoints: all must "
                "have as many"
            )
        return found

    def _instances(self, images: Iterable[CocoImage]) -> list[Instance]:
        return [
            Instance(image, thing, number)
            for number, image in enumerate(images)
            for thing in image.objects
        ]

    def _prepared(
        self, instances: Sequence[Instance], note: str, height: int, width: int
    ) -> Samples:
        rows = len(self.classes) + _MORE_ROWS
        options = self._options
        recipe = Preparation(
            root=self._root,
            items=instances,
            files_of=lambda own: (own.image.file,),
            decode=partial(_decode, height=height, width=width, options=options),
            image_shape=(height, width, 3),
            label_shape=(rows, _POINT),
            label_type=np.float64,
            also=(
                *("keypoints", options.crop, repr(options.padding)),
                *(repr((own.image.size, own.thing)) for own in instances),
            ),
        )
        notes = [text for text in (note, self._dataset.note) if text]
        return prepared(self._cache, recipe, "; ".join(notes))


def _is_labelled(thing: CocoObject) -> bool:
    return not thing.is_crowd and any(seen > 0 for seen in thing.keypoints[2::_POINT])


class KeypointsScorer:
    """Keeps the answered points of each sample: there are few."""

    def __init__(self, names: Sequence[str], options: KeypointsOptions) -> None:
        self._names, self._options = names, options
        self._decoder: PointDecoder | None = None
        self._right: list[NDArray[np.bool_]] = []
        self._poses: list[Pose] = []

    def add(self, outputs: Tensors, labels: Labels) -> None:
        if not len(labels):
            return
        points = len(self._names)
        if self._decoder is None:
            _, width, height = labels[0, points]
            self._decoder = PointDecoder(points, self._options, int(height), int(width))
        answers = self._decoder.decode(outputs)
        if len(answers) != len(labels):
            raise BadInput(reason=f"{len(answers)} crops were answered, but {len(labels)} asked")
        for answer, label in zip(answers, labels, strict=True):
            self._include(answer, np.asarray(label[:points]), label[points:])

    def _include(self, answer: Floats, truth: Floats, more: Labels) -> None:
        (side, _, _), (left, top, area), (wide, high, number) = more
        is_labelled = truth[:, 2] > 0
        away = np.hypot(*(answer[:, :2] - truth[:, :2]).T)
        self._right.append(is_labelled & (away <= self._options.threshold * side))
        corner, pixel = np.array([left, top]), np.array([wide, high])
        places = (part[:, :2] * pixel + corner for part in (answer, truth))
        score = float(answer[:, 2].mean())
        self._poses.append(Pose(int(number), next(places), score, next(places), is_labelled, area))

    def score(self) -> Score:
        if self._decoder is None:
            raise BadInput(reason="no image was scored: the test set is empty")
        right = np.stack(self._right)
        labelled = np.stack([pose.is_labelled for pose in self._poses])
        counts = np.stack([right.sum(axis=1), labelled.sum(axis=1)], axis=1)
        shares = right.sum(axis=0) / np.maximum(labelled.sum(axis=0), 1)
        there = labelled.sum(axis=0) > 0
        names = zip(self._names, shares, there, strict=True)
        overall = float(counts[:, 0].sum() / counts[:, 1].sum())
        table: dict[str, dict[str, float]] = {
            "PCK": {**{n: float(s) for n, s, is_there in names if is_there}, "overall": overall}
        }
        if all(pose.area > 0 for pose in self._poses):
            precision = oks_precision(self._poses, self._sigmas)
            table["OKS_mAP"] = {"overall": float(precision.mean())}
            table["OKS_AP50"] = {"overall": float(precision[_AT_50])}
        return Score(overall, table, counts.astype(np.int64), {}, note=self._decoder.note)

    @property
    def _sigmas(self) -> Floats:
        given, points = self._options.sigmas, len(self._names)
        if given and (len(given) != points or min(given) <= 0):
            raise BadInput(reason=f"keypoints.json must have {points} sigmas above 0, if any")
        if given:
            return np.array(given)
        return COCO_SIGMAS if points == len(COCO_SIGMAS) else np.full(points, OTHER_SIGMA)


def _decode(
    item: Instance, height: int, width: int, options: KeypointsOptions
) -> tuple[Images, Labels]:
    picture = load(item.image.file)
    stretch = np.array(picture.size) / np.array(item.image.size or picture.size)
    points = np.array(item.thing.keypoints).reshape(-1, _POINT)
    points[:, :2] *= stretch
    is_labelled = points[:, 2] > 0
    box = _box(item.thing, points[is_labelled, :2], stretch, picture.size)
    whole = options.crop == "image" or item.thing.box is None
    crop = (0, 0, *picture.size) if whole else _crop(box, width / height, options.padding)
    left, top, right, bottom = crop
    pixel = np.array([(right - left) / width, (bottom - top) / height])
    points[:, :2] = (points[:, :2] - (left, top)) / pixel
    points[~is_labelled] = 0
    side = float((box[2:] / pixel).max())
    area = item.thing.area * stretch.prod()
    number = float(item.number)
    more = [(side, width, height), (left, top, area), (*pixel, number)]
    image = as_rgb(picture.convert("RGB").crop(crop), height, width)
    return image, np.concatenate([points, np.array(more)])


def _box(thing: CocoObject, points: Floats, stretch: Floats, size: tuple[int, int]) -> Floats:
    """Left, top, width and height, within the image; around the points if there is none."""
    if thing.box is not None:
        low = np.array(thing.box[:2]) * stretch
        high = low + np.array(thing.box[2:]) * stretch
    else:
        low, high = points.min(axis=0), points.max(axis=0)
    low, high = np.clip(low, 0, size), np.clip(high, 0, size)
    return np.concatenate([low, np.maximum(high - low, 1.0)])


def _crop(box: Floats, aspect: float, padding: float) -> tuple[int, int, int, int]:
    """Left, top, right and bottom around the box's middle, as wide for its height as `aspect`."""
    middle, size = box[:2] + box[2:] / 2, box[2:]
    wide = max(float(size[0]), float(size[1]) * aspect) * padding
    half = np.array([wide, wide / aspect]) / 2
    left, top = np.floor(middle - half).astype(int)
    right, bottom = np.ceil(middle + half).astype(int)
    return int(left), int(top), int(right), int(bottom)
