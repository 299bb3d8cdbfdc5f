"""What a converter must know of an ONNX graph: shapes, layers, their parameters and MACs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.peers.board.tools.dlc import Layer, Tensor, channels_last

Shapes = dict[str, tuple[int, ...]]


class Unconvertible(Exception):
    """A reason why the converter refuses a model."""


# What keeps the place of the channels, and what puts them behind the sides.
_KEEPING = """
Abs Add And Cast Ceil Clip Concat Cos Div Elu Equal Erf Exp Floor Gelu Greater HardSigmoid HardSwish
Identity LeakyRelu Less Log Max Mean Min Mul Neg Not PRelu Pad Pow ReduceMax ReduceMean ReduceMin
ReduceSum Relu Round Sigmoid Sign Sin Slice Softmax Softplus Split Sqrt Sub Sum Tanh Where
"""
_SPATIAL = """
AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalMaxPool
GridSample GroupNormalization InstanceNormalization LRN MaxPool Resize SpaceToDepth Upsample
"""


@dataclass(frozen=True)
class Ends:
    """What was said of inputs (their layouts and types) and of outputs (which ones)."""

    layouts: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ()


def tensors(model: ModelProto, ends: Ends) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs."""
    moved = moved_tensors(model, ends.layouts)
    given = _inputs(model)
    known = {value.name: value for value in model.graph.output}
    strange = {*ends.layouts, *ends.dtypes} - {value.name for value in given}
    strange |= set(ends.outputs) - set(known)
    if strange:
        raise Unconvertible(f"ERROR_NAME_NOT_FOUND: {', '.join(sorted(strange))} not in the model")
    inputs = [_tensor(value, moved, ends.dtypes.get(value.name, "float32")) for value in given]
    return inputs, [_tensor(known[name], moved) for name in ends.outputs or known]


def moved_tensors(model: ModelProto, layouts: Mapping[str, str]) -> set[str]:
    """Those with channels last in the container: inputs of four dimensions, unless they have them
    there already, and what is made of them without mixing their sides."""
    shapes, keeping, spatial = shapes_of(model), _KEEPING.split(), _SPATIAL.split()
    moved = {
        value.name
        for value in _inputs(model)
        if len(shapes[value.name]) == 4 and layouts.get(value.name) != "NHWC"
    }
    for node in model.graph.node:
        keeps = node.op_type in keeping and any(
            name in moved and len(shapes.get(name, ())) == len(shapes.get(node.output[0], ()))
            for name in node.input
        )
        if keeps or node.op_type in spatial:
            moved.update(name for name in node.output if len(shapes.get(name, ())) > 2)
    return moved


def layers(model: ModelProto, moved: set[str]) -> list[Layer]:
    shapes = shapes_of(model)
    weights = {w.name: math.prod(w.dims) for w in model.graph.initializer}
    counted: set[str] = set()
    found = []
    for number, node in enumerate(model.graph.node):
        own = [name for name in node.input if name in weights and name not in counted]
        counted.update(own)
        floats = sum(weights[name] for name in own if _is_trained(model, name))
        first = shapes.get(node.output[0], ())
        found.append(
            Layer(
                name=node.name or f"{node.op_type}_{number}",
                operator=node.op_type,
                inputs=tuple(name for name in node.input if name and name not in weights),
                outputs=tuple(node.output),
                shape=channels_last(first) if node.output[0] in moved else first,
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


def _inputs(model: ModelProto) -> list[Any]:
    weights = {weight.name for weight in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def _tensor(value: Any, moved: set[str], dtype: str = "") -> Tensor:
    shape = _shape(value)
    if any(side <= 0 for side in shape):
        raise Unconvertible(
            f"ERROR_ONNX_DYNAMIC_SHAPE: {value.name} has no fixed shape; use --input_dim"
        )
    own = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
    return Tensor(value.name, shape, dtype or own, turned=value.name in moved)


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
