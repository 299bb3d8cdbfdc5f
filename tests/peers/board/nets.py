"""A small net for the stand-ins, as an exporter writes it: images in, classes of pixels out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HEIGHT, WIDTH, CLASSES = 12, 8, 5


def save_net(path: Path, ends_in_classes: bool = False) -> Path:
    """Two convolutions, channels first, height and width not equal: a turned tensor shows."""
    dice = np.random.default_rng(3)
    first = dice.standard_normal((4, 3, 3, 3)).astype(np.float32)
    second = dice.standard_normal((CLASSES, 4, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["input", "first"], ["wide"], name="wide", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["wide"], ["bent"], name="bend"),
        helper.make_node("Conv", ["bent", "second"], ["output"], name="narrow"),
    ]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, CLASSES, HEIGHT, WIDTH])
    if ends_in_classes:
        nodes.append(helper.make_node("ArgMax", ["output"], ["classes"], axis=1, keepdims=0))
        output = helper.make_tensor_value_info("classes", TensorProto.INT64, [1, HEIGHT, WIDTH])
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, HEIGHT, WIDTH])],
        [output],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def images(count: int) -> list[NDArray[np.float32]]:
    """As the tools read them: height, width, channels."""
    dice = np.random.default_rng(5)
    return [dice.random((HEIGHT, WIDTH, 3), dtype=np.float32) for _ in range(count)]
