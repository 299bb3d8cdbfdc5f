"""Quantized graphs by their types, scales and axes: no compiler is needed to read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edgeloop.graph.bits import channel_axis, tunable_tensors
from edgeloop.graph.info import image_info
from edgeloop.platforms import PrecisionPlan
from edgeloop.platforms.precision import Precision
from edgeloop.platforms.qnn.quantize import activates_moved, quantize_model, quantize_plan
from edgeloop.tasks import Samples
from edgeloop.tuning.quantized import QuantizedGraph

CHANNELS, CLASSES, SIDE = 4, 6, 4


def net(transposed: bool = False) -> ModelProto:
    """A convolution, a constant that is added, and a fully connected layer."""
    dice = np.random.default_rng(0)
    flat = CHANNELS * SIDE * SIDE
    shapes = {
        "conv.weight": (CHANNELS, 3, 1, 1),
        "offset": (1, CHANNELS, 1, 1),
        "head.weight": (CLASSES, flat) if transposed else (flat, CLASSES),
    }
    weights = [
        numpy_helper.from_array(dice.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["image", "conv.weight"], ["mid"], name="conv"),
        helper.make_node("Add", ["mid", "offset"], ["sum"], name="add"),
        helper.make_node("Flatten", ["sum"], ["flat"], name="flatten"),
        helper.make_node(
            "Gemm", ["flat", "head.weight"], ["scores"], name="head", transB=int(transposed)
        ),
    ]
    made = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, 3, SIDE, SIDE))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, CLASSES))],
        weights,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize(
    ("precision", "activations", "levels", "weights", "scales"),
    [
        ("a8w8", "uint8", 255, "uint8", 1),
        ("a8w8-per-channel", "uint8", 255, "int8", CHANNELS),
        ("a16w8", "uint16", 65535, "int8", CHANNELS),
    ],
)
def test_a_precision_decides_the_types_of_tensors_and_the_scales_of_weights(
    tmp_path: Path, precision: Precision, activations: str, levels: int, weights: str, scales: int
) -> None:
    dice = np.random.default_rng(1)
    pixels = dice.integers(20, 200, (4, SIDE, SIDE, 3), np.uint8)
    info = image_info("image", "scores", (1, 3, SIDE, SIDE), (1, CLASSES))
    given = Samples(pixels, np.zeros(4), "test")
    quantize_model(net(), info, given, tmp_path / "q.onnx", precision)
    found = QuantizedGraph.load(tmp_path / "q.onnx")
    assert {encoding.kind for encoding in found.activations.values()} == {activations}
    image = found.activations["image"]
    assert found.array(image.scale) == np.float32(1 / levels), "pixels are exact"
    assert found.array(image.zero) == 0
    layer = found.layers["conv"]
    assert (layer.weight.kind, found.scales(layer).size) == (weights, scales)


def planned(plan: PrecisionPlan, target: Path, transposed: bool = False) -> QuantizedGraph:
    model = net(transposed)
    names = [value.name for value in (*model.graph.input, *model.graph.output)]
    names += [value.name for value in model.graph.value_info]
    ranges = dict.fromkeys(names, (-4.0, 4.0))
    quantize_plan(model, ranges, ["image"], tunable_tensors(model, ["image"]), plan, target)
    return QuantizedGraph.load(target)


@pytest.mark.parametrize(("transposed", "axis"), [(True, 0), (False, 1)])
def test_weights_of_4_bits_have_a_scale_for_each_output(
    tmp_path: Path, transposed: bool, axis: int
) -> None:
    plan = PrecisionPlan.of_bits({}, weights=4)
    found = planned(plan, tmp_path / "q.onnx", transposed)
    encodings = {name: layer.weight for name, layer in found.layers.items()}
    assert {name: one.kind for name, one in encodings.items()} == {"conv": "int4", "head": "int4"}
    assert (encodings["conv"].axis, encodings["head"].axis) == (0, axis)
    assert found.scales(found.layers["head"]).size == CLASSES


@pytest.mark.parametrize("wide", ["mid", "sum"])
def test_a_constant_has_16_bits_where_a_tensor_beside_it_has(tmp_path: Path, wide: str) -> None:
    zeros = {}
    for bits in (8, 16):
        found = planned(PrecisionPlan.of_bits({wide: bits}), tmp_path / f"{bits}.onnx")
        zeros[bits] = found.array("offset_zero_point").dtype
    assert zeros == {8: np.uint8, 16: np.uint16}


@pytest.mark.parametrize(
    ("node", "axis"),
    [
        (helper.make_node("Conv", ["x", "w"], ["y"]), 0),
        (helper.make_node("ConvTranspose", ["x", "w"], ["y"]), 1),
        (helper.make_node("Gemm", ["x", "w"], ["y"]), 1),
        (helper.make_node("Gemm", ["x", "w"], ["y"], transB=0), 1),
        (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), 0),
    ],
)
def test_the_axis_of_channels_is_that_of_the_outputs(node: onnx.NodeProto, axis: int) -> None:
    assert channel_axis(node) == axis


@pytest.mark.parametrize(
    ("before", "activation", "expected"),
    [
        ("Reshape", "Relu", True),
        ("Transpose", "Clip", True),
        ("Conv", "Relu", False),
        ("Reshape", "Sigmoid", False),
    ],
)
def test_an_activation_function_behind_a_moved_tensor_is_seen(
    before: str, activation: str, expected: bool
) -> None:
    nodes = [
        helper.make_node(before, ["x"], ["moved"]),
        helper.make_node(activation, ["moved"], ["y"]),
    ]
    model = helper.make_model(helper.make_graph(nodes, "moved", [], []))
    assert activates_moved(model) is expected
