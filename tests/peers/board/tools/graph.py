"""What a converter must know of an ONNX graph: shapes, layers, their parameters and MACs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.peers.board.tools.dlc import Layer, Tensor

Shapes = dict[str, tuple[int, ...]]


class Unconvertible(Exception):
    """A reason why the converter refuses a model."""


def tensors(model: ModelProto, channels_last: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs. Without channels last said of an input, images have channels first."""
    weights = {weight.name for weight in model.graph.initializer}
    given = [value for value in model.graph.input if value.name not in weights]
    return (
        [_tensor(value, channels_last) for value in given],
        [_tensor(value, channels_last) for value in model.graph.output],
    )


def layers(model: ModelProto, channels_last: bool) -> list[Layer]:
    shapes = shapes_of(model)
    weights = {w.name: math.prod(w.dims) for w in model.graph.initializer}
    counted: set[str] = set()
    found = []
    for number, node in enumerate(model.graph.node):
        own = [name for name in node.input if name in weights and name not in counted]
        counted.update(own)
        floats = sum(weights[name] for name in own if _is_trained(model, name))
        found.append(
            Layer(
                name=node.name or f"{node.op_type}_{number}",
                operator=node.op_type,
                inputs=tuple(name for name in node.input if name and name not in weights),
                outputs=tuple(node.output),
                shape=_outside(shapes.get(node.output[0], ()), channels_last),
                parameters=floats,
                macs=_macs(node, shapes),
            )
        )
    return found


def shapes_of(model: ModelProto) -> Shapes:
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = [*graph.value_info, *graph.input, *graph.output]
    shapes: Shapes = {value.name: _shape(value) for value in values}
    return shapes | {weight.name: tuple(weight.dims) for weight in graph.initializer}


def _tensor(value: Any, channels_last: bool) -> Tensor:
    shape = _shape(value)
    if not shape or any(side <= 0 for side in shape):
        raise Unconvertible(
            f"ERROR_ONNX_DYNAMIC_SHAPE: {value.name} has no fixed shape; use --input_dim"
        )
    kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
    return Tensor(value.name, shape, kind, turned=len(shape) == 4 and not channels_last)


def _outside(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    if len(shape) != 4 or channels_last:
        return shape
    count, channels, height, width = shape
    return (count, height, width, channels)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(side.dim_value for side in value.type.tensor_type.shape.dim)


def _is_trained(model: ModelProto, name: str) -> bool:
    kinds: Iterable[int] = (w.data_type for w in model.graph.initializer if w.name == name)
    return TensorProto.FLOAT in kinds


def _macs(node: NodeProto, shapes: Shapes) -> int:
    if node.op_type in ("Conv", "ConvTranspose"):
        weight = shapes.get(node.input[1], ())
        place = node.output[0] if node.op_type == "Conv" else node.input[0]
        pixels = math.prod(shapes.get(place, (1, 1))[2:])
        return math.prod(weight) * pixels
    if node.op_type in ("Gemm", "MatMul"):
        left, out = shapes.get(node.input[0], ()), shapes.get(node.output[0], ())
        turned = any(a.name == "transA" and a.i for a in node.attribute)
        return math.prod(out) * (left[0 if turned else -1] if left else 0)
    return 0
