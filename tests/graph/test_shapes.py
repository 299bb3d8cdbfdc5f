"""Any number of inputs and outputs of any type; sizes that the file leaves open are filled in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgeloop.errors import UnusableModel
from edgeloop.graph.check import read_graph
from edgeloop.graph.count import graph_info
from edgeloop.graph.info import TensorInfo
from tests.exports import Everyday, everyday  # noqa: F401 - a fixture
from tests.graph.odd_models import info, save


def read(path: Path, shapes=None):
    return graph_info(path.name, read_graph(path, shapes))


def refusal(path: Path, shapes=None) -> str:
    with pytest.raises(UnusableModel) as caught:
        read_graph(path, shapes)
    assert path.name in str(caught.value)
    return str(caught.value)


def test_the_everyday_exports_are_read(everyday: tuple[Everyday, Path]):  # noqa: F811
    export, path = everyday
    if export.needs_shape:
        assert "--shape image=1x3x224x224" in refusal(path)
    found = read(path, {"image": export.shape} if export.needs_shape else None)
    assert [(one.name, one.shape) for one in found.inputs] == [("image", export.shape)]
    assert {one.name: one.shape for one in found.outputs} == dict(export.outputs)
    assert (found.layout, found.batch) == ("NCHW", export.batch)


def test_inputs_and_outputs_are_named_with_their_types(tmp_path: Path):
    kinds = {"tokens": (TensorProto.INT64, [1, 7]), "mask": (TensorProto.BOOL, ["batch", 7])}
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["words"]),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Where", ["wide", "words", "zero"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=2, keepdims=0),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    weights = {
        "table": np.ones((9, 5), np.float32),
        "last": np.array([2]),
        "zero": np.zeros((), np.float32),
    }
    outputs = [info("y", None), info("best", None, TensorProto.INT64), info("total", None)]
    inputs = [info(name, shape, kind) for name, (kind, shape) in kinds.items()]
    found = read(save(tmp_path / "m.onnx", nodes, inputs, outputs, weights))
    assert found.inputs == (
        TensorInfo("tokens", (1, 7), "int64"),
        TensorInfo("mask", (1, 7), "bool"),
    )
    assert found.outputs == (
        TensorInfo("y", (1, 7, 5)),
        TensorInfo("best", (1, 7), "int32"),  # narrowed: chips have no 64 bits
        TensorInfo("total", ()),
    )


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((1, 3, 24, 40), "NCHW"),
        ((4, 24, 40, 3), "NHWC"),
        ((1, 1, 24, 40), ""),
        ((1, 4, 24, 40), ""),
        ((2, 16000), ""),
        ((7,), ""),
        ((), ""),
        ((1, 3, 8, 16, 16), ""),
    ],
)
def test_only_an_rgb_image_has_a_layout(tmp_path: Path, shape: tuple[int, ...], layout: str):
    node = helper.make_node("Relu", ["x"], ["y"])
    path = save(tmp_path / "m.onnx", [node], [info("x", list(shape))], [info("y", None)])
    assert read(path).inputs == (TensorInfo("x", shape, layout=layout),)


@pytest.mark.parametrize(
    ("sides", "shapes", "result"),
    [
        ({"x": ["batch", "h"], "y": ["batch", "h"]}, {"x": (2, 5)}, {"x": (2, 5), "y": (2, 5)}),
        ({"x": ["batch", "h"], "y": ["n", "h"]}, {"y": (1, 6)}, {"x": (1, 6), "y": (1, 6)}),
        ({"x": [-1, 5], "y": [None, 5]}, None, {"x": (1, 5), "y": (1, 5)}),
        ({"x": None, "y": ["n", 5]}, {"x": (3, 5)}, {"x": (3, 5), "y": (1, 5)}),
        ({"x": ["batch"], "y": ["batch", 5]}, None, {"x": (1,), "y": (1, 5)}),
    ],
)
def test_one_name_is_one_size(tmp_path: Path, sides, shapes, result):
    node = helper.make_node("Add", ["x", "y"], ["z"])
    inputs = [info(name, shape) for name, shape in sides.items()]
    path = save(tmp_path / "m.onnx", [node], inputs, [info("z", None)])
    assert {one.name: one.shape for one in read(path, shapes).inputs} == result


@pytest.mark.parametrize("word", ["?", "-1", "None", " ? "])
def test_sizes_without_a_name_are_not_the_same(tmp_path: Path, word: str):
    node = helper.make_node("Relu", ["x"], ["y"])
    ends = [info("x", [word, 3, word, word])], [info("y", [word, 3, word, word])]
    path = save(tmp_path / "m.onnx", [node], *ends)
    found = read(path, {"x": (1, 3, 48, 192)})
    assert [one.shape for one in (*found.inputs, *found.outputs)] == [(1, 3, 48, 192)] * 2
    assert "'x' is not fixed" in refusal(path)


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (None, "'x' is not fixed (h): give it, as in --shape x=1x128"),
        ({"z": (1, 3)}, "no input 'z' to give a shape to; its inputs are x, y"),
        ({"x": (1, 3, 3)}, "'x' is batchxh, so it cannot be 1x3x3"),
        ({"y": (1, 3, 4)}, "'y' is batchx2xh, so it cannot be 1x3x4"),
        ({"x": (1, 3), "y": (1, 2, 4)}, "'h' cannot be both 3 and 4"),
    ],
)
def test_shapes_that_are_missing_or_do_not_fit_are_named(tmp_path: Path, shapes, reason: str):
    node = helper.make_node("Add", ["x", "y"], ["z"])
    inputs = [info("x", ["batch", "h"]), info("y", ["batch", 2, "h"])]
    path = save(tmp_path / "m.onnx", [node], inputs, [info("z", None)])
    assert reason in refusal(path, shapes)


def test_a_length_is_not_taken_for_a_batch(tmp_path: Path):
    node = helper.make_node("Relu", ["x"], ["y"])
    path = save(tmp_path / "m.onnx", [node], [info("x", ["samples"])], [info("y", None)])
    assert "--shape x=128" in refusal(path)


def test_texts_are_refused(tmp_path: Path):
    node = helper.make_node("Identity", ["x"], ["y"])
    ends = [info(name, [1], TensorProto.STRING) for name in "xy"]
    assert "of the type string" in refusal(save(tmp_path / "m.onnx", [node], *[[e] for e in ends]))
