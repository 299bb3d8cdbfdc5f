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
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeloop._util.schema import Section, key
from edgeloop._util.values import number
from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks.base import (
    DatasetEntry,
    Images,
    Interval,
    Labels,
    Output,
    Samples,
    Score,
    Tensors,
    read_options,
)
from edgeloop.tasks.coco import (
    CocoDataset,
    CocoImage,
    CocoObject,
    average_precisions,
    match,
    matches_type,
    read_coco,
)
from edgeloop.tasks.dataset import Preparation, as_rgb, for_calibration, for_test, load, prepared
from edgeloop.tasks.metrics import Floats, Headline, bootstrap, paired_difference

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
    counts_what = "points"

    def __init__(self, dataset: Path, cache: Path) -> None:
        self._root, self._cache = dataset, cache

    def entries(self) -> Sequence[DatasetEntry]:
        """Labelled points are those with a visibility above 0."""
        return [
            DatasetEntry(
                image.file,
                tuple(
                    number
                    for thing in image.objects
                    for number, seen in enumerate(thing.keypoints[_POINT - 1 :: _POINT])
                    if seen > 0
                ),
            )
            for image in self._images
        ]

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
        images = [
            CocoImage(image.file, image.size, things)
            for image in self._dataset.images
            if (things := tuple(filter(_is_labelled, image.objects)))
        ]
        if not images:
            raise NotFound(reason=f"{self._dataset.file} has no annotation with keypoints")
        counts = {len(thing.keypoints) for image in images for thing in image.objects}
        if len(counts) > 1:
            listed = " and ".join(str(count // _POINT) for count in sorted(counts))
            raise BadInput(
                reason=f"{self._dataset.file} has annotations with {listed} keypoints: all must "
                "have as many"
            )
        return images

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
            files_of=lambda instance: (instance.image.file,),
            decode=partial(_decode, height=height, width=width, options=options),
            image_shape=(height, width, 3),
            label_shape=(rows, _POINT),
            label_type=np.float64,
            also=(
                "keypoints",
                options.crop,
                repr(options.padding),
                *(repr((instance.image.size, instance.thing)) for instance in instances),
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
        written, points = self._options.sigmas, len(self._names)
        if written and (len(written) != points or min(written) <= 0):
            raise BadInput(reason=f"keypoints.json must have {points} sigmas above 0, if any")
        if written:
            return np.array(written)
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


# Outputs of a pose model as points in pixels of its input, each with a score.
#
#     heatmaps     (n, K, h, w) or (n, h, w, K); one channel more is a background
#     coordinates  (n, K, 2) or (n, K, 3) with a score, or the same in one row
#     SimCC        (n, K, columns) and (n, K, rows), a score for every place of each axis
#
# Of several heatmaps, such as those of a stacked hourglass, the last one counts.


_LEAST_SIDE = 4
_PIXELS = 4.0  # no normalized coordinate is that far outside
_ROW, _TABLE, _MAPS = 2, 3, 4  # dimensions
_PARTS = (2, 3)  # x, y and perhaps a score
_QUARTER = 0.25  # of a cell, towards the higher neighbour

Kind = Literal["heatmaps", "coordinates", "SimCC"]


@dataclass(frozen=True)
class PointLayout:
    kind: Kind
    points: str  # of SimCC the columns
    rows: str = ""


def recognized_points(
    shapes: Mapping[str, Sequence[int]], points: int, options: KeypointsOptions
) -> PointLayout:
    """Raises BadInput, with what would fit."""
    names = options.outputs
    for name in filter(None, (names.points, names.x, names.y)):
        if name not in shapes:
            have = ", ".join(shapes)
            raise BadInput(
                reason=f"keypoints.json names the output {name!r}, but the model's are {have}"
            )
    points_name = names.points
    plain = {n: _trimmed(s) for n, s in shapes.items() if points_name in ("", n)}
    if names.x and names.y:
        return PointLayout("SimCC", names.x, names.y)
    heatmaps = [name for name, shape in plain.items() if _are_heatmaps(shape, points)]
    if heatmaps:
        return PointLayout("heatmaps", heatmaps[-1])
    coordinates = [name for name, shape in plain.items() if _parts(shape, points)]
    if coordinates:
        return PointLayout("coordinates", coordinates[-1])
    axes = [n for n, s in plain.items() if len(s) == _TABLE and s[1] == points]
    if len(axes) == len(_PARTS):
        first, second = axes
        is_turned = first.lower().endswith("y") and second.lower().endswith("x")
        return PointLayout("SimCC", second, first) if is_turned else PointLayout("SimCC", *axes)
    have = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    raise BadInput(
        reason=f"the model's outputs ({have}) do not fit {points} keypoints, which need heatmaps "
        f"[n, {points}, height, width], coordinates [n, {points}, 2] or both axes apart "
        f"[n, {points}, columns] and [n, {points}, rows]"
    )


def _trimmed(shape: Sequence[int]) -> tuple[int, ...]:
    """Without the sides of length 1 that some exports put between."""
    first, *sides = shape
    while len(sides) > 1 and 1 in sides:
        sides.remove(1)
    return (first, *sides)


def _are_heatmaps(shape: Sequence[int], points: int) -> bool:
    return len(shape) == _MAPS and bool(_channel_axis(shape, points))


def _channel_axis(shape: Sequence[int], points: int) -> int:
    """0: there is none."""
    for axis, sides in ((1, shape[2:]), (3, shape[1:3])):
        if shape[axis] in (points, points + 1) and min(sides) >= _LEAST_SIDE:
            return axis
    return 0


def _parts(shape: Sequence[int], points: int) -> int:
    """How many numbers a point has; 0 if these are no points."""
    sides = tuple(shape[1:])
    for parts in _PARTS:
        if sides in ((points, parts), (points * parts,)):
            return parts
    return 0


class PointDecoder:
    """Keeps what the outputs of a model have shown so far."""

    def __init__(self, points: int, options: KeypointsOptions, height: int, width: int) -> None:
        self._points, self._options = points, options
        self._height, self._width = height, width
        self._layout: PointLayout | None = None
        self._gives_pixels = False

    @property
    def note(self) -> str:
        """How the outputs were understood."""
        if self._layout is None:
            return ""
        text = f"outputs read as {self._layout.kind}"
        if self._layout.kind == "coordinates":
            unit = "pixels" if self._are_pixels else "units of the crop"
            text += f", {self._options.order} in {unit}"
        return f"{text} (keypoints.json can say otherwise)"

    def decode(self, outputs: Tensors) -> Floats:
        """(n, K, 3): x, y and a score."""
        if self._layout is None:
            shapes = {name: array.shape for name, array in outputs.items()}
            self._layout = recognized_points(shapes, self._points, self._options)
        array = outputs[self._layout.points]
        array = array.reshape(_trimmed(array.shape)).astype(np.float64)
        if not np.isfinite(array).all():
            raise BadInput(reason="the model's keypoints hold NaN or infinite values")
        if self._layout.kind == "heatmaps":
            return self._of_heatmaps(array)
        if self._layout.kind == "coordinates":
            return self._of_coordinates(array)
        other = outputs[self._layout.rows]
        return self._of_axes(array, other.reshape(_trimmed(other.shape)).astype(np.float64))

    @property
    def _are_pixels(self) -> bool:
        told = self._options.coordinates
        return self._gives_pixels if told == "auto" else told == "pixels"

    def _of_heatmaps(self, maps: Output) -> Floats:
        if _channel_axis(maps.shape, self._points) == 3:
            maps = maps.transpose(0, 3, 1, 2)
        maps = maps[:, : self._points]
        count, points, high, wide = maps.shape
        best = maps.reshape(count, points, -1).argmax(axis=2)
        rows, columns = np.divmod(best, wide)
        y = rows + _lean(maps, rows, columns, axis=0)
        x = columns + _lean(maps, rows, columns, axis=1)
        score = maps.reshape(count, points, -1).max(axis=2)
        return np.stack([x * self._width / wide, y * self._height / high, score], axis=2)

    def _of_coordinates(self, table: Output) -> Floats:
        parts = _parts(table.shape, self._points)
        points = table.reshape(len(table), self._points, parts)
        places = points[..., :2] if self._options.order == "xy" else points[..., 1::-1]
        self._gives_pixels = self._gives_pixels or bool(np.abs(places).max(initial=0) > _PIXELS)
        if not self._are_pixels:
            places = places * np.array([self._width, self._height])
        score = points[..., 2:] if parts == 3 else np.ones((*points.shape[:2], 1))
        return np.concatenate([places, score], axis=2)

    def _of_axes(self, columns: Output, rows: Output) -> Floats:
        if self._width != self._height:  # sizes tell the axes apart, whatever they are called
            straight = abs(columns.shape[2] / self._width - rows.shape[2] / self._height)
            turned = abs(rows.shape[2] / self._width - columns.shape[2] / self._height)
            if turned < straight:
                columns, rows = rows, columns
        x = columns.argmax(axis=2) * self._width / columns.shape[2]
        y = rows.argmax(axis=2) * self._height / rows.shape[2]
        return np.stack([x, y, np.minimum(columns.max(axis=2), rows.max(axis=2))], axis=2)


def _lean(
    maps: Floats, rows: NDArray[np.intp], columns: NDArray[np.intp], axis: int
) -> NDArray[np.float64]:
    """A quarter towards the higher of the two neighbours along an axis, 0 at the edges."""
    images, points = np.indices(rows.shape)
    place = (rows, columns)[axis]
    last = maps.shape[2 + axis] - 1

    def at(step: int) -> Floats:
        moved = np.clip(place + step, 0, last)
        where = (moved, columns) if axis == 0 else (rows, moved)
        values: Floats = maps[images, points, where[0], where[1]]
        return values

    inner = (place > 0) & (place < last)
    return np.where(inner, _QUARTER * np.sign(at(1) - at(-1)), 0.0)


# PCK, the share of keypoints that are near enough, and COCO's AP with OKS as the overlap.
#
# A point is right if it is not farther from the truth than a tenth of the longer side of its
# object's box. OKS is the mean over the labelled keypoints of exp(−d² / 2(2σ)²A), with the area A
# of the object and a spread σ for each keypoint.


# Measured by COCO, of its 17 keypoints from nose to ankles.
COCO_SIGMAS = np.array(
    (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89), np.float64
)
COCO_SIGMAS /= 1000
OTHER_SIGMA = 0.05
MOST_IN_AN_IMAGE = 20  # answers that count, as COCO has it


@dataclass(frozen=True)
class Pose:
    """What was answered about an object, and the truth, in pixels of the original image."""

    image: int
    answer: Floats  # (K, 2)
    score: float
    truth: Floats  # (K, 2)
    is_labelled: NDArray[np.bool_]
    area: float


def oks(answers: Floats, truth: Pose, sigmas: Floats) -> Floats:
    """Of answers (n, K, 2) with the truth of an object."""
    away = ((answers - truth.truth) ** 2).sum(axis=2)
    spread = 2 * (2 * sigmas) ** 2 * (truth.area + np.spacing(1))
    alike = np.exp(-away / spread)[:, truth.is_labelled]
    similarity: Floats = alike.mean(axis=1)
    return similarity


def oks_precision(poses: Sequence[Pose], sigmas: Floats) -> Floats:
    """AP at each threshold."""
    by_image: dict[int, list[Pose]] = {}
    for pose in poses:
        by_image.setdefault(pose.image, []).append(pose)
    matches = np.zeros(len(by_image), matches_type(1, MOST_IN_AN_IMAGE))
    matches["class"] = -1
    for row, image_poses in zip(matches, by_image.values(), strict=True):
        order = np.argsort([-pose.score for pose in image_poses], kind="stable")[:MOST_IN_AN_IMAGE]
        answers = np.stack([image_poses[place].answer for place in order])
        overlaps = np.stack([oks(answers, pose, sigmas) for pose in image_poses], axis=1)
        hit, _ = match(overlaps, np.zeros(len(image_poses), np.bool_))
        row["truth"] = len(image_poses)
        row["class"][: len(order)] = 0
        row["score"][: len(order)] = [image_poses[place].score for place in order]
        row["hit"][: len(order)] = hit
    ((precision, _),) = average_precisions(matches, np.ones((1, len(matches))))
    levels: Floats = precision[0]
    return levels


def pck_interval(counts: NDArray[np.int64]) -> Interval:
    return bootstrap(len(counts), _share(counts))


def pck_difference(first: NDArray[np.int64], second: NDArray[np.int64]) -> Interval:
    return paired_difference(first, second, _share)


def _share(counts: NDArray[np.int64]) -> Headline:
    """`counts` (n, 2): how many points of a crop are right, of how many."""
    right, labelled = counts.astype(np.float64).T

    def value(weights: Floats) -> Floats:
        share: Floats = (weights @ right) / np.maximum(weights @ labelled, 1)
        return share

    return value


# `keypoints.json`: what the shapes of a pose model's outputs do not say.


_Positive = Annotated[float, number(is_open=True)]


class PointOutputs(Section):
    """Names of the model's outputs, where their shapes are not enough."""

    points: str = key("", "Heatmaps or coordinates.")
    x: str = key("", "Scores of columns, of models that answer both axes apart (SimCC).")
    y: str = key("", "Scores of rows.")


class KeypointsOptions(Section):
    """Keys of `keypoints.json`."""

    annotations: str = key("", "Annotation file, relative to the dataset; found by default.")
    images: str = key("", "Folder of the images, relative to the dataset; found by default.")
    crop: Literal["box", "image"] = key("box", "What the model sees: a person's box, or all.")
    padding: float = Field(
        1.25, gt=0, le=4, description="How many times larger than the box the crop is."
    )
    threshold: _Positive = key(0.1, "Distance of a right point, as a share of the box.")
    sigmas: list[float] = key(list, "Spread of each keypoint for OKS; COCO's by default.", "[]")
    order: Literal["xy", "yx"] = key("xy", "Which coordinate comes first.")
    coordinates: Literal["auto", "normalized", "pixels"] = key(
        "auto", "Whether points are from 0 to 1, or in pixels of the model's input."
    )
    outputs: PointOutputs = key(PointOutputs, "Names of the model's outputs.", "{}")
