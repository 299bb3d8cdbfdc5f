"""Tiny ONNX models, with and without their weights in other files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper


def tiny_model(seed: int = 0, size: int = 4) -> ModelProto:
    """y = x·w + b; another seed gives other weights, so another content."""
    dice = np.random.default_rng(seed)
    weights = dice.standard_normal((size, size)).astype(np.float32)
    bias = dice.standard_normal(size).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"], name="multiply"),
            helper.make_node("Add", ["product", "b"], ["y"], name="add"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(
        graph, producer_name="edgeloop-tests", opset_imports=[helper.make_opsetid("", 17)]
    )


def save_tiny(path: Path, seed: int = 0, size: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(tiny_model(seed, size), str(path))
    return path


def save_external(path: Path, seed: int = 0, data: str = "weights.bin", size: int = 16) -> Path:
    """The same model with both weights in `data`, one after the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = tiny_model(seed, size)
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=data,
        size_threshold=0,
    )
    return path


def save_with_location(path: Path, location: str, **fields: str) -> Path:
    """A model whose weights claim to be at `location`; nothing is written there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = tiny_model()
    point_at(model.graph.initializer[0], location, **fields)
    path.write_bytes(model.SerializeToString())
    return path


def point_at(tensor: TensorProto, location: str, **fields: str) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **fields}.items():
        tensor.external_data.add(key=key, value=value)


def with_scatter(path: Path, size: int = 32) -> Path:
    """A convolution, then ScatterND: an operator that the chip runs and its compiler has no cost
    for."""
    dice = np.random.default_rng(0)
    weights = {
        "w": dice.normal(0, 0.2, (8, 3, 3, 3)).astype(np.float32),
        "index": np.zeros((1, 1), np.int64),
        "update": np.zeros((1, 8, size, size), np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "w"], ["maps"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["maps"], ["positive"], "relu"),
            helper.make_node("ScatterND", ["positive", "index", "update"], ["y"], "scatter"),
        ],
        "scatter",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, size, size])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save_model(model, str(path))
    return path
