"""`keypoints.json`: what the shapes of a pose model's outputs do not say."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgeloop._util.schema import Section, key
from edgeloop._util.values import number

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
