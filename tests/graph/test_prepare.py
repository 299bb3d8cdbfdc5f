"""A prepared file computes what the original does, with fixed sizes and in float32."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edgeloop.errors import BadInput, BadModel
from edgeloop.graph import read
from edgeloop.graph.check import read_graph
from edgeloop.graph.info import shapes_from, shapes_text
from edgeloop.graph.read import save_model
from edgeloop.graph.simplify import prepare_model
from tests.exports import Everyday, everyday  # noqa: F401 - a fixture
from tests.graph.odd_models import info, save

NUMPY = {"float": np.float32, "float16": np.float16, "double": np.float64, "int64": np.int64}
X = [1, 3, 8, 8]


def outputs(path: Path, shapes=None) -> list[np.ndarray]:
    """Of random inputs, the same ones in whatever type the model takes them."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    dice = np.random.default_rng(0)
    feeds = {}
    for one in session.get_inputs():
        shape = (shapes or {}).get(one.name) or [s if isinstance(s, int) else 1 for s in one.shape]
        kind = NUMPY[one.type.removeprefix("tensor(").removesuffix(")")]
        feeds[one.name] = dice.integers(0, 1000, shape).astype(np.float32) / 1000
        feeds[one.name] = (feeds[one.name] if kind != np.int64 else feeds[one.name] * 9).astype(
            kind
        )
    return session.run(None, feeds)


def element_types(path: Path) -> set[int]:
    model = onnx.load_model(str(path))
    values = (*model.graph.input, *model.graph.output)
    types = {value.type.tensor_type.elem_type for value in values}
    return types | {tensor.data_type for tensor in model.graph.initializer}


def agree(path: Path, prepared: Path, shapes=None, tolerance=2e-2) -> None:
    pairs = zip(outputs(path, shapes), outputs(prepared, shapes), strict=True)
    for expected, found in pairs:
        assert found.shape == expected.shape
        scale = max(1e-6, float(np.abs(expected.astype(np.float32)).max()))
        np.testing.assert_allclose(found, expected, atol=tolerance * scale, rtol=0)


def test_everyday_exports_are_prepared_where_they_need_it(
    everyday: tuple[Everyday, Path],  # noqa: F811
    tmp_path: Path,
):
    export, path = everyday
    shapes = {"image": export.shape} if export.needs_shape else {}
    prepared = prepare_model(path, shapes, tmp_path / "prepared")
    is_plain = not export.half and not export.free
    assert (prepared == path) == is_plain
    assert prepared.name == path.name
    assert element_types(prepared) <= {TensorProto.FLOAT, TensorProto.INT64}
    assert prepare_model(prepared, None, tmp_path / "again") == prepared
    agree(path, prepared, {"image": export.shape}, 2e-2 if export.half else 1e-6)


def mixed(path: Path, kind: int, dtype) -> Path:
    """Float in and out, and another type inside: casts on both sides and in a constant."""
    constant = helper.make_tensor("c", kind, [1], [3])
    weight = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32) / 5
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=kind),
        helper.make_node("Cast", ["w"], ["kernel"], to=kind),
        helper.make_node("Constant", [], ["three"], value=constant),
        helper.make_node("Mul", ["half", "three"], ["tripled"]),
        helper.make_node("Cast", ["tripled"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["kernel"], ["wide_kernel"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["wide", "wide_kernel"], ["y"], pads=[1] * 4),
    ]
    return save(path, nodes, [info("x", X)], [info("y", [1, 4, 8, 8])], {"w": weight})


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(TensorProto.FLOAT16, np.float16), (TensorProto.DOUBLE, np.float64)],
)
def test_mixed_types_become_float32_without_casts(tmp_path: Path, kind: int, dtype):
    path = mixed(tmp_path / "m.onnx", kind, dtype)
    prepared = prepare_model(path, None, tmp_path / "prepared")
    agree(path, prepared)
    kinds = [node.op_type for node in read_graph(path).graph.node]
    assert kinds == ["Mul", "Conv"]
    assert [node.op_type for node in read_graph(prepared).graph.node] == kinds


def test_the_lowest_double_of_a_mask_stays_a_number(tmp_path: Path):
    nodes = [
        helper.make_node("Where", ["m", "x", "low"], ["y"]),
    ]
    weights = {"low": np.array(np.finfo(np.float64).min), "m": np.array([True, False])}
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [info("x", [1, 2], TensorProto.DOUBLE)],
        [info("y", [1, 2], TensorProto.DOUBLE)],
        weights,
    )
    found = outputs(prepare_model(path, None, tmp_path / "prepared"))[0]
    assert np.isfinite(found).all() and found.dtype == np.float32


def test_more_weights_than_a_file_can_hold_lie_beside_it(tmp_path: Path, monkeypatch):
    path = mixed(tmp_path / "m.onnx", TensorProto.FLOAT16, np.float16)
    monkeypatch.setattr(read, "_LARGEST_INSIDE", 100)
    prepared = prepare_model(path, None, tmp_path / "prepared")
    agree(path, prepared)
    model = read_graph(prepared)
    save_model(model, tmp_path / "simplified.onnx")
    agree(path, tmp_path / "simplified.onnx")


def test_data_with_a_second_name_is_read(tmp_path: Path, external: Path):
    os.link(external.with_name("m.onnx.data"), tmp_path / "linked")
    assert read_graph(external).graph.initializer


@pytest.fixture
def external(tmp_path: Path) -> Path:
    path = mixed(tmp_path / "m.onnx", TensorProto.FLOAT16, np.float16)
    model = onnx.load_model(str(path))
    onnx.save_model(
        model, str(path), save_as_external_data=True, location="m.onnx.data", size_threshold=0
    )
    return path


@pytest.mark.parametrize("location", ["/etc/m.data", "../m.data", ""])
def test_data_outside_of_the_folder_is_named_as_that(external: Path, location: str):
    point(external, location)
    with pytest.raises(BadModel, match="points outside the model's folder"):
        read_graph(external)


def test_missing_and_short_data_are_told_apart(external: Path):
    data = external.with_name("m.onnx.data")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(BadModel, match=r"external data 'm.onnx.data' is cut off"):
        read_graph(external)
    data.unlink()
    with pytest.raises(BadModel, match=r"external data 'm.onnx.data' is missing"):
        read_graph(external)
    with pytest.raises(BadModel, match=r"external data 'm.onnx.data' is missing"):
        prepare_model(external, None, external.parent / "prepared")


def point(path: Path, location: str) -> None:
    model = onnx.load_model(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())


def test_shapes_survive_their_column():
    shapes = {"x": (1, 3, 4), "y": ()}
    assert shapes_from(shapes_text(shapes)) == shapes
    assert shapes_from("") == shapes_from(None) == shapes_from(shapes_text({})) == {}
    for wrong in ("x=1x2", "[1]", '{"x": 3}', '{"x": [0]}', "1"):
        with pytest.raises(BadInput, match="column shapes"):
            shapes_from(wrong)
