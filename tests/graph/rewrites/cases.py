"""Small graphs, one for each form of an operator that a rewrite is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

Weights = dict[str, Any]


def graph(nodes, shapes: dict[str, Sequence[int]], weights: Weights, opset=17) -> ModelProto:
    """Ends in `y`; shapes are inferred, as `read_graph` does."""
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("y", 1, None)
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    made = helper.make_graph(nodes, "g", inputs, [output], tensors)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def node(operator: str, *names: str, **attributes: Any):
    """Inputs, and at last the output, whose name is the node's, too."""
    return helper.make_node(operator, names[:-1], names[-1:], names[-1], **attributes)


def one(operator: str, shape, *constants, others=(), opset=17, **attributes) -> ModelProto:
    """x, other inputs, then constants."""
    names = [f"c{index}" for index in range(len(constants))]
    more = {f"z{index}": other for index, other in enumerate(others)}
    made = node(operator, "x", *more, *names, "y", **attributes)
    return graph([made], {"x": shape, **more}, dict(zip(names, constants, strict=True)), opset)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def gelu(order: int) -> ModelProto:
    """The three products that make x · ½ · (1 + erf(x / √2))."""
    products = (
        [node("Mul", "x", "sum", "p"), node("Mul", "p", "half", "y")],
        [node("Mul", "x", "half", "p"), node("Mul", "p", "sum", "y")],
        [node("Mul", "half", "sum", "p"), node("Mul", "x", "p", "y")],
    )
    nodes = [
        node("Div", "x", "root", "inner"),
        node("Erf", "inner", "erf"),
        node("Add", "erf", "unit", "sum"),
        *products[order],
    ]
    weights = {"root": number(2**0.5), "unit": number(1), "half": number(0.5)}
    return graph(nodes, {"x": (1, 4, 8)}, weights)


def layer_norm(axis: int, shape, gain, form="Div", opset=13, is_read_elsewhere=False) -> ModelProto:
    """Normalization in single steps; `form` is how it divides."""
    as_input = opset >= 18
    places = ("axes",) if as_input else ()
    attributes = {} if as_input else {"axes": [axis]}
    ending = {
        "Div": [node("Div", "d", "root", "n")],
        "Reciprocal": [node("Reciprocal", "root", "r"), node("Mul", "r", "d", "n")],
        "twice": [node("Sub", "x", "mean", "d2"), node("Div", "d2", "root", "n")],
    }[form]
    last = [node("Mul", "n", "gain", "scaled"), node("Add", "bias", "scaled", "y")]
    if is_read_elsewhere:
        last = [*last[:1], node("Add", "scaled", "variance", "y")]
    nodes = [
        node("ReduceMean", "x", *places, "mean", **attributes),
        node("Sub", "x", "mean", "d"),
        node("Pow", "d", "two", "square"),
        node("ReduceMean", "square", *places, "variance", **attributes),
        node("Add", "variance", "epsilon", "shifted"),
        node("Sqrt", "shifted", "root"),
        *ending,
        *last,
    ]
    weights = {"two": number(2), "epsilon": number(1e-5), "gain": values(*gain)}
    weights |= {} if is_read_elsewhere else {"bias": values(*gain)}
    weights |= {"axes": whole(axis)} if as_input else {}
    return graph(nodes, {"x": shape}, weights, opset)


def linear(bias_shape=(6,), is_read_elsewhere=False) -> ModelProto:
    nodes = [node("MatMul", "x", "w", "m"), node("Add", "b", "m", "a")]
    nodes.append(node("Mul" if is_read_elsewhere else "Relu", "a", *"m" * is_read_elsewhere, "y"))
    return graph(nodes, {"x": (1, 4, 8)}, {"w": values(8, 6), "b": values(*bias_shape)})


def windows(six, order) -> ModelProto:
    nodes = [
        node("Reshape", "x", "six", "a"),
        node("Transpose", "a", "t", perm=order),
        node("Relu", "t", "r"),
        node("Softmax", "r", "s", axis=2),
        node("ReduceMean", "s", "m", axes=[3, 4], keepdims=1),
        node("Reshape", "m", "flat", "y"),
    ]
    weights = {"six": whole(*six), "flat": whole(-1, 5)}
    return graph(nodes, {"x": (2, 12, 5, 7)}, weights)


def normed_gemm(is_reshaped: bool) -> ModelProto:
    """A batch norm behind a Gemm, or behind a MatMul whose rows a Reshape has merged."""
    weights: Weights = {name: values(6) for name in ("gain", "bias", "mean")}
    weights["variance"] = np.abs(values(6)) + 1
    norm = node("BatchNormalization", "r", *weights, "y")
    if not is_reshaped:
        gemm = node("Gemm", "x", "w", "c", "r", transB=1)
        weights |= {"w": values(6, 8), "c": values(6)}
        return graph([gemm, norm], {"x": (4, 8)}, weights)
    nodes = [node("MatMul", "x", "w", "product"), node("Reshape", "product", "flat", "r"), norm]
    weights |= {"w": values(8, 6), "flat": whole(4, 6)}
    return graph(nodes, {"x": (1, 4, 8)}, weights)


def norm(shape) -> ModelProto:
    channels = shape[1]
    weights = [values(channels) for _ in range(3)]
    return one("BatchNormalization", shape, *weights, np.abs(values(channels)) + 1)


def group_norm() -> ModelProto:
    """ONNX infers no shape behind it, so it is one of another kind meanwhile."""
    made = one("InstanceNormalization", (1, 8, 6, 6), values(8), values(8), opset=21)
    made.graph.node[0].op_type = "GroupNormalization"
    made.graph.node[0].attribute.append(helper.make_attribute("num_groups", 2))
    return made
