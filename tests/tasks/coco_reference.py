"""COCO's own evaluation, which our scores are compared with."""

from __future__ import annotations

import contextlib
import io
from typing import Any, Literal

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def coco_stats(
    kind: Literal["bbox", "keypoints"],
    images: int,
    categories: list[str],
    annotations: list[dict[str, Any]],
    answers: list[dict[str, Any]],
) -> Any:
    """Its twelve or ten figures; images and categories count from 1. It prints, so that is held."""
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": [{"id": n + 1} for n in range(images)],
            "annotations": annotations,
            "categories": [{"id": n + 1, "name": name} for n, name in enumerate(categories)],
        }
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(answers), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats
