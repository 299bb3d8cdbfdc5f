"""A small dataset in COCO's layout, and what a model would have to answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 64
NAMES = ("cat", "dog", "owl")


def content(count: int = 12, seed: int = 0) -> dict[str, Any]:
    """One to three objects in each image, in different quarters, and one image without any."""
    dice = np.random.default_rng(seed)
    annotations = []
    for image in range(1, count):
        for quarter in dice.permutation(4)[: dice.integers(1, 4)]:
            corner = 32 * np.array([quarter % 2, quarter // 2]) + dice.integers(0, 8, 2)
            box = [*map(float, corner), *map(float, dice.integers(12, 24, 2))]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(dice.choice([1, 3, 7])),
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    return {
        "images": [
            {"id": n, "file_name": f"{n:04d}.png", "width": SIDE, "height": SIDE}
            for n in range(count)
        ],
        "annotations": annotations,
        "categories": [{"id": i, "name": n} for i, n in zip((1, 3, 7), NAMES, strict=True)],
    }


def poses(count: int = 12, points: int = 5, seed: int = 0) -> dict[str, Any]:
    """The same objects with keypoints, of which some are not labelled."""
    dice = np.random.default_rng(seed)
    document = content(count, seed)
    names = [f"point{number}" for number in range(points)]
    document["categories"] = [{"id": 1, "name": "person", "keypoints": names}]
    for row in document["annotations"]:
        left, top, width, height = row["bbox"]
        places = dice.random((points, 2)) * (width, height) + (left, top)
        visible = dice.integers(0, 3, points)
        visible[0] = 2
        row["keypoints"] = np.column_stack([places, visible]).round(2).ravel().tolist()
        row["category_id"] = 1
    return document


def write(root: Path, document: dict[str, Any], side: int = SIDE) -> Path:
    """`images/` and `annotations.json`."""
    dice = np.random.default_rng(1)
    (root / "images").mkdir(parents=True)
    for image in document["images"]:
        pixels = dice.integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(root / "images" / image["file_name"])
    (root / "annotations.json").write_text(json.dumps(document))
    return root


def boxes_and_scores(labels: np.ndarray, classes: int, anchors: int = 8) -> dict[str, np.ndarray]:
    """What finds everything: corners from 0 to 1, and probabilities."""
    boxes = np.zeros((len(labels), anchors, 4), np.float32)
    scores = np.zeros((len(labels), anchors, classes), np.float32)
    for image, rows in enumerate(labels):
        for place, row in enumerate(rows[:-1][rows[:-1, 4] >= 0]):
            boxes[image, place] = row[:4]
            scores[image, place, int(row[4])] = 0.9
    return {"boxes": boxes, "scores": scores}
