"""`detection.json`: what the shapes of a detector's outputs do not say."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgeloop._util.schema import Section, key
from edgeloop._util.values import whole

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
