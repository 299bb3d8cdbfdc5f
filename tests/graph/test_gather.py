"""GatherND at constant places, as PyTorch's exporter writes masks of attention: a Gather."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference

from edgeloop.graph.rewrites import apply_rewrites

DATA = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
EVERYTHING = np.stack(np.meshgrid(*map(np.arange, DATA.shape), indexing="ij"), -1)


def gathering(places: np.ndarray) -> ModelProto:
    graph = helper.make_graph(
        [
            helper.make_node("GatherND", ["x", "places"], ["chosen"], name="choose"),
            helper.make_node("Add", ["chosen", "chosen"], ["y"], name="double"),
        ],
        "gathering",
        [helper.make_tensor_value_info("x", TensorProto.INT32, DATA.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(places.astype(np.int64), "places")],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return shape_inference.infer_shapes(model, data_prop=True)


def answer(model: ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"x": DATA})[0]


@pytest.mark.parametrize(
    ("places", "left"),
    [
        (np.array([[1, 2, 3], [0, 0, 0], [-1, -3, 1]]), {"Reshape", "Gather", "Add"}),
        (np.array([[[1, 0], [0, 2]]]), {"Reshape", "Gather", "Add"}),
        (np.array([[1], [0]]), {"Gather", "Add"}),
        (EVERYTHING[None], {"Reshape", "Add"}),
    ],
)
def test_constant_places_are_one_index(places: np.ndarray, left: set[str]) -> None:
    model = gathering(places)
    wanted = answer(model)
    assert "gather" in [applied.name for applied in apply_rewrites(model)]
    assert {node.op_type for node in model.graph.node} == left
    np.testing.assert_array_equal(answer(model), wanted)
    np.testing.assert_array_equal(wanted, 2 * DATA[tuple(np.moveaxis(places, -1, 0))])
