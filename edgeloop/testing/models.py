"""Tiny ONNX models with random weights, made with the onnx package alone.

Most take an image, NCHW in [0, 1], and have what converters meet in real ones: strided
convolutions, ReLU, upsampling, pooling, and a linear layer. Others take several tensors, or tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

WIDTH = 8

Ends = Mapping[str, tuple[str, tuple[int, ...]]]


def save_segmentation_model(
    path: Path, size: int = 64, classes: int = 19, seed: int = 0, batch: int = 1
) -> Path:
    """Logits (batch, classes, size, size); another seed gives other weights. `size` is even."""
    layers = _Layers(seed)
    layers.convolution("image", "down", 3, WIDTH, kernel=3, stride=2)
    layers.node("Relu", ["down"], "active")
    layers.convolution("active", "deep", WIDTH, WIDTH, kernel=3)
    layers.node("Relu", ["deep"], "features")
    scales = layers.constant("scales", np.array([1, 1, 2, 2], np.float32))
    layers.node("Resize", ["features", "", scales], "up", mode="linear")
    layers.convolution("up", "logits", WIDTH, classes, kernel=1)
    source = {"image": ("float32", (batch, 3, size, size))}
    target = {"logits": ("float32", (batch, classes, size, size))}
    return layers.save(path, "segmentation", source, target)


def save_classification_model(path: Path, size: int = 32, classes: int = 10, seed: int = 0) -> Path:
    """Logits (1, classes)."""
    layers = _Layers(seed)
    layers.convolution("image", "down", 3, WIDTH, kernel=3, stride=2)
    layers.node("Relu", ["down"], "active")
    layers.node("GlobalAveragePool", ["active"], "pooled")
    layers.node("Flatten", ["pooled"], "flat")
    linear = [layers.weight("linear.w", (WIDTH, classes)), layers.weight("linear.b", (classes,))]
    layers.node("Gemm", ["flat", *linear], "logits")
    source = {"image": ("float32", (1, 3, size, size))}
    return layers.save(path, "classification", source, {"logits": ("float32", (1, classes))})


def save_pair_model(path: Path, size: int = 32, seed: int = 0) -> Path:
    """An image and a vector `hint` (1, 8) give `features` (1, 8, size/2, size/2), which something
    else reads too, and `scores` (1, 10)."""
    layers = _Layers(seed)
    layers.convolution("image", "down", 3, WIDTH, kernel=3, stride=2)
    layers.node("Relu", ["down"], "features")
    layers.node("GlobalAveragePool", ["features"], "pooled")
    layers.node("Flatten", ["pooled"], "flat")
    layers.node("Add", ["flat", "hint"], "sum")
    linear = [layers.weight("linear.w", (WIDTH, 10)), layers.weight("linear.b", (10,))]
    layers.node("Gemm", ["sum", *linear], "scores")
    inputs = {"image": ("float32", (1, 3, size, size)), "hint": ("float32", (1, WIDTH))}
    features = ("float32", (1, WIDTH, size // 2, size // 2))
    outputs = {"features": features, "scores": ("float32", (1, 10))}
    return layers.save(path, "pair", inputs, outputs)


def save_token_model(
    path: Path, length: int = 16, vocabulary: int = 50, classes: int = 6, seed: int = 0
) -> Path:
    """Whole numbers `tokens` (1, length) below the vocabulary, and which of them are `kept`, give
    `logits` (1, length, classes) and the `best` class of each (int64)."""
    layers = _Layers(seed)
    layers.node("Gather", [layers.weight("table", (vocabulary, 16)), "tokens"], "embedded")
    layers.node("Cast", ["kept"], "kept.float", to=1)
    axis = layers.constant("axis", np.array([2], np.int64))
    layers.node("Unsqueeze", ["kept.float", axis], "kept.column")
    layers.node("Mul", ["embedded", "kept.column"], "masked")
    layers.node("MatMul", ["masked", layers.weight("linear.w", (16, 16))], "hidden")
    layers.node("Relu", ["hidden"], "active")
    layers.node("MatMul", ["active", layers.weight("head.w", (16, classes))], "logits")
    layers.node("ArgMax", ["logits"], "best", axis=2, keepdims=0)
    inputs = dict.fromkeys(("tokens", "kept"), ("int64", (1, length)))
    outputs = {"logits": ("float32", (1, length, classes)), "best": ("int64", (1, length))}
    return layers.save(path, "tokens", inputs, outputs)


class _Layers:
    """Collects nodes and weights; each node is named for its output."""

    def __init__(self, seed: int) -> None:
        self._dice = np.random.default_rng(seed)
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []

    def node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> None:
        from onnx import helper

        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Random values that keep the scale of what they multiply."""
        fan_in = max(1, int(np.prod(shape[1:])))
        values = self._dice.standard_normal(shape) / np.sqrt(fan_in)
        return self.constant(name, values.astype(np.float32))

    def constant(self, name: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def convolution(
        self, source: str, output: str, inputs: int, outputs: int, kernel: int, stride: int = 1
    ) -> None:
        weights = self.weight(f"{output}.w", (outputs, inputs, kernel, kernel))
        bias = self.weight(f"{output}.b", (outputs,))
        padding = [kernel // 2] * 4
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": padding}
        self.node("Conv", [source, weights, bias], output, **attributes)

    def save(self, path: Path, name: str, inputs: Ends, outputs: Ends) -> Path:
        import onnx
        from onnx import helper

        sources, targets = (
            [
                helper.make_tensor_value_info(
                    end, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape
                )
                for end, (kind, shape) in ends.items()
            ]
            for ends in (inputs, outputs)
        )
        graph = helper.make_graph(self._nodes, name, sources, targets, self._weights)
        opset = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save_model(model, str(path))
        return path
