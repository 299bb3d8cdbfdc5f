"""Tiny ONNX models with random weights, made with the onnx package alone.

They take an image, NCHW in [0, 1], and have what converters meet in real ones: strided
convolutions, ReLU, upsampling, pooling, and a linear layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

WIDTH = 8


def save_segmentation_model(path: Path, size: int = 64, classes: int = 19, seed: int = 0) -> Path:
    """Logits (1, classes, size, size); another seed gives other weights. `size` is even."""
    layers = _Layers(seed)
    layers.convolution("image", "down", 3, WIDTH, kernel=3, stride=2)
    layers.node("Relu", ["down"], "active")
    layers.convolution("active", "deep", WIDTH, WIDTH, kernel=3)
    layers.node("Relu", ["deep"], "features")
    scales = layers.constant("scales", np.array([1, 1, 2, 2], np.float32))
    layers.node("Resize", ["features", "", scales], "up", mode="linear")
    layers.convolution("up", "logits", WIDTH, classes, kernel=1)
    return layers.save(path, "segmentation", (1, 3, size, size), (1, classes, size, size))


def save_classification_model(path: Path, size: int = 32, classes: int = 10, seed: int = 0) -> Path:
    """Logits (1, classes)."""
    layers = _Layers(seed)
    layers.convolution("image", "down", 3, WIDTH, kernel=3, stride=2)
    layers.node("Relu", ["down"], "active")
    layers.node("GlobalAveragePool", ["active"], "pooled")
    layers.node("Flatten", ["pooled"], "flat")
    linear = [layers.weight("linear.w", (WIDTH, classes)), layers.weight("linear.b", (classes,))]
    layers.node("Gemm", ["flat", *linear], "logits")
    return layers.save(path, "classification", (1, 3, size, size), (1, classes))


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

    def constant(self, name: str, values: NDArray[np.float32]) -> str:
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

    def save(
        self, path: Path, name: str, input_shape: tuple[int, ...], output_shape: tuple[int, ...]
    ) -> Path:
        import onnx
        from onnx import TensorProto, helper

        source = helper.make_tensor_value_info("image", TensorProto.FLOAT, input_shape)
        target = helper.make_tensor_value_info("logits", TensorProto.FLOAT, output_shape)
        graph = helper.make_graph(self._nodes, name, [source], [target], self._weights)
        opset = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save_model(model, str(path))
        return path
