"""The ends that a DLC's graph gets: names of ours, logits or classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from edgeloop.graph.check import read_graph
from edgeloop.graph.count import graph_info
from edgeloop.graph.info import image_info
from edgeloop.graph.variants import (
    class_axis,
    single_sample,
    single_sample_info,
    with_class_output,
    with_fixed_names,
)
from tests.graph import odd_models


def run(model: onnx.ModelProto, feed: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"input": feed})[0]


def picture(shape=(1, 3, 32, 32)) -> np.ndarray:
    return np.random.default_rng(1).random(shape, dtype=np.float32)


@pytest.mark.parametrize(
    "names",
    [("x", "middle", "y"), ("output", "classes", "input"), ("a b/../c;'", "output", "é")],
)
def test_the_ends_get_our_names_whoever_had_them_before(tmp_path, names):
    first, middle, last = names
    nodes = [
        helper.make_node("Conv", [first, "w"], [middle], pads=[1] * 4, name="conv"),
        helper.make_node("Relu", [middle], [last], name="relu"),
    ]
    ends = [odd_models.info(first, [1, 3, 32, 32])], [odd_models.info(last, [1, 4, 32, 32])]
    path = odd_models.save(tmp_path / "m.onnx", nodes, *ends, {"w": odd_models.weights()})
    graph = read_graph(path)
    named = with_fixed_names(graph)
    assert [named.graph.input[0].name, named.graph.output[0].name] == ["input", "output"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = session.run(None, {first: picture()})[0]
    np.testing.assert_allclose(run(named, picture()), expected, rtol=1e-5)
    assert graph.graph.input[0].name == first  # the graph it came from is left as it was
    classes = with_class_output(named, 1)
    np.testing.assert_array_equal(run(classes, picture()), expected.argmax(1))


def test_several_ends_are_numbered_and_have_types_that_boards_know(tmp_path):
    """Whole numbers of eight bytes, booleans and short floats are cast; values stay."""
    kinds = onnx.TensorProto
    nodes = [
        helper.make_node("Gather", ["table", "input_1"], ["rows"], name="rows"),
        helper.make_node("Where", ["mask", "rows", "output_0"], ["output_1"], name="where"),
        helper.make_node("Greater", ["output_1", "output_0"], ["flags"], name="flags"),
        helper.make_node("Cast", ["output_1"], ["half"], name="half", to=kinds.FLOAT16),
    ]
    table = np.random.default_rng(0).random((9, 2)).astype(np.float32)
    path = odd_models.save(
        tmp_path / "m.onnx",
        nodes,
        [
            odd_models.info("input_1", [1, 3], kinds.INT64),
            odd_models.info("mask", [1, 3, 1], kinds.BOOL),
            odd_models.info("output_0", [1, 3, 2]),
        ],
        [
            odd_models.info("flags", [1, 3, 2], kinds.BOOL),
            odd_models.info("half", [1, 3, 2], kinds.FLOAT16),
            odd_models.info("output_1", [1, 3, 2]),
        ],
        {"table": table},
    )
    graph = read_graph(path)
    named = with_fixed_names(graph)
    onnx.checker.check_model(named)
    ends = [
        (v.name, v.type.tensor_type.elem_type) for v in (*named.graph.input, *named.graph.output)
    ]
    assert ends == [
        *(("input_0", kinds.INT32), ("input_1", kinds.INT32), ("input_2", kinds.FLOAT)),
        *(("output_0", kinds.INT32), ("output_1", kinds.FLOAT), ("output_2", kinds.FLOAT)),
    ]
    ids, mask = np.array([[3, 8, 0]]), np.array([[[True], [False], [True]]])
    other = np.full((1, 3, 2), 0.5, np.float32)
    own = onnxruntime.InferenceSession(graph.SerializeToString()).run(
        None, {"input_1": ids, "mask": mask, "output_0": other}
    )
    ours = onnxruntime.InferenceSession(named.SerializeToString()).run(
        None,
        {"input_0": ids.astype(np.int32), "input_1": mask.astype(np.int32), "input_2": other},
    )
    for wanted, found in zip(own, ours, strict=True):
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))


@pytest.mark.parametrize("mixes", [False, True])
def test_a_batch_becomes_one_sample_where_samples_do_not_meet(tmp_path, mixes):
    """The batch is written into a Reshape; a mean over the samples is one that cannot be cut."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["wide"], pads=[1] * 4, name="conv"),
        helper.make_node("Reshape", ["wide", "flat"], ["rows"], name="rows"),
        helper.make_node("ReduceMean", ["rows"], ["mean"], name="mean", axes=[0 if mixes else 1]),
        helper.make_node("Sub", ["rows", "mean"], ["y"], name="sub"),
    ]
    path = odd_models.save(
        tmp_path / "m.onnx",
        nodes,
        [odd_models.info("x", [4, 3, 8, 8])],
        [odd_models.info("y", [4, 256])],
        {"w": odd_models.weights(), "flat": np.array([4, 256])},
    )
    graph = read_graph(path)
    info = graph_info("m.onnx", graph)
    assert info.batch == 4
    single = single_sample(graph, info)
    assert (single is None) == mixes
    if single is not None:
        found = replace(graph_info("m.onnx", single), memory=None)
        assert found == single_sample_info(info)


@pytest.mark.parametrize(("in_bytes", "kind"), [(True, np.uint8), (False, np.int64)])
def test_classes_are_those_with_the_highest_logits(tmp_path, in_bytes, kind):
    named = with_fixed_names(read_graph(odd_models.one_conv(tmp_path / "m.onnx")))
    found = run(with_class_output(named, 1, in_bytes), picture())
    assert found.dtype == kind
    np.testing.assert_array_equal(found, run(named, picture()).argmax(1))


def test_more_classes_than_a_byte_holds_stay_wide(tmp_path):
    path = odd_models.one_conv(tmp_path / "m.onnx", weight=odd_models.weights(300))
    named = with_fixed_names(read_graph(path))
    found = run(with_class_output(named, 1), picture())
    assert found.dtype == np.int64
    assert found.max() > 255


def test_classes_of_channel_last_models_are_found_on_their_last_axis(tmp_path):
    graph = read_graph(odd_models.channel_last(tmp_path / "m.onnx"))
    info = graph_info("m.onnx", graph)
    axis = class_axis(info)
    named = with_fixed_names(graph)
    feed = picture(info.input_shape)
    expected = run(named, feed).argmax(axis)
    np.testing.assert_array_equal(run(with_class_output(named, axis), feed), expected)
    assert expected.shape == (1, info.height, info.width)


@pytest.mark.parametrize(
    ("shape", "layout", "axis"),
    [
        ((1, 19, 32, 32), "NCHW", 1),
        ((1, 32, 32, 19), "NCHW", 3),
        ((1, 32, 32, 19), "NHWC", 3),
        ((1, 19, 16, 16), "NCHW", 1),
        ((1, 32, 32, 32), "NCHW", 1),
        ((1, 10), "NCHW", None),
        ((1, 10, 1, 1), "NCHW", None),
        ((1, 1, 32, 32), "NCHW", None),
        ((1, 32, 32), "NCHW", None),
    ],
)
def test_only_outputs_with_classes_of_pixels_have_a_class_axis(shape, layout, axis):
    image = (1, 32, 32, 3) if layout == "NHWC" else (1, 3, 32, 32)
    assert class_axis(image_info("x", "y", image, shape, layout)) == axis
