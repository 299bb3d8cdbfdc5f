"""Models that are not one image in, one map out, with names that no board should see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

BATCH = 4
WORDS = 20
_FLOAT, _INT64 = TensorProto.FLOAT, TensorProto.INT64
Value = tuple[str, int, Sequence[int]]


def two_inputs(path: Path) -> Path:
    """An image and a map of features in; a map and numbers out. The second output has the name that
    the second input gets on a board."""
    nodes = [
        helper.make_node("Conv", ["left image", "a"], ["wide"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["wide"], ["mask:out/0"]),
        helper.make_node("Conv", ["hint$(x)", "b"], ["narrow"]),
        helper.make_node("Reshape", ["narrow", "flat"], ["row"]),
        helper.make_node("MatMul", ["row", "c"], ["input_1"]),
    ]
    weights = {"a": (2, 3, 3, 3), "b": (2, 4, 1, 1), "c": (60, 6)}
    inputs = [("left image", _FLOAT, (1, 3, 12, 8)), ("hint$(x)", _FLOAT, (1, 4, 6, 5))]
    outputs = [("mask:out/0", _FLOAT, (1, 2, 12, 8)), ("input_1", _FLOAT, (1, 6))]
    return _save(path, nodes, inputs, outputs, weights, {"flat": (1, 60)})


def tokens(path: Path) -> Path:
    """Numbers of words in; a row for each, and the number of the best."""
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["found"]),
        helper.make_node("MatMul", ["found", "w"], ["hidden"]),
        helper.make_node("ArgMax", ["hidden"], ["best"], axis=2, keepdims=0),
    ]
    weights = {"words": (WORDS, 6), "w": (6, 6)}
    outputs = [("hidden", _FLOAT, (1, 7, 6)), ("best", _INT64, (1, 7))]
    return _save(path, nodes, [("ids", _INT64, (1, 7))], outputs, weights, {})


def four_at_once(path: Path) -> Path:
    """A classifier exported with a batch of four, which is also written into its graph."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["bent"]),
        helper.make_node("Reshape", ["bent", "flat"], ["rows"]),
        helper.make_node("Gemm", ["rows", "w"], ["y"]),
    ]
    weights = {"a": (2, 3, 3, 3), "w": (72, 5)}
    ends = [("x", _FLOAT, (BATCH, 3, 8, 8))], [("y", _FLOAT, (BATCH, 5))]
    return _save(path, nodes, *ends, weights, {"flat": (BATCH, 72)})


def detector(path: Path) -> Path:
    """Scores and boxes of every place as rows, and a map beside them."""
    nodes = [
        helper.make_node("Conv", ["image", "a"], ["wide"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["wide"], ["levels"]),
        helper.make_node("Conv", ["levels", "b"], ["s"]),
        helper.make_node("Transpose", ["s"], ["last_s"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["last_s", "rows_of_3"], ["t"]),
        helper.make_node("Sigmoid", ["t"], ["scores"]),
        helper.make_node("Conv", ["levels", "c"], ["boxes_there"]),
        helper.make_node("Transpose", ["boxes_there"], ["last_b"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["last_b", "rows_of_4"], ["boxes"]),
    ]
    weights = {"a": (5, 3, 3, 3), "b": (3, 5, 1, 1), "c": (4, 5, 1, 1)}
    outputs = [
        ("scores", _FLOAT, (1, 64, 3)),
        ("boxes", _FLOAT, (1, 64, 4)),
        ("levels", _FLOAT, (1, 5, 8, 8)),
    ]
    shapes = {"rows_of_3": (1, 64, 3), "rows_of_4": (1, 64, 4)}
    return _save(path, nodes, [("image", _FLOAT, (1, 3, 16, 16))], outputs, weights, shapes)


def _save(
    path: Path,
    nodes: list[NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    weights: dict[str, tuple[int, ...]],
    shapes: dict[str, tuple[int, ...]],
) -> Path:
    dice = np.random.default_rng(7)
    for number, node in enumerate(nodes):
        node.name = f"{node.op_type} {number}"
    constants = [
        numpy_helper.from_array(dice.standard_normal(shape).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    constants += [numpy_helper.from_array(np.array(s, np.int64), n) for n, s in shapes.items()]
    ends = [[helper.make_tensor_value_info(*value) for value in side] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "net", *ends, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
