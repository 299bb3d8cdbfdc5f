"""What a latency model may know of a graph: counted on graphs that are small enough to count."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.latency import FEATURES, features_of, kind_of
from edgeloop.testing.contracts.platform import SIZE
from tests.qdq import constant, quantized


def conv(name, source, inputs, outputs, side=3, groups=1):
    weight = constant(f"{name}_w", (outputs, inputs // groups, side, side))
    pads = [side // 2] * 4
    node = helper.make_node(
        "Conv", [source, f"{name}_w"], [name], name=name, group=groups, pads=pads
    )
    return node, weight


def graph(nodes, weights, taken, given):
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (taken, given)
    ]
    made = helper.make_graph(nodes, "graph", *ends, weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)])


@pytest.fixture(scope="module")
def block():
    """A conv of few channels, a depthwise one, a pointwise one, and an addition."""
    parts = [conv("a", "x", 3, 32), conv("b", "a", 32, 32, groups=32), conv("c", "b", 32, 64, 1)]
    nodes, weights = [node for node, _ in parts], [weight for _, weight in parts]
    nodes.append(helper.make_node("Add", ["c", "c"], ["y"], name="y"))
    return graph(nodes, weights, ("x", [1, 3, 8, 8]), ("y", [1, 64, 8, 8]))


@pytest.mark.parametrize(("bits", "width"), [(8, 1), (16, 2), (0, 2)])
def test_layers_are_counted_once_by_what_they_are(block, bits, width):
    found = features_of(quantized(block, bits) if bits else block)
    assert set(found) == set(FEATURES)
    assert (found["ops"], found["depth"]) == (4, 4)
    assert (found["count_conv"], found["count_depthwise"], found["count_elementwise"]) == (2, 1, 1)
    assert found["macs_conv"] == 64 * (32 * 3 * 9 + 64 * 32)
    assert found["macs_depthwise"] == 64 * 32 * 9
    assert found["macs_few_channels"] == 64 * 32 * 3 * 9
    assert found["macs"] == found["macs_conv"] + found["macs_depthwise"]
    assert found["activation_bytes"] == width * 64 * (32 + 32 + 64 + 64)
    assert found["bytes_depthwise"] == width * 64 * (32 + 32)
    assert found["largest_map_bytes"] == width * 64 * 64
    weights = 32 * 27 + 32 * 9 + 64 * 32
    assert found["weight_bytes"] == pytest.approx(weights if bits else 2 * weights)
    assert kind_of(found) == "depthwise"


def test_shuffles_dense_concats_and_attention_are_seen():
    sides = {"in": [5, 1, 4, 2, 8, 8], "out": [4, 1, 8, 8, 8]}
    settings = [
        helper.make_tensor(name, TensorProto.INT64, [length], shape)
        for name, (length, *shape) in sides.items()
    ]
    nodes = [
        helper.make_node("Reshape", ["x", "in"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["t", "out"], ["s"]),
        helper.make_node("Concat", ["x", "s"], ["c1"], axis=1),
        helper.make_node("Concat", ["c1", "s"], ["c2"], axis=1),
        helper.make_node("MatMul", ["c2", "c2"], ["y"]),
    ]
    found = features_of(graph(nodes, settings, ("x", [1, 8, 8, 8]), ("y", [1, 24, 8, 8])))
    assert found["count_shuffle"] == 1
    assert found["bytes_shuffle"] == 2 * 2 * 512
    assert found["bytes_dense_concat"] == 2 * 64 * (16 + 8 + 24)
    assert found["macs_attention"] == found["macs"] == 24 * 64 * 8
    assert kind_of(found) == "attention"


def test_the_model_is_left_as_it_is(block):
    before = block.SerializeToString()
    features_of(block)
    assert block.SerializeToString() == before
    onnx.checker.check_model(block)


def test_the_estimate_carries_the_features_of_the_deployed_graph(toolchain, small_net):
    quantized = small_net.converted.files[small_net.converted.quantized]
    estimate = toolchain.estimate(quantized, find_chip("qcs8550"))
    assert set(estimate.features) >= set(FEATURES)
    assert estimate.features["fill_bytes"] == estimate.fill_bytes
    assert estimate.kind == kind_of(estimate.features) == "convolution"
    assert estimate.features["input_bytes"] == SIZE * SIZE * 3
