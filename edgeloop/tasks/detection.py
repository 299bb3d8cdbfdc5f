"""Detection: boxes with a class, scored by COCO's mAP.

The labels of an image are (objects, 6): left, top, right, bottom in units of the model's input,
the class, and whether it is a crowd; class −1 where an image has fewer objects than others. Overlap
does not change when images are stretched, so boxes need not go back to the original image.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from edgeloop._util.schema import Section, key
from edgeloop._util.values import whole
from edgeloop.errors import BadInput
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
    Category,
    CocoDataset,
    CocoImage,
    Found,
    Matches,
    Truth,
    difference_of,
    digest_of,
    interval_of,
    matched,
    matches_type,
    read_coco,
    score_of,
)
from edgeloop.tasks.dataset import (
    FolderTask,
    Preparation,
    as_rgb,
    load,
    prepared,
)
from edgeloop.tasks.metrics import Floats, are_logits

_FIELDS = 6
_GREY = (114, 114, 114)  # what most detectors were trained with around an image


class Detection(FolderTask[CocoImage]):
    """Scored by mAP, the mean of AP over classes and over overlaps of 0.5 to 0.95."""

    name = "detection"
    metric = "mAP"
    counts_what = "objects"

    def entries(self) -> Sequence[DatasetEntry]:
        return [
            DatasetEntry(image.file, tuple(thing.category for thing in image.objects))
            for image in self._items
        ]

    @property
    def classes(self) -> Sequence[str]:
        return [category.name for category in self._dataset.categories]

    @property
    def _items(self) -> Sequence[CocoImage]:
        return self._dataset.images

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

    def _prepared(self, items: Sequence[CocoImage], note: str, height: int, width: int) -> Samples:
        most = max(1, *(len(image.objects) for image in items))
        fit = self._options.letterbox
        recipe = Preparation(
            root=self._root,
            items=items,
            files_of=lambda image: (image.file,),
            decode=partial(_decode, height=height, width=width, most=most, fit=fit),
            image_shape=(height, width, 3),
            label_shape=(most + 1, _FIELDS),
            label_type=np.float64,
            also=("detection", fit, digest_of(items)),
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
        detections = list(self._decoder.decode(outputs))
        if len(detections) != len(labels):
            raise BadInput(
                reason=f"{len(detections)} images were answered, but {len(labels)} asked"
            )
        for detected, label in zip(detections, labels, strict=True):
            self._matches.append(matched(detected, _truth(label[:-1]), kind))

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


# Outputs of a detector as boxes from 0 to 1, scores and classes, without duplicates.
#
# What `detection.json` leaves open is found out from the outputs, once and for all images: scores
# outside of 0 to 1 are logits, coordinates far beyond 1 are pixels, and boxes whose right end lies
# left of the left one are a centre and a size. A model keeps what it once showed.


NMS_IOU = 0.65
THRESHOLD = 0.001
CANDIDATES = 3_000  # of an image that duplicates are looked for in
_PIXELS = 4.0  # no normalized coordinate is that far outside
_TURNED = 0.05  # the share of boxes that quantization may turn inside out
_SLACK = 0.02
_ENOUGH = 100  # boxes that tell something about a model
_INVERTED = 0.25  # the share of negative sizes from which on boxes are none


class Decoder:
    """Keeps what the outputs of a model have shown so far."""

    def __init__(self, classes: Classes, height: int, width: int) -> None:
        self._classes, self._options = classes, classes.options
        self._size = np.array([width, height, width, height], np.float64)
        self._layout: Layout | None = None
        self._columns: Columns | None = None
        self._gives_logits = self._gives_pixels = self._gives_centres = False

    def decode(self, outputs: Tensors) -> Iterator[Found]:
        """An image at a time, best detections first."""
        arrays = {name: array.reshape(trimmed(array.shape)) for name, array in outputs.items()}
        if self._layout is None:
            shapes = {name: array.shape for name, array in outputs.items()}
            self._layout = recognized(shapes, self._classes)
        if self._layout.kind == "final":
            yield from self._decode_final(arrays, self._layout)
        else:
            yield from self._decode_scores(arrays, self._layout)

    @property
    def note(self) -> str:
        """How the outputs were understood."""
        if self._layout is None:
            return ""
        kind = self._layout.kind
        parts = [
            f"outputs read as {kind}",
            f"boxes {self._box_format} in {'pixels' if self._are_pixels else 'units of the image'}",
        ]
        if kind != "final":
            overlap = self._nms_iou
            parts.append(f"scores by {self._activation}")
            parts.append(f"NMS at IoU {overlap:g}" if overlap < 1 else "no NMS")
        if self._columns is not None and self._columns.background != "none":
            parts.append(f"background class {self._columns.background}")
        return ", ".join(parts) + " (detection.json can say otherwise)"

    def _decode_final(self, arrays: Tensors, layout: Layout) -> Iterator[Found]:
        table = arrays[layout.boxes]
        count, anchors = table.shape[:2]
        if layout.scores:
            scores = arrays[layout.scores].reshape(count, anchors)
            labels = arrays[layout.labels].reshape(count, anchors)
            if not layout.is_sure and _are_whole(scores) and not _are_whole(labels):
                scores, labels = labels, scores
        else:
            scores, labels = table[..., BOX], table[..., BOX + 1]
        least = self._options.score_threshold or 0.0
        boxes = self._corners(table[..., :BOX], scores > least)
        for image_boxes, score, label in zip(boxes, scores, labels, strict=True):
            rows = np.flatnonzero(score > least)
            categories = self._classes.of_labels(np.rint(label[rows]).astype(np.intp))
            has_category = categories >= 0
            rows, categories = rows[has_category], categories[has_category]
            best = np.argsort(-score[rows], kind="stable")[: self._options.max_detections]
            yield Found(
                image_boxes[rows[best]], score[rows[best]].astype(np.float64), categories[best]
            )

    def _decode_scores(self, arrays: Tensors, layout: Layout) -> Iterator[Found]:
        boxes, scores, objectness = _parts(arrays, layout)
        scores = self._scores(scores, layout)
        if objectness is not None:
            is_raw = self._activation == "sigmoid"
            scores = scores * (_sigmoid(objectness) if is_raw else objectness)[..., None]
        assert self._columns is not None
        used = np.flatnonzero(self._columns.categories >= 0)
        categories, scores = self._columns.categories[used], scores[..., used]
        corners = self._corners(boxes, np.ones(boxes.shape[:2], np.bool_))
        for image_corners, image in zip(corners, scores, strict=True):
            yield self._without_duplicates(image_corners, image, categories)

    def _scores(self, raw: Output, layout: Layout) -> NDArray[np.float32]:
        raw = raw.astype(np.float32)
        if self._columns is None:
            self._columns = self._classes.columns(layout.channels)
            if self._columns is None:
                raise BadInput(reason=f"no category fits {layout.channels} classes of the model")
            if self._columns.background == "unknown":
                self._columns = _located(self._columns, raw)
        self._gives_logits = self._gives_logits or are_logits(raw)
        if self._activation == "sigmoid":
            return _sigmoid(raw)
        if self._activation == "softmax":
            raised = np.exp(raw - raw.max(axis=-1, keepdims=True))
            probabilities: NDArray[np.float32] = raised / raised.sum(axis=-1, keepdims=True)
            return probabilities
        return raw

    @property
    def _activation(self) -> str:
        if self._options.activation != "auto":
            return self._options.activation
        if not self._gives_logits:
            return "none"
        has_background = self._columns is not None and self._columns.background != "none"
        return "softmax" if has_background else "sigmoid"

    @property
    def _nms_iou(self) -> float:
        """Models with a 'no object' at the end, such as DETR, give no duplicates."""
        if self._options.nms_iou is not None:
            return self._options.nms_iou
        is_set = self._columns is not None and self._columns.background == "last"
        return 1.0 if is_set else NMS_IOU

    def _without_duplicates(
        self, boxes: Floats, scores: NDArray[np.float32], categories: NDArray[np.intp]
    ) -> Found:
        """Every class of every box is a detection of its own."""
        least = self._options.score_threshold
        flat = np.ascontiguousarray(scores).ravel()
        places = np.flatnonzero(flat > (THRESHOLD if least is None else least))
        if len(places) > CANDIDATES:
            best = np.argpartition(-flat[places], CANDIDATES)[:CANDIDATES]
            places = np.sort(places[best])
        places = places[np.argsort(-flat[places], kind="stable")]
        box, column = np.divmod(places, scores.shape[1])
        classes, values = categories[column], flat[places]
        surviving = suppressed(boxes[box], classes, self._nms_iou, self._options.max_detections)
        return Found(
            boxes[box[surviving]], values[surviving].astype(np.float64), classes[surviving]
        )

    @property
    def _are_pixels(self) -> bool:
        told = self._options.coordinates
        return self._gives_pixels if told == "auto" else told == "pixels"

    @property
    def _box_format(self) -> str:
        if self._options.boxes != "auto":
            return self._options.boxes
        assert self._layout is not None
        if self._layout.kind in ("joined", "objectness"):
            return "cxcywh"
        if self._layout.kind == "final":  # TensorFlow's own post-processing
            return "yxyx" if "detection_boxes" in self._layout.boxes else "xyxy"
        return "cxcywh" if self._gives_centres else "xyxy"

    def _corners(self, raw: Output, used: NDArray[np.bool_]) -> Floats:
        """(n, a, 4): left, top, right, bottom, in units of the input."""
        boxes = raw.astype(np.float64)
        shown = boxes[used & (boxes != 0).any(axis=-1)]
        if not np.isfinite(shown).all():
            raise BadInput(reason="the model's boxes hold NaN or infinite values")
        largest = float(np.abs(shown).max(initial=0.0))
        self._gives_pixels = self._gives_pixels or largest > _PIXELS
        turned = (shown[:, 2:] < shown[:, :2] - _SLACK * largest).any(axis=1)
        self._gives_centres = self._gives_centres or bool(turned.sum() > _TURNED * len(turned))
        if self._box_format in ("cxcywh", "xywh"):
            inverted = (shown[:, 2:] < -_SLACK * largest).any(axis=1)
            if len(inverted) >= _ENOUGH and inverted.sum() > _INVERTED * len(inverted):
                raise BadInput(
                    reason=f"{inverted.mean():.0%} of the model's boxes have a negative size: they "
                    "look like raw offsets to anchors, which the model itself must decode"
                )
        corners = _as_corners(boxes, self._box_format)
        return corners / self._size if self._are_pixels else corners


def suppressed(
    boxes: Floats, classes: NDArray[np.intp], overlap: float, most: int
) -> NDArray[np.intp]:
    """Which of the boxes, best first, are no duplicates of a better one of their class."""
    if overlap >= 1:
        return np.arange(min(len(boxes), most))
    span = float(np.ptp(boxes)) + 1 if boxes.size else 1.0
    left, top, right, bottom = (boxes + span * classes[:, None]).T.copy()  # classes lie far apart
    area = np.clip(right - left, 0, None) * np.clip(bottom - top, 0, None)
    numbers = np.arange(len(boxes))
    surviving: list[int] = []
    while numbers.size and len(surviving) < most:
        surviving.append(int(numbers[0]))
        wide = np.minimum(right, right[0]) - np.maximum(left, left[0])
        high = np.minimum(bottom, bottom[0]) - np.maximum(top, top[0])
        shared = np.maximum(wide, 0) * np.maximum(high, 0)
        others = shared <= overlap * (area + area[0] - shared)
        others[0] = False
        parts = (left, top, right, bottom, area)
        left, top, right, bottom, area = (part[others] for part in parts)
        numbers = numbers[others]
    return np.array(surviving, np.intp)


def _parts(arrays: Tensors, layout: Layout) -> tuple[Output, Output, Output | None]:
    """Boxes (n, a, 4), scores (n, a, classes), objectness (n, a)."""
    if layout.scores:
        boxes, scores = _anchors_first(arrays[layout.boxes], BOX), arrays[layout.scores]
        if scores.ndim == 2:
            scores = scores[..., None]
        return boxes, _anchors_first(scores, layout.channels), None
    ahead = BOX + (layout.kind == "objectness")
    table = _anchors_first(arrays[layout.boxes], ahead + layout.channels)
    objectness = table[..., BOX] if layout.kind == "objectness" else None
    return table[..., :BOX], table[..., ahead:], objectness


def _anchors_first(table: Output, channels: int) -> Output:
    """(n, a, channels)."""
    return table if table.shape[2] == channels else table.transpose(0, 2, 1)


def _located(columns: Columns, raw: NDArray[np.float32]) -> Columns:
    """Whether the class without a category is the first or the last: most boxes hold nothing."""
    answers = raw.argmax(axis=-1)
    first, last = (answers == 0).sum(), (answers == raw.shape[-1] - 1).sum()
    if first > last:
        return Columns(np.roll(columns.categories, 1), "first")
    return Columns(columns.categories, "last")


def _sigmoid(values: NDArray[Any]) -> NDArray[np.float32]:
    clipped = np.clip(values.astype(np.float32), -80, 80)
    result: NDArray[np.float32] = np.reciprocal(1 + np.exp(-clipped), dtype=np.float32)
    return result


def _as_corners(boxes: Floats, form: str) -> Floats:
    if form == "yxyx":
        return boxes[..., [1, 0, 3, 2]]
    if form == "xyxy":
        return boxes
    place, size = boxes[..., :2], boxes[..., 2:]
    low = place if form == "xywh" else place - size / 2
    return np.concatenate([low, low + size], axis=-1)


def _are_whole(values: Output) -> bool:
    return bool(np.array_equal(values, np.rint(values)))


# `detection.json`: what the shapes of a detector's outputs do not say.


MOST_DETECTIONS = 1_000


class OutputNames(Section):
    """Names of the model's outputs, where their shapes are not enough."""

    boxes: str = key("", "Boxes; with the scores beside them if `scores` is not given.")
    scores: str = key("", "Scores of the classes.")
    labels: str = key("", "Class numbers, of models that suppress duplicates themselves.")


class DetectionOptions(Section):
    """Keys of `detection.json`."""

    annotations: str = key("", "Annotation file, relative to the dataset; found by default.")
    images: str = key("", "Folder of the images, relative to the dataset; found by default.")
    letterbox: Literal["none", "center", "top-left"] = key(
        "none", "Keep the aspect ratio and fill up with grey, around or right and below."
    )
    layout: Literal["auto", "split", "joined", "objectness", "final"] = key(
        "auto",
        "Boxes and scores apart, in one tensor, in one with objectness, or without duplicates.",
    )
    boxes: Literal["auto", "xyxy", "yxyx", "cxcywh", "xywh"] = key(
        "auto", "What a box consists of."
    )
    coordinates: Literal["auto", "normalized", "pixels"] = key(
        "auto", "Whether boxes are from 0 to 1, or in pixels of the model's input."
    )
    activation: Literal["auto", "sigmoid", "softmax", "none"] = key(
        "auto", "What turns outputs into scores from 0 to 1."
    )
    background: Literal["auto", "none", "first", "last"] = key(
        "auto", "Which class of the model is none: the first, or the last ('no object')."
    )
    classes: list[str | int | None] = key(
        list, "Category (name or id) of each class of the model; null: none of them.", "[]"
    )
    labels: Literal["auto", "index", "id"] = key(
        "auto", "Whether class numbers count the categories from 0, or are their ids."
    )
    nms_iou: float | None = Field(
        None, ge=0, le=1, description="Overlap from which a box is a duplicate; 1: there are none."
    )
    score_threshold: float | None = Field(
        None, ge=0, le=1, description="Detections below it are left out."
    )
    max_detections: Annotated[int, whole(1, MOST_DETECTIONS)] = key(
        100, "Detections of an image that count."
    )
    outputs: OutputNames = key(OutputNames, "Names of the model's outputs.", "{}")


# Which outputs of a detector are its boxes, scores and labels: by their shapes, then their names.
#
#     split       boxes (n, a, 4) and scores (n, a, classes); either may be (n, channels, a)
#     joined      (n, a, 4 + classes) or (n, 4 + classes, a), as YOLOv8 has it
#     objectness  the same with 5 + classes, as YOLOv5 and YOLOX have it
#     final       without duplicates: boxes (n, a, 4), scores (n, a) and labels (n, a); or one tenso
#                 (n, a, 6) of box, score and label
#
# A model may have a class more than the dataset, its background, or as many as the ids of the
# categories reach (91 for COCO's 80). Outputs that fit nothing, such as masks, are left alone.


Kind = Literal["split", "joined", "objectness", "final"]
Shape = tuple[int, ...]
BOX = 4
_FINAL = 6  # box, score, label
_ROWS, _TABLE = 2, 3  # dimensions
_BOX_WORDS = ("box", "loc", "coord", "reg")
_SCORE_WORDS = ("score", "logit", "conf", "prob", "cls", "class", "cat")
_LABEL_WORDS = ("label", "class", "cls", "categor", "idx", "ids")


@dataclass(frozen=True)
class Layout:
    """`scores` is empty where they stand beside the boxes, `labels` where there are none.
    `channels` counts the classes of the model, its background included."""

    kind: Kind
    boxes: str
    scores: str = ""
    labels: str = ""
    channels: int = 0
    is_sure: bool = True  # which of scores and labels is which


@dataclass(frozen=True)
class Columns:
    """Which category each class of a model is; −1: none of them."""

    categories: NDArray[np.intp]
    background: Literal["none", "first", "last", "unknown"]


@dataclass(frozen=True)
class Classes:
    """The dataset's categories, and which of them have objects."""

    categories: Sequence[Category]
    annotated: Sequence[int]
    options: DetectionOptions

    def columns(self, channels: int) -> Columns | None:
        """None if a model with so many classes has others."""
        count, background = len(self.categories), self.options.background
        ids = [category.id for category in self.categories]
        plain = np.arange(count)
        if self.options.classes:
            plain = self._given
        if channels == len(plain) and background in ("auto", "none"):
            return Columns(plain, "none")
        if channels == len(plain) + 1 and background != "none":
            return _with_background(plain, background)
        if self.options.classes:
            return None
        if len(self.annotated) < count and channels == len(self.annotated):
            return Columns(np.array(self.annotated, np.intp), "none")
        if min(ids) >= 0 and channels in (max(ids) + 1, max(ids) + 2):
            by_id = np.full(channels, -1, np.intp)
            by_id[ids] = np.arange(count)
            last = channels == max(ids) + 2
            implied: Literal["last", "first", "none"] = (
                "last" if last else "first" if min(ids) else "none"
            )
            return Columns(by_id, implied if background == "auto" else background)
        return None

    def of_labels(self, labels: NDArray[np.intp]) -> NDArray[np.intp]:
        """Categories of the class numbers that a model gives, −1 for those of none."""
        table = self._by_label
        is_known = (labels >= 0) & (labels < len(table))
        if not is_known.all():
            wrong = labels[~is_known][0]
            raise BadInput(
                reason=f"the model answered class {wrong}, but the dataset has "
                f"{len(self.categories)} categories: if labels are the ids of categories, say "
                "'labels': 'id' in detection.json, else name its 'classes' there"
            )
        return table[labels]

    @cached_property
    def _by_label(self) -> NDArray[np.intp]:
        if self.options.labels == "id":
            ids = [category.id for category in self.categories]
            table = np.full(max(0, *ids) + 1, -1, np.intp)
            table[[n for n in ids if n >= 0]] = [i for i, n in enumerate(ids) if n >= 0]
            return table
        return self._given if self.options.classes else np.arange(len(self.categories))

    @cached_property
    def _given(self) -> NDArray[np.intp]:
        numbers: dict[object, int] = {c.id: n for n, c in enumerate(self.categories)}
        numbers |= {c.name: n for n, c in enumerate(self.categories)}
        for name in self.options.classes:
            if name is not None and name not in numbers:
                raise BadInput(
                    reason=f"detection.json names the class {name!r}, which no category of the "
                    "dataset is called"
                )
        return np.array([-1 if n is None else numbers[n] for n in self.options.classes], np.intp)


def _with_background(plain: NDArray[np.intp], background: str) -> Columns:
    none = np.array([-1], np.intp)
    if background == "first":
        return Columns(np.concatenate([none, plain]), "first")
    return Columns(np.concatenate([plain, none]), "last" if background == "last" else "unknown")


def trimmed(shape: Sequence[int]) -> Shape:
    """Without the sides of length 1 that some exports put between."""
    sides = tuple(shape)
    while len(sides) > _TABLE and 1 in sides[1:-1]:
        place = sides.index(1, 1)
        sides = (*sides[:place], *sides[place + 1 :])
    return sides


def recognized(shapes: Mapping[str, Sequence[int]], classes: Classes) -> Layout:
    """Raises BadInput, with what would fit."""
    options = classes.options
    named = {name: trimmed(shape) for name, shape in shapes.items()}
    for role, name in options.outputs:
        if name and name not in named:
            have = ", ".join(named)
            raise BadInput(
                reason=f"detection.json says that {role} are the output {name!r}, but the model's "
                f"outputs are {have}"
            )
    layouts = [
        layout
        for search in (_final, _split, _joined)
        for layout in search(named, classes)
        if options.layout in ("auto", layout.kind) and _is_named(layout, options)
    ]
    kinds = [layout for layout in layouts if layout.kind == layouts[0].kind]
    if len(kinds) == 1:
        return kinds[0]
    have = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    if kinds:
        raise BadInput(
            reason=f"several of the model's outputs may be its boxes and scores ({have}): name "
            "them in detection.json, as in {'outputs': {'boxes': NAME, 'scores': NAME}}"
        )
    count = len(classes.categories)
    raise BadInput(
        reason=f"the model's outputs ({have}) do not fit a detection of {count} categories, which "
        f"needs boxes [n, a, 4] with scores [n, a, {count}], or one output [n, a, {4 + count}] or "
        f"[n, a, {5 + count}]; raw heads must be decoded by the model, and other classes be named "
        "in detection.json"
    )


def _is_named(layout: Layout, options: DetectionOptions) -> bool:
    pairs = ((getattr(options.outputs, role), getattr(layout, role)) for role in _ROLES)
    return all(option in ("", got) for option, got in pairs)


_ROLES = ("boxes", "scores", "labels")


def _final(named: Mapping[str, Shape], classes: Classes) -> list[Layout]:
    tables = [name for name, shape in named.items() if len(shape) == _TABLE]
    count = len(classes.categories)
    layouts = []
    for name in tables:
        is_told = classes.options.layout == "final"
        if named[name][2] == _FINAL and (count > _FINAL - BOX or is_told):
            layouts.append(Layout("final", name))
    boxes = [name for name in tables if named[name][2] == BOX]
    for name in boxes:
        rows = [other for other, shape in named.items() if _rows(shape) == named[name][:2]]
        for first, second in itertools.combinations(rows, 2):
            scores, labels, is_sure = _told_apart(first, second)
            if classes.options.outputs.labels == scores:
                scores, labels = labels, scores
            layouts.append(Layout("final", name, scores, labels, is_sure=is_sure))
    return layouts


def _rows(shape: Shape) -> Shape:
    """(n, a), also of (n, a, 1)."""
    if len(shape) == _TABLE and shape[2] == 1:
        return shape[:2]
    return shape if len(shape) == _ROWS else ()


def _told_apart(first: str, second: str) -> tuple[str, str, bool]:
    """Scores, labels, and whether their names say so."""
    for scores, labels in ((first, second), (second, first)):
        if _sounds_like(labels, _LABEL_WORDS) and not _sounds_like(labels, ("score", "prob")):
            return scores, labels, True
    return first, second, False


def _sounds_like(name: str, words: Sequence[str]) -> bool:
    return any(word in name.lower() for word in words)


def _split(named: Mapping[str, Shape], classes: Classes) -> list[Layout]:
    layouts = []
    for name, other in itertools.permutations(named, 2):
        boxes, scores = named[name], named[other]
        if len(boxes) != _TABLE or BOX not in boxes[1:]:
            continue
        anchors = boxes[1] if boxes[2] == BOX else boxes[2]
        if len(scores) == _ROWS and scores[1] == anchors:
            scores = (*scores, 1)
        if len(scores) != _TABLE or anchors not in scores[1:]:
            continue
        channels = scores[2] if scores[1] == anchors else scores[1]
        if classes.columns(channels) is not None:
            layouts.append(Layout("split", name, other, channels=channels))
    return _by_name(layouts)


def _by_name(layouts: list[Layout]) -> list[Layout]:
    """With four classes, boxes and scores look alike but for their names."""
    if len(layouts) < 2:
        return layouts
    likely = [
        layout
        for layout in layouts
        if _sounds_like(layout.boxes, _BOX_WORDS) or _sounds_like(layout.scores, _SCORE_WORDS)
    ]
    return likely or layouts


def _joined(named: Mapping[str, Shape], classes: Classes) -> list[Layout]:
    layouts = []
    kinds: tuple[tuple[Kind, int], ...] = (("joined", BOX), ("objectness", BOX + 1))
    for name, shape in named.items():
        if len(shape) != _TABLE:
            continue
        fitting = [
            Layout(kind, name, channels=side - ahead)
            for side in sorted({*shape[1:]})  # the longer side are the anchors
            for kind, ahead in kinds
            if side > ahead and classes.columns(side - ahead) is not None
        ]
        exact = [
            layout for layout in fitting if _has_no_background(classes.columns(layout.channels))
        ]
        layouts += (exact or fitting)[:1]
    return layouts


def _has_no_background(columns: Columns | None) -> bool:
    return columns is not None and columns.background == "none"
