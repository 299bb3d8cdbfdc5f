"""Old and new opsets: what is read computes what ONNX Runtime computes from the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeloop.errors import UnusableModel
from edgeloop.graph.check import read_graph
from edgeloop.graph.simplify import prepare_model
from tests.graph.odd_models import info, save

node = helper.make_node
IMAGE = [1, 3, 4, 4]
NORM = {
    name: np.linspace(0.5, 1.5, 3, dtype=np.float32) + index for index, name in enumerate("gbmv")
}


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


OLD = {
    "batch norm": (8, [node("BatchNormalization", ["x", *"gbmv"], ["y"])], IMAGE, NORM),
    "upsample": (8, [node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 2.0])], IMAGE, {}),
    "linear": (
        9,
        [node("Upsample", ["x", "s"], ["y"], mode="linear")],
        IMAGE,
        {"s": floats(1, 1, 2, 3)},
    ),
    "resize": (
        10,
        [node("Resize", ["x", "s"], ["y"], mode="linear")],
        IMAGE,
        {"s": floats(1, 1, 2, 2)},
    ),
    "nearest": (
        10,
        [node("Resize", ["x", "s"], ["y"])],
        [1, 3, 7, 7],
        {"s": floats(1, 1, 1.5, 2.5)},
    ),
    "smaller": (
        10,
        [node("Resize", ["x", "s"], ["y"])],
        [1, 3, 9, 9],
        {"s": floats(1, 1, 0.4, 0.6)},
    ),
    "slice": (
        9,
        [node("Slice", ["x"], ["y"], axes=[2, 3], starts=[1, 0], ends=[3, -1])],
        IMAGE,
        {},
    ),
    "clip": (8, [node("Clip", ["x"], ["y"], min=0.1, max=0.6)], IMAGE, {}),
    "pad": (8, [node("Pad", ["x"], ["y"], pads=[0, 0, 1, 1, 0, 0, 2, 2], value=0.5)], IMAGE, {}),
    "reflect": (
        9,
        [node("Pad", ["x"], ["y"], pads=[0, 0, 1, 1, 0, 0, 2, 2], mode="reflect")],
        IMAGE,
        {},
    ),
    "dropout": (8, [node("Dropout", ["x"], ["d"]), node("Relu", ["d"], ["y"])], IMAGE, {}),
    "softmax": (8, [node("Softmax", ["x"], ["y"])], [2, 3, 4], {}),
    "softmax of two": (11, [node("Softmax", ["x"], ["y"], axis=2)], IMAGE, {}),
    "squeeze": (
        11,
        [node("Unsqueeze", ["x"], ["u"], axes=[0]), node("Squeeze", ["u"], ["y"], axes=[0, 1])],
        IMAGE,
        {},
    ),
    "split": (
        11,
        [
            node("Split", ["x"], ["a", "b"], axis=3, split=[1, 3]),
            node("ReduceSum", ["a"], ["s"], axes=[3]),
            node("Add", ["s", "b"], ["y"]),
        ],
        IMAGE,
        {},
    ),
    "top": (9, [node("TopK", ["x"], ["y", "i"], k=2, axis=1)], IMAGE, {}),
    "large weight": (
        8,
        [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w", "b"], ["y"], transB=1)],
        IMAGE,
        {
            "w": np.random.default_rng(3).random((200, 48), np.float32),
            "b": np.ones(200, np.float32),
        },
    ),
}


def run(model: onnx.ModelProto | Path, shape: list[int]) -> np.ndarray:
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(given, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.random.default_rng(1).random(shape, np.float32)})[0]


def graph_at(path: Path, opset: int, nodes, shape: list[int], weights, ir: int) -> Path:
    save(path, nodes, [info("x", shape)], [info("y", None)], weights, opset=opset)
    model = onnx.load_model(str(path))
    model.ir_version = ir
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("name", OLD)
def test_old_opsets_compute_the_same(tmp_path: Path, name: str):
    opset, nodes, shape, weights = OLD[name]
    path = graph_at(tmp_path / "m.onnx", opset, nodes, shape, weights, 4)
    model = read_graph(path)
    assert 13 <= model.opset_import[0].version <= 21
    np.testing.assert_allclose(run(model, shape), run(path, shape), atol=1e-5)


@pytest.mark.parametrize("opset", [22, 24, 26])
def test_new_opsets_compute_the_same(tmp_path: Path, opset: int):
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node("Resize", ["c", "", "s"], ["r"], mode="linear"),
        node("LayerNormalization", ["r", "g"], ["l"]),
        node("Gelu", ["l"], ["e"]),
        *(
            [node("RMSNormalization", ["e", "g"], ["y"])]
            if opset > 22
            else [node("Relu", ["e"], ["y"])]
        ),
    ]
    dice = np.random.default_rng(2)
    weights = {
        "w": dice.random((4, 3, 3, 3), np.float32),
        "s": floats(1, 1, 2, 2),
        "g": dice.random(8, np.float32) + 1,
    }
    path = graph_at(tmp_path / "m.onnx", opset, nodes, IMAGE, weights, 10)
    model = read_graph(path)
    assert model.opset_import[0].version == 21
    np.testing.assert_allclose(run(model, IMAGE), run(path, IMAGE), atol=1e-4)


def test_a_file_newer_than_the_runtime_is_prepared_for_it(tmp_path: Path):
    newest = onnx.defs.onnx_opset_version()
    path = graph_at(
        tmp_path / "m.onnx", newest, [node("Relu", ["x"], ["y"])], IMAGE, {}, onnx.IR_VERSION
    )
    prepared = prepare_model(path, None, tmp_path / "prepared")
    assert run(prepared, IMAGE).shape == tuple(IMAGE)
    assert run(read_graph(path), IMAGE).shape == tuple(IMAGE)


def test_functions_of_the_model_are_inlined(tmp_path: Path):
    twice = helper.make_function(
        "my.layers",
        "ScaledRelu",
        ["a", "b"],
        ["c"],
        [node("Mul", ["a", "b"], ["m"]), node("Relu", ["m"], ["c"])],
        [helper.make_opsetid("", 18)],
    )
    graph = helper.make_graph(
        [node("ScaledRelu", ["x", "w"], ["y"], domain="my.layers")],
        "g",
        [info("x", [100, 100])],
        [info("y", [100, 100])],
        [
            numpy_helper.from_array(
                np.random.default_rng(4).random((100, 100), np.float32) - 0.5, "w"
            )
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my.layers", 1)]
    path = tmp_path / "m.onnx"
    onnx.save_model(
        helper.make_model(graph, opset_imports=opsets, functions=[twice], ir_version=9), str(path)
    )
    model = read_graph(path)
    assert [n.op_type for n in model.graph.node] == ["Mul", "Relu"]
    np.testing.assert_allclose(run(model, [100, 100]), run(path, [100, 100]))


def branch(name: str, operator: str) -> onnx.GraphProto:
    inner = [node(operator, ["x"], ["inner"]), node("Neg", ["inner"], ["out"])]
    return helper.make_graph(inner, name, [], [info("out", None)])


@pytest.mark.parametrize(("channels", "kind"), [(3, "Relu"), (4, "Sigmoid")])
def test_a_branch_whose_condition_is_known_is_taken(tmp_path: Path, channels: int, kind: str):
    branches = {"then_branch": branch("a", "Relu"), "else_branch": branch("b", "Sigmoid")}
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["channels"]),
        node("Equal", ["channels", "three"], ["is_rgb"]),
        node("If", ["is_rgb"], ["first"], **branches),
        node("If", ["is_rgb"], ["second"], **branches),
        node("Add", ["first", "second"], ["y"]),
    ]
    weights = {"one": np.array(1), "three": np.array(3)}
    shape = [1, channels, 4, 4]
    path = save(tmp_path / "m.onnx", nodes, [info("x", shape)], [info("y", None)], weights)
    model = read_graph(path)
    assert [n.op_type for n in model.graph.node] == [kind, "Neg", kind, "Neg", "Add"]
    np.testing.assert_allclose(run(model, shape), run(path, shape), atol=1e-6)


def test_a_loop_is_named_with_what_to_do_instead(tmp_path: Path):
    flag, count = (helper.make_tensor_value_info(n, k, []) for n, k in (("c", 9), ("i", 7)))
    steps = [node("Identity", ["c"], ["go"]), node("Add", ["v", "v"], ["twice"])]
    ends = [helper.make_tensor_value_info("go", TensorProto.BOOL, []), info("twice", IMAGE)]
    body = helper.make_graph(steps, "body", [count, flag, info("v", IMAGE)], ends)
    nodes = [helper.make_node("Loop", ["n", "c", "x"], ["y"], "again", body=body)]
    given = {"n": np.array(3), "c": np.array(True)}
    path = save(tmp_path / "m.onnx", nodes, [info("x", IMAGE)], [info("y", IMAGE)], given)
    with pytest.raises(UnusableModel, match=r"Loop \(layer 'again'\): use an export for a fixed"):
        read_graph(path)


def test_boxes_without_duplicates_are_named_with_what_to_do_instead(tmp_path: Path):
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["i"], "nms"),
        node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    ends = [info("boxes", [1, 10, 4]), info("scores", [1, 2, 10])]
    path = save(tmp_path / "m.onnx", nodes, ends, [info("y", None)], {"most": np.array([5])})
    with pytest.raises(UnusableModel, match=r"NonMaxSuppression \(layer 'nms'\): use the model w"):
        read_graph(path)


def test_an_output_whose_size_depends_on_the_data_is_named(tmp_path: Path):
    nodes = [node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["y"], to=TensorProto.FLOAT)]
    path = save(tmp_path / "m.onnx", nodes, [info("x", IMAGE)], [info("y", None)])
    with pytest.raises(UnusableModel, match="NonZero"):
        read_graph(path)
