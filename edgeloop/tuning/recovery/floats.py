"""The float graph that was quantized: its layers, who reads what, and its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

LAYERS = ("Conv", "ConvTranspose", "Gemm")


class FloatGraph:
    """Weights by name; `set_array` replaces one."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self._tensors: dict[str, TensorProto] = {t.name: t for t in model.graph.initializer}
        self.nodes = {node.name: node for node in model.graph.node if node.name}
        self.makers = {name: node for node in model.graph.node for name in node.output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.outputs = frozenset(output.name for output in model.graph.output)

    @classmethod
    def load(cls, path: Path) -> FloatGraph:
        import onnx

        return cls(onnx.load_model(str(path)))

    def copy(self) -> FloatGraph:
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        return FloatGraph(model)

    def save(self, path: Path) -> None:
        import onnx

        onnx.save_model(self.model, str(path))

    def has(self, name: str) -> bool:
        return name in self._tensors

    def array(self, name: str) -> NDArray[Any]:
        from onnx import numpy_helper

        return numpy_helper.to_array(self._tensors[name])

    def set_array(self, name: str, values: NDArray[Any]) -> None:
        from onnx import numpy_helper

        kind = self.array(name).dtype
        new = numpy_helper.from_array(np.ascontiguousarray(values.astype(kind)), name)
        self._tensors[name].CopyFrom(new)

    def weight_of(self, node: NodeProto) -> NDArray[Any] | None:
        """Of a layer whose weights are constant and its own."""
        name = node.input[1] if len(node.input) > 1 else ""
        if node.op_type not in LAYERS or not self.has(name) or len(self.readers[name]) != 1:
            return None
        return self.array(name)

    def bias_of(self, node: NodeProto) -> NDArray[Any] | None:
        name = node.input[2] if len(node.input) > 2 else ""
        return self.array(name) if name and self.has(name) else None

    def only_reader(self, tensor: str) -> NodeProto | None:
        """Who reads a tensor, where that is one operator and the tensor is no output."""
        found = self.readers.get(tensor, [])
        return found[0] if len(found) == 1 and tensor not in self.outputs else None


@dataclass(frozen=True)
class Window:
    """How a convolution walks over its input."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    groups: int


def attributes(node: NodeProto) -> Mapping[str, Any]:
    from onnx import helper

    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def groups_of(node: NodeProto) -> int:
    return int(attributes(node).get("group", 1))


def window_of(node: NodeProto, weight: NDArray[Any]) -> Window | None:
    """None where padding is left to the runtime, or the layer is not one over height and width."""
    given = attributes(node)
    if weight.ndim != 4 or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b""):
        return None
    height, width = (int(side) for side in weight.shape[2:])
    top, left, bottom, right = (int(one) for one in given.get("pads", (0, 0, 0, 0)))
    down, along = (int(one) for one in given.get("strides", (1, 1)))
    tall, wide = (int(one) for one in given.get("dilations", (1, 1)))
    groups = int(given.get("group", 1))
    return Window((height, width), (down, along), (top, left, bottom, right), (tall, wide), groups)


def output_axis(node: NodeProto) -> int:
    """The axis of a layer's weights that belongs to its output channels."""
    if node.op_type == "ConvTranspose":
        return 1
    return 1 if node.op_type == "Gemm" and not int(attributes(node).get("transB", 0)) else 0
