"""Which outputs of a detector are its boxes, scores and labels: by their shapes, then their names.

    split       boxes (n, a, 4) and scores (n, a, classes); either may be (n, channels, a)
    joined      (n, a, 4 + classes) or (n, 4 + classes, a), as YOLOv8 has it
    objectness  the same with 5 + classes, as YOLOv5 and YOLOX have it
    final       without duplicates: boxes (n, a, 4), scores (n, a) and labels (n, a); or one tensor
                (n, a, 6) of box, score and label

A model may have a class more than the dataset, its background, or as many as the ids of the
categories reach (91 for COCO's 80). Outputs that fit nothing, such as masks, are left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.tasks.coco import Category
from edgeloop.tasks.detection.options import DetectionOptions

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
            known: Literal["last", "first", "none"] = (
                "last" if last else "first" if min(ids) else "none"
            )
            return Columns(by_id, known if background == "auto" else background)
        return None

    def of_labels(self, labels: NDArray[np.intp]) -> NDArray[np.intp]:
        """Categories of the class numbers that a model gives, −1 for those of none."""
        table = self._by_label
        known = (labels >= 0) & (labels < len(table))
        if not known.all():
            wrong = labels[~known][0]
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
        known: dict[object, int] = {c.id: n for n, c in enumerate(self.categories)}
        known |= {c.name: n for n, c in enumerate(self.categories)}
        for name in self.options.classes:
            if name is not None and name not in known:
                raise BadInput(
                    reason=f"detection.json names the class {name!r}, which no category of the "
                    "dataset is called"
                )
        return np.array([-1 if n is None else known[n] for n in self.options.classes], np.intp)


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
    found = [
        layout
        for search in (_final, _split, _joined)
        for layout in search(named, classes)
        if options.layout in ("auto", layout.kind) and _is_named(layout, options)
    ]
    kinds = [layout for layout in found if layout.kind == found[0].kind]
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
    return all(wanted in ("", got) for wanted, got in pairs)


_ROLES = ("boxes", "scores", "labels")


def _final(named: Mapping[str, Shape], classes: Classes) -> list[Layout]:
    tables = [name for name, shape in named.items() if len(shape) == _TABLE]
    count = len(classes.categories)
    found = []
    for name in tables:
        is_told = classes.options.layout == "final"
        if named[name][2] == _FINAL and (count > _FINAL - BOX or is_told):
            found.append(Layout("final", name))
    boxes = [name for name in tables if named[name][2] == BOX]
    for name in boxes:
        rows = [other for other, shape in named.items() if _rows(shape) == named[name][:2]]
        for first, second in itertools.combinations(rows, 2):
            scores, labels, is_sure = _told_apart(first, second)
            if classes.options.outputs.labels == scores:
                scores, labels = labels, scores
            found.append(Layout("final", name, scores, labels, is_sure=is_sure))
    return found


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
    found = []
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
            found.append(Layout("split", name, other, channels=channels))
    return _by_name(found)


def _by_name(found: list[Layout]) -> list[Layout]:
    """With four classes, boxes and scores look alike but for their names."""
    if len(found) < 2:
        return found
    likely = [
        layout
        for layout in found
        if _sounds_like(layout.boxes, _BOX_WORDS) or _sounds_like(layout.scores, _SCORE_WORDS)
    ]
    return likely or found


def _joined(named: Mapping[str, Shape], classes: Classes) -> list[Layout]:
    found = []
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
        found += (exact or fitting)[:1]
    return found


def _has_no_background(columns: Columns | None) -> bool:
    return columns is not None and columns.background == "none"
