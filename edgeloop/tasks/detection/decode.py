"""Outputs of a detector as boxes from 0 to 1, scores and classes, without duplicates.

What `detection.json` leaves open is found out from the outputs, once and for all images: scores
outside of 0 to 1 are logits, coordinates far beyond 1 are pixels, and boxes whose right end lies
left of the left one are a centre and a size. A model keeps what it once showed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.tasks.base import Output, Tensors
from edgeloop.tasks.detection.layout import BOX, Classes, Columns, Layout, recognized, trimmed
from edgeloop.tasks.detection.metric import Found
from edgeloop.tasks.metrics import Floats, are_logits

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
        for own, score, label in zip(boxes, scores, labels, strict=True):
            kept = np.flatnonzero(score > least)
            found = self._classes.of_labels(np.rint(label[kept]).astype(np.intp))
            known = found >= 0
            kept, found = kept[known], found[known]
            best = np.argsort(-score[kept], kind="stable")[: self._options.max_detections]
            yield Found(own[kept[best]], score[kept[best]].astype(np.float64), found[best])

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
        for own, image in zip(corners, scores, strict=True):
            yield self._without_duplicates(own, image, categories)

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
        kept = suppressed(boxes[box], classes, self._nms_iou, self._options.max_detections)
        return Found(boxes[box[kept]], values[kept].astype(np.float64), classes[kept])

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
    kept: list[int] = []
    while numbers.size and len(kept) < most:
        kept.append(int(numbers[0]))
        wide = np.minimum(right, right[0]) - np.maximum(left, left[0])
        high = np.minimum(bottom, bottom[0]) - np.maximum(top, top[0])
        shared = np.maximum(wide, 0) * np.maximum(high, 0)
        others = shared <= overlap * (area + area[0] - shared)
        others[0] = False
        parts = (left, top, right, bottom, area)
        left, top, right, bottom, area = (part[others] for part in parts)
        numbers = numbers[others]
    return np.array(kept, np.intp)


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
