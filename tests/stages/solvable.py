"""Datasets that models without training solve, and those models: red and green on black.

One for each form of output that a task takes: boxes and scores, heatmaps, a map, an image, one
score per pixel or per image.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from PIL import Image

SIDE, COUNT, CELL = 64, 16, 16
RED, GREEN = (255, 0, 0), (0, 255, 0)


class Graph:
    """A model that takes `image` (1, 3, 64, 64), built node by node."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, values: object, kind: type = np.float32) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, [*inputs], [name], name=name, **attributes))
        return name

    def mixed(self, weights: object, bias: object) -> str:
        """A convolution of 1 × 1 on the image."""
        kernel = np.array(weights, np.float32)[:, :, None, None]
        return self.node("Conv", "image", self.constant(kernel), self.constant(bias))

    def save(self, path: Path, **outputs: tuple[str, tuple[int, ...]]) -> Path:
        """Outputs get their names."""
        for name, (made, _) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [made], [name], name=name))
        kind = TensorProto.FLOAT
        graph = helper.make_graph(
            self._nodes,
            "solvable",
            [helper.make_tensor_value_info("image", kind, (1, 3, SIDE, SIDE))],
            [helper.make_tensor_value_info(n, kind, shape) for n, (_, shape) in outputs.items()],
            self._constants,
        )
        opset = [helper.make_opsetid("", 17)]
        save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
        return path


def detection(root: Path) -> None:
    """Squares in the cells of a grid."""
    dice, annotations = np.random.default_rng(0), []
    for number in range(COUNT):
        image = Image.new("RGB", (SIDE, SIDE))
        for cell in dice.choice(16, 3, replace=False).tolist():
            left, top = CELL * (cell % 4), CELL * (cell // 4)
            colour = int(dice.integers(2))
            image.paste((RED, GREEN)[colour], (left, top, left + CELL, top + CELL))
            row = {"id": len(annotations), "image_id": number, "category_id": colour + 1}
            annotations.append({**row, "bbox": [left, top, CELL, CELL], "area": CELL * CELL})
        _save(image, root / "images", number)
    _write(root, annotations, [{"id": 1, "name": "red"}, {"id": 2, "name": "green"}])


def detector(path: Path) -> Path:
    graph = Graph()
    plain = graph.mixed(np.eye(3), np.zeros(3))
    pooled = graph.node("AveragePool", plain, kernel_shape=[CELL] * 2, strides=[CELL] * 2)
    cells = graph.node("Reshape", pooled, graph.constant([1, 3, 16], np.int64))
    rows = graph.node("Transpose", cells, perm=[0, 2, 1])
    starts, ends = graph.constant([0], np.int64), graph.constant([2], np.int64)
    scores = graph.node("Slice", rows, starts, ends, graph.constant([2], np.int64))
    y, x = np.divmod(np.arange(16), 4)
    boxes = np.stack([x, y, x + 1, y + 1], axis=1)[None] / 4
    same = graph.node("Mul", rows, graph.constant(np.zeros((1, 16, 1))))
    none = graph.node("ReduceSum", same, graph.constant([2], np.int64), keepdims=1)
    placed = graph.node("Add", graph.constant(boxes), none)
    return graph.save(path, boxes=(placed, (1, 16, 4)), scores=(scores, (1, 16, 2)))


def keypoints(root: Path) -> None:
    """A red and a green dot."""
    dice, annotations = np.random.default_rng(0), []
    for number in range(COUNT):
        image = Image.new("RGB", (SIDE, SIDE))
        places = dice.integers(8, SIDE - 8, (2, 2)).tolist()
        for (x, y), colour in zip(places, (RED, GREEN), strict=True):
            image.paste(colour, (x - 2, y - 2, x + 3, y + 3))
        row = {"id": number, "image_id": number, "category_id": 1, "bbox": [0, 0, SIDE, SIDE]}
        points = [*places[0], 2, *places[1], 2]
        annotations.append({**row, "area": SIDE * SIDE, "keypoints": points})
        _save(image, root / "images", number)
    category = {"id": 1, "name": "dots", "keypoints": ["red", "green"]}
    _write(root, annotations, [category])


def pose_net(path: Path) -> Path:
    graph = Graph()
    maps = graph.mixed([[1, -1, 0], [-1, 1, 0]], [0, 0])
    smooth = graph.node("AveragePool", maps, kernel_shape=[5, 5], pads=[2, 2, 2, 2])
    return graph.save(path, heatmaps=(smooth, (1, 2, SIDE, SIDE)))


def depth(root: Path) -> None:
    """Red is far: 1 to 5 metres."""
    dice = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
        pixels[..., 0] = dice.integers(0, 256, (8, 8)).repeat(8, 0).repeat(8, 1)
        _save(Image.fromarray(pixels), root, number)
        millimetres = (1000 + 4000 * (pixels[..., 0] / 255)).astype(np.uint16)
        Image.fromarray(millimetres).save(root / f"{number:04d}_depth.png")


def depth_net(path: Path) -> Path:
    graph = Graph()
    return graph.save(path, depth=(graph.mixed([[4, 0, 0]], [1]), (1, 1, SIDE, SIDE)))


def photos(root: Path) -> None:
    """Soft enough to be doubled without much loss."""
    dice = np.random.default_rng(0)
    for number in range(COUNT):
        coarse = Image.fromarray(dice.integers(0, 256, (6, 6, 3), np.uint8))
        _save(coarse.resize((2 * SIDE, 2 * SIDE), Image.Resampling.BICUBIC), root, number)


def enlarger(path: Path) -> Path:
    graph = Graph()
    plain = graph.mixed(np.eye(3), np.zeros(3))
    scales = graph.constant([1, 1, 2, 2])
    large = graph.node("Resize", plain, "", scales, mode="linear")
    return graph.save(path, large=(large, (1, 3, 2 * SIDE, 2 * SIDE)))


def masks(root: Path) -> None:
    """Two classes: red, and all else."""
    dice = np.random.default_rng(0)
    root.mkdir(parents=True)
    (root / "label_map.json").write_text('{"0": "background", "9": "red"}')
    for number in range(COUNT):
        mask = (dice.random((8, 8)) < 0.4).repeat(8, 0).repeat(8, 1)
        pixels = np.where(mask[..., None], RED, GREEN).astype(np.uint8)
        _save(Image.fromarray(pixels), root, number)
        Image.fromarray((9 * mask).astype(np.uint8)).save(root / f"{number:04d}_seg.png")


def masker(path: Path) -> Path:
    """One channel of logits."""
    graph = Graph()
    return graph.save(path, mask=(graph.mixed([[8, 0, 0]], [-4]), (1, 1, SIDE, SIDE)))


def colours(root: Path) -> None:
    for number in range(COUNT):
        name, colour = (("a-green", GREEN), ("b-red", RED))[number % 2]
        image = Image.new("RGB", (SIDE, SIDE), colour)
        image.putpixel((number, 0), (9, 9, 9))
        _save(image, root / name, number)


def colour_net(path: Path) -> Path:
    """One probability."""
    graph = Graph()
    pooled = graph.node("GlobalAveragePool", graph.mixed([[8, 0, 0]], [-4]))
    flat = graph.node("Flatten", pooled)
    return graph.save(path, is_red=(graph.node("Sigmoid", flat), (1, 1)))


Case = tuple[str, Callable[[Path], None], Callable[[Path], Path], str, float]
# Task, dataset, model, metric, and what it scores at least when quantized.
CASES: tuple[Case, ...] = (
    ("detection", detection, detector, "mAP", 0.85),
    ("keypoints", keypoints, pose_net, "PCK", 1.0),
    ("depth", depth, depth_net, "delta1", 0.99),
    ("super-resolution", photos, enlarger, "PSNR", 30.0),
    ("segmentation", masks, masker, "f1", 1.0),
    ("classification", colours, colour_net, "f1", 1.0),
)


def _save(image: Image.Image, folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    image.save(folder / f"{number:04d}.png")


def _write(root: Path, annotations: list[Any], categories: list[Any]) -> None:
    images = [{"id": n, "file_name": f"{n:04d}.png"} for n in range(COUNT)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations.json").write_text(json.dumps(document))
