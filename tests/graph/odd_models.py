"""Small ONNX models by hand, most of them with something wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def info(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, nodes, inputs, outputs, weights=None, opset=17, domains=()) -> Path:
    tensors = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, "odd", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))
    return path


def weights(outputs=4, inputs=3, kernel=3, seed=0):
    dice = np.random.default_rng(seed)
    return dice.standard_normal((outputs, inputs, kernel, kernel)).astype(np.float32) / 5


def one_conv(path: Path, shape=(1, 3, 32, 32), weight=None, **fields) -> Path:
    """x → Conv → y, padded, so that y has the size of x."""
    weight = weights() if weight is None else weight
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], name="conv", **fields)
    out = info("y", [shape[0], len(weight), *shape[2:]])
    return save(path, [node], [info("x", list(shape))], [out], {"w": weight})


def deep(path: Path, size: int, layers: int = 4, width: int = 32) -> Path:
    """A chain of convolutions at full size."""
    tensors = {"w0": weights(width, 3)}
    tensors |= {f"w{i}": weights(width, width) for i in range(1, layers)}
    nodes = [
        helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], pads=[1] * 4, name=f"conv{i}")
        for i in range(layers)
    ]
    ends = [info("x0", [1, 3, size, size])], [info(f"x{layers}", [1, width, size, size])]
    return save(path, nodes, *ends, tensors)


def one_node(path: Path, operator: str, domain="", **fields) -> Path:
    node = helper.make_node(operator, ["x"], ["y"], name="odd", domain=domain, **fields)
    shape = [1, 3, 32, 32]
    domains = (domain,) if domain else ()
    return save(path, [node], [info("x", shape)], [info("y", None)], domains=domains)


def no_number(path: Path) -> Path:
    """Its weights are not numbers: no compiler says so, and nothing can be done with it."""
    return one_conv(path, weight=weights() * np.nan)


def dilated_pool(path: Path) -> Path:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"], name="sigmoid"),
        helper.make_node(
            "MaxPool", ["s"], ["y"], name="odd", kernel_shape=[3, 3], dilations=[2, 2]
        ),
    ]
    return save(path, nodes, [info("x", [1, 3, 32, 32])], [info("y", None)])


def rank_six(path: Path, is_output: bool = False) -> Path:
    nodes = [
        helper.make_node("Reshape", ["x", "six"], ["r"], name="fold"),
        helper.make_node("Reshape", ["r", "four"], ["y"], name="unfold"),
    ]
    shapes = {
        "six": np.array([1, 3, 4, 8, 4, 8], np.int64),
        "four": np.array([1, 3, 32, 32], np.int64),
    }
    shape = [1, 3, 32, 32]
    if is_output:
        return save(path, nodes[:1], [info("x", shape)], [info("r", None)], shapes)
    return save(path, nodes, [info("x", shape)], [info("y", shape)], shapes)


def untidy(path: Path) -> Path:
    """Everything exporters leave behind: Constant nodes, a zero bias shared through Identity, a
    weight among the inputs, nodes without names, an int64 class map at the end."""
    size = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32))
    nodes = [
        helper.make_node("Identity", ["b"], ["b2"]),
        helper.make_node("Conv", ["x", "w1", "b"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w2", "b2"], ["c"], pads=[1] * 4),
        helper.make_node("Constant", [], ["scales"], value=size),
        helper.make_node("Resize", ["c", "", "scales"], ["big"], mode="nearest"),
        helper.make_node("ArgMax", ["big"], ["y"], axis=1, keepdims=0),
    ]
    tensors = {"w1": weights(), "w2": weights(4, 4), "b": np.zeros(4, np.float32)}
    inputs = [info("x", [1, 3, 16, 16]), info("b", [4])]
    return save(path, nodes, inputs, [info("y", [1, 32, 32], TensorProto.INT64)], tensors)


def channel_last(path: Path) -> Path:
    """Takes (1, H, W, 3), works channel first, gives (1, H, W, 4)."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2], name="first"),
        helper.make_node("Conv", ["t", "w"], ["c"], pads=[1] * 4, name="conv"),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1], name="last"),
    ]
    ends = [info("x", [1, 16, 16, 3])], [info("y", [1, 16, 16, 4])]
    return save(path, nodes, *ends, {"w": weights()})


def with_batch_norm(path: Path) -> Path:
    dice = np.random.default_rng(2)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4, name="conv"),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"], name="norm"),
    ]
    numbers = {name: (dice.random(4) + 0.5).astype(np.float32) for name in "gbmv"}
    ends = [info("x", [1, 3, 8, 8])], [info("y", [1, 4, 8, 8])]
    return save(path, nodes, *ends, {"w": weights(), **numbers})


def with_product(path: Path) -> Path:
    """x → Conv → Sigmoid → ReduceProd (which no chip takes), both → Add → Conv → y."""
    kernel = weights(3)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Sigmoid", ["a"], ["s"], "sigmoid"),
        helper.make_node("ReduceProd", ["s"], ["p"], "odd", axes=[1]),
        helper.make_node("Add", ["s", "p"], ["b"], "sum"),
        helper.make_node("Conv", ["b", "w2"], ["y"], "second", pads=[1] * 4),
    ]
    ends = [info("x", [1, 3, 32, 32])], [info("y", [1, 3, 32, 32])]
    return save(path, nodes, *ends, {"w": kernel, "w2": kernel[::-1].copy()})
