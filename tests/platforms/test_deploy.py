"""Deployed graphs of models with odd inputs and outputs: bytes at both ends, the same values, and
nothing for the CPU."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeloop.errors import ModelRefused
from edgeloop.graph.check import read_graph
from edgeloop.graph.count import graph_info
from edgeloop.platforms import open_device
from edgeloop.platforms.batching import model_inputs
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.quantize import deployed
from edgeloop.testing.contracts.platform import random_tensors, tensor_samples
from tests.converted import open_htp
from tests.graph import odd_models

pytestmark = pytest.mark.slow

info, node = odd_models.info, helper.make_node
BOOL, INT32, INT64 = TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64


def outputs_everywhere(path: Path) -> Path:
    """An output that others read, one that is moved, both of one tensor, a constant, an input."""
    nodes = [
        node("Conv", ["x", "w"], ["features"], name="conv", pads=[1] * 4),
        node("Relu", ["features"], ["active"], name="relu"),
        node("Reshape", ["active", "flat"], ["rows"], name="reshape"),
        node("Transpose", ["rows"], ["columns"], name="transpose", perm=[0, 2, 1]),
        node("ReduceMean", ["active"], ["mean"], name="mean", axes=[1, 2, 3], keepdims=0),
        node("Identity", ["table"], ["anchors"], name="anchors"),
    ]
    shapes = {"features": [1, 4, 8, 8], "active": [1, 4, 8, 8], "rows": [1, 4, 64]}
    shapes |= {"columns": [1, 64, 4], "mean": [1], "anchors": [5, 2]}
    outputs = [info(name, shape) for name, shape in shapes.items()]
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    weights = {"w": odd_models.weights(), "flat": np.array([1, 4, 64]), "table": table}
    return odd_models.save(path, nodes, [info("x", [1, 3, 8, 8])], outputs, weights)


def inputs_of_all_types(path: Path) -> Path:
    """Floats with one and five dimensions, a condition, whole numbers, one that nobody reads."""
    nodes = [
        node("Reshape", ["video", "flat"], ["rows"], name="reshape"),
        node("Add", ["rows", "line"], ["sum"], name="add"),
        node("Where", ["is_on", "sum", "rows"], ["chosen"], name="where"),
        node("Cast", ["count"], ["counted"], name="cast", to=TensorProto.FLOAT),
        node("Mul", ["chosen", "counted"], ["y"], name="mul"),
    ]
    inputs = [info("video", [1, 2, 3, 2, 2]), info("line", [6]), info("is_on", [1, 4, 6], BOOL)]
    inputs += [info("count", [1, 1, 6], INT32), info("spare", [1, 7], INT64)]
    weights = {"flat": np.array([1, 4, 6])}
    return odd_models.save(path, nodes, inputs, [info("y", [1, 4, 6])], weights)


@pytest.mark.parametrize("precision", ["a8w8-per-channel", "a16w8"])
@pytest.mark.parametrize("make", [outputs_everywhere, inputs_of_all_types])
def test_odd_ends_become_bytes_and_give_the_same(make, precision, toolchain, tmp_path):
    model = make(tmp_path / "odd.onnx")
    graph = graph_info(model.name, read_graph(model))
    calibration = tensor_samples(graph, 4)
    made = toolchain.convert(model, calibration, tmp_path / "out", precision, ("qcs8550",))
    path = made.files[made.quantized]
    assert toolchain.estimate(path, find_chip("qcs8550")).raw_us > 0
    assert toolchain.screen(model, find_chip("qcs8550")).raw_us > 0

    quantized = onnx.load_model(str(path))
    found = deployed(quantized, {tensor.name: tensor.layout for tensor in graph.inputs})
    onnx.checker.check_model(found)
    ends = (*found.graph.input, *found.graph.output)
    kinds = {value.type.tensor_type.elem_type for value in ends}
    assert kinds.isdisjoint({TensorProto.FLOAT, INT64})

    samples = random_tensors(graph, 1, seed=4)
    expected = run(quantized, model_inputs(samples, graph))
    given = {value.name: as_bytes(value.name, samples, quantized) for value in found.graph.input}
    outputs = run(found, given)
    computed = [name for name in expected if name != "anchors"]
    for name, output in zip(computed, outputs.values(), strict=True):
        floats = expected[name]
        moved = output.transpose(0, 3, 1, 2) if output.ndim == 4 else output
        assert moved.shape == floats.shape
        if floats.size > 1:  # bytes are floats with another scale and zero
            assert np.corrcoef(moved.ravel(), floats.ravel())[0, 1] > 0.99

    (on_host,) = open_device("host").infer(path, graph, "quantized", iter([samples]))
    device = open_htp("htp:qcs8550")
    (on_chip,) = device.infer(path, graph, "quantized", iter([samples]))
    device.close()
    for name, floats in expected.items():
        np.testing.assert_array_equal(on_host[name].ravel(), floats.ravel())
        assert np.abs(on_chip[name].ravel() - floats.ravel()).max() <= 0.05 * np.ptp(floats) + 0.02


def test_names_that_a_model_uses_already_are_not_given_again(toolchain, tmp_path):
    names = ("x_pixels", "x_moved", "x_channel_first", "y_bytes", "y_channel_last")
    chain = ["x", *names, "y"]
    nodes = [node("Conv", ["x", "w"], ["x_pixels"], name="conv", pads=[1] * 4)]
    nodes += [
        node("Relu" if number % 2 else "Sigmoid", [one], [other], name=other)
        for number, (one, other) in enumerate(itertools.pairwise(chain[1:]))
    ]
    ends = [info("x", [1, 3, 8, 8])], [info("y", [1, 4, 8, 8]), info("y_bytes", [1, 4, 8, 8])]
    model = odd_models.save(tmp_path / "m.onnx", nodes, *ends, {"w": odd_models.weights()})
    graph = graph_info(model.name, read_graph(model))
    made = toolchain.convert(model, tensor_samples(graph, 2), tmp_path / "out")
    assert toolchain.estimate(made.files[made.quantized], find_chip("qcs8550")).raw_us > 0


def test_a_model_that_computes_nothing_is_refused(tmp_path):
    nodes = [node("Transpose", ["x"], ["y"], name="move", perm=[0, 2, 3, 1])]
    inputs, outputs = [info("x", [1, 3, 8, 8])], [info("y", [1, 8, 8, 3])]
    model = onnx.load_model(str(odd_models.save(tmp_path / "m.onnx", nodes, inputs, outputs)))
    with pytest.raises(ModelRefused, match="computes nothing"):
        deployed(model, {"x": "NCHW"})


def run(model, feeds):
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def as_bytes(end, samples, quantized):
    """What a deployed graph is given in place of a float: by the scale of the quantized one."""
    name = end.removesuffix("_pixels").removesuffix("_bytes")
    if name == end or end.endswith("_pixels"):
        return samples[name]
    source = {"video": "rows"}.get(name, name)  # moved values keep their scale
    tensors = {tensor.name: tensor for tensor in quantized.graph.initializer}
    scale, zero = (
        numpy_helper.to_array(tensors[f"{source}_{kind}"]) for kind in ("scale", "zero_point")
    )
    steps = np.round(samples[name] / scale) + zero
    limits = np.iinfo(zero.dtype)
    taken = np.clip(steps, limits.min, limits.max).astype(zero.dtype)
    return taken[0] if name == "line" else taken
