"""What an exporter left as arithmetic is numbers afterwards, and the model computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edgeloop.errors import BadModel
from edgeloop.graph.check import read_graph
from edgeloop.graph.read import shapes_of
from edgeloop.graph.simplify import LARGEST_CONSTANT, fold_constants
from tests.graph.odd_models import info, save, weights
from tests.nets_archai import CLASSES, SIZE, export_archai

X = [info("x", [1, 3, 16, 16])]


def answers(model: onnx.ModelProto | Path, shape: tuple[int, ...]) -> np.ndarray:
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(given, providers=["CPUExecutionProvider"])
    image = np.random.default_rng(0).random(shape, np.float32)
    return session.run(None, {session.get_inputs()[0].name: image})[0]


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_an_export_of_archai_becomes_convolutions_and_nothing_else(tmp_path: Path):
    path = export_archai(tmp_path / "m.onnx")
    written = onnx.load_model(str(path))
    assert {"Pad", "Slice", "ConstantOfShape"} <= set(kinds(written)), "nothing there to fold"
    model = read_graph(path)
    assert set(kinds(model)) == {"Conv", "Relu", "Resize", "Add"}
    assert shapes_of(model.graph)[model.graph.output[0].name] == (1, CLASSES, SIZE, SIZE)
    shape = (1, 3, SIZE, SIZE)
    np.testing.assert_allclose(answers(model, shape), answers(path, shape), atol=1e-5)


def test_sizes_computed_from_a_shape_are_numbers(tmp_path: Path):
    """As interpolate(size=…) exports them: the shape of a tensor, sliced, scaled and joined."""
    path = save(
        tmp_path / "m.onnx",
        [
            helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node("Shape", ["c"], ["shape"]),
            helper.make_node("Slice", ["shape", "two", "four"], ["sides"]),
            helper.make_node("Mul", ["sides", "two"], ["doubled"]),
            helper.make_node("Slice", ["shape", "zero", "two"], ["front"]),
            helper.make_node("Concat", ["front", "doubled"], ["sizes"], axis=0),
            helper.make_node("Resize", ["c", "", "", "sizes"], ["y"], mode="nearest"),
        ],
        X,
        [info("y", ["n", "c", "h", "w"])],
        {"w": weights(), **{n: np.array([v]) for n, v in (("zero", 0), ("two", 2), ("four", 4))}},
    )
    model = read_graph(path)
    assert kinds(model) == ["Conv", "Resize"]
    assert shapes_of(model.graph)["y"] == (1, 4, 16, 16)
    np.testing.assert_allclose(answers(model, (1, 3, 16, 16)), answers(path, (1, 3, 16, 16)))


@pytest.mark.parametrize(
    ("pads", "value", "folds"),
    [
        ([0, 0, 1, 2, 0, 0, 1, 0], 0.0, True),
        ([0, 0, 1, 1, 0, 0, 1, 1], 0.5, False),  # not zeros
        ([0, 1, 1, 1, 0, 0, 1, 1], 0.0, False),  # channels, too
        ([0, 0, -1, 1, 0, 0, 1, 1], 0.0, False),  # cuts off
    ],
)
def test_zeros_around_an_image_become_padding_of_its_convolution_where_that_is_the_same(
    tmp_path: Path, pads: list[int], value: float, folds: bool
):
    inputs = 3 + pads[1]
    path = save(
        tmp_path / "m.onnx",
        [
            helper.make_node("Pad", ["x", "pads", "value"], ["p"]),
            helper.make_node("Conv", ["p", "w"], ["a"], pads=[1, 0, 1, 1]),
            helper.make_node("Conv", ["p", "v"], ["b"], pads=[1, 0, 1, 1]),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ],
        X,
        [info("y", ["n", "c", "h", "w"])],
        {
            "pads": np.array(pads),
            "value": np.float32(value),
            "w": weights(inputs=inputs),
            "v": weights(inputs=inputs, seed=1),
        },
    )
    model = read_graph(path)
    assert kinds(model) == ([] if folds else ["Pad"]) + ["Conv", "Conv", "Add"]
    np.testing.assert_allclose(
        answers(model, (1, 3, 16, 16)), answers(path, (1, 3, 16, 16)), atol=1e-6
    )


def test_a_constant_that_would_fill_the_memory_is_not_computed(tmp_path: Path):
    nodes = [
        helper.make_node("ConstantOfShape", ["sides"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    huge = np.array([LARGEST_CONSTANT, 1 << 20])
    path = save(tmp_path / "m.onnx", nodes, X, [info("y", [1, 3, 16, 16])], {"sides": huge})
    model = onnx.load_model(str(path))
    fold_constants(model)
    assert kinds(model) == ["ConstantOfShape", "ReduceSum", "Add"]
    with pytest.raises(BadModel):
        read_graph(path)


def test_what_a_training_would_compute_of_weights_is_numbers(tmp_path: Path):
    """Weights standardized by a batch norm, with a gain that several share through Identity."""
    nodes = [
        helper.make_node("Identity", ["one"], ["gain"]),
        helper.make_node("Reshape", ["kernel", "rows"], ["flat"]),
        helper.make_node(
            "BatchNormalization",
            ["flat", "gain", "zero", "zero", "one"],
            ["even", "mean", "variance"],
            training_mode=1,
        ),
        helper.make_node("Reshape", ["even", "sides"], ["standard"]),
        helper.make_node("Conv", ["x", "standard"], ["y"]),
    ]
    given = {
        "kernel": weights(),
        "one": np.ones(4, np.float32),
        "zero": np.zeros(4, np.float32),
        "rows": np.array([1, 4, 27]),
        "sides": np.array([4, 3, 3, 3]),
    }
    path = save(tmp_path / "m.onnx", nodes, X, [info("y", [1, 4, 14, 14])], given)
    model = read_graph(path)
    assert kinds(model) == ["Conv"]
    shape = (1, 3, 16, 16)
    np.testing.assert_allclose(answers(model, shape), answers(path, shape), 1e-3, 1e-5)


def test_random_numbers_are_no_constants(tmp_path: Path):
    nodes = [
        helper.make_node("RandomNormal", [], ["r"], shape=[1], dtype=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    model = onnx.load_model(str(save(tmp_path / "m.onnx", nodes, X, [info("y", [1, 3, 16, 16])])))
    fold_constants(model)
    assert kinds(model) == ["RandomNormal", "Add"]
