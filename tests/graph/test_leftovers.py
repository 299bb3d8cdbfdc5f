"""What exporters leave behind and rewrites take away: GatherND at constant places (the masks of
attention), casts to the same type, a factor beside a tensor of six sides."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from edgeloop.graph.rewrites.apply import apply_rewrites

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


def of_floats(nodes: list[NodeProto], result: list[int]) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "floats",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [
            numpy_helper.from_array(np.array(3, np.float32), "factor"),
            numpy_helper.from_array(np.array([1, 2, 2, 1, 3, 3]), "large"),
            numpy_helper.from_array(np.array([4, 9]), "small"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return shape_inference.infer_shapes(model, data_prop=True)


def test_a_cast_to_the_same_type_is_dropped_and_another_one_is_not() -> None:
    same, other = TensorProto.FLOAT, TensorProto.INT32
    model = of_floats(
        [
            helper.make_node("Cast", ["x"], ["a"], name="idle", to=same),
            helper.make_node("Cast", ["a"], ["b"], name="idle_too", to=same),
            helper.make_node("Cast", ["b"], ["c"], name="rounds", to=other),
            helper.make_node("Cast", ["c"], ["d"], name="back", to=same),
            helper.make_node("Add", ["b", "d"], ["e"], name="add"),
            helper.make_node("Cast", ["e"], ["y"], name="end", to=same),
        ],
        [1, 4, 9],
    )
    [applied] = apply_rewrites(model)
    assert applied.layers == ("idle", "idle_too")
    assert [node.name for node in model.graph.node] == ["rounds", "back", "add", "end"]
    assert model.graph.node[0].input == ["x"]


def test_a_factor_beside_a_tensor_of_six_sides_is_no_obstacle() -> None:
    model = of_floats(
        [
            helper.make_node("Reshape", ["x", "large"], ["six"], name="six"),
            helper.make_node("Div", ["six", "factor"], ["less"], name="divide"),
            helper.make_node("Reshape", ["less", "small"], ["y"], name="back"),
        ],
        [4, 9],
    )
    apply_rewrites(model)
    made = (*model.graph.value_info, *model.graph.output)
    assert max(len(value.type.tensor_type.shape.dim) for value in made) <= 5
    assert "Div" in {node.op_type for node in model.graph.node}
