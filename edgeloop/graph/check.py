"""Reads a model's graph, explains in plain words what is wrong with it, and simplifies it.

Compilers accept NaN weights silently and refuse everything else, unknown operators included, with
one generic sentence; so whatever can be known from the graph alone is checked here, first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.errors import UnusableModel
from edgeloop.graph.info import Layout, Shape
from edgeloop.graph.masks import mask_constants
from edgeloop.graph.operators import refusal, unknown_layers, untaken_layers
from edgeloop.graph.reading import (
    STANDARD_DOMAINS,
    convert_opset,
    fix_shapes,
    fold_constants,
    infer_types,
    inline_functions,
    is_fixed,
    load_model,
    one_float,
    real_inputs,
    shape_of,
)
from edgeloop.graph.reading.simplify import simplify

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto


LARGEST_TENSOR = 2**32  # elements: bytes once quantized
_WHOLE_NUMBERS = (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_NUMBERS = frozenset(("bool", "float", "float16", "bfloat16", "double", *_WHOLE_NUMBERS))
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def read_graph(
    path: Path, shapes: Mapping[str, Shape] | None = None, any_operator: bool = False
) -> ModelProto:
    """The checked, simplified model with the shape of every tensor; raises UnusableModel.

    `shapes` gives sizes of inputs that the file leaves open; a free batch is 1 without them.
    `any_operator` reads a graph of which a CPU may run parts.
    """
    model = inline_functions(path.name, load_model(path))
    _check_domains(path.name, model)
    _check_ends(path.name, model.graph)
    fix_shapes(path.name, model.graph, shapes)
    fold_constants(one_float(model))
    if not any_operator:
        _check_operators(path.name, model)
    model = convert_opset(path.name, model)
    simplify(model.graph)
    _infer(path.name, model)
    _check_tensors(path.name, model)
    if not any_operator:
        _check_rewritten(path.name, model)
    _check_convolutions(path.name, model.graph)
    _check_weights(path.name, model.graph)
    return model


def layout_of(shape: Shape, dtype: str = "float32") -> Layout:
    """Where an RGB image has its channels; empty for any other tensor."""
    if len(shape) != 4 or not dtype.startswith("float") or 3 not in (shape[1], shape[3]):
        return ""
    return "NCHW" if shape[1] == 3 else "NHWC"


def shapes_of(graph: GraphProto) -> dict[str, Shape]:
    """The shape of every tensor that has one: inputs, outputs, what is between, weights."""
    shapes = {value.name: shape_of(value) for value in _values(graph)}
    shapes.update({tensor.name: tuple(tensor.dims) for tensor in graph.initializer})
    return shapes


def _check_domains(file: str, model: ModelProto) -> None:
    foreign = sorted({n.domain for n in model.graph.node if n.domain not in STANDARD_DOMAINS})
    if foreign:
        kinds = sorted({n.op_type for n in model.graph.node if n.domain in foreign})
        reason = (
            f"it uses operators outside ONNX's own set ({', '.join(foreign)}: "
            f"{', '.join(kinds[:5])}). Export it with standard operators"
        )
        raise UnusableModel(file=file, reason=reason)
    if any(node.op_type in _QUANTIZERS for node in model.graph.node):
        reason = "it is quantized already. Upload the float model: quantizing is done here"
        raise UnusableModel(file=file, reason=reason)


def _check_operators(file: str, model: ModelProto) -> None:
    """After folding: what only computes shapes never reaches the compiler."""
    if unknown := unknown_layers(model):
        raise UnusableModel(file=file, reason=refusal(unknown))


def _check_ends(file: str, graph: GraphProto) -> None:
    for what, values in (("input", real_inputs(graph)), ("output", list(graph.output))):
        if not values:
            raise UnusableModel(file=file, reason=f"it has no {what}")
        for value in values:
            kind = _kind(value)
            if kind not in _NUMBERS and not (what == "output" and kind == "undefined"):
                reason = f"its {what} {value.name!r} is of the type {kind}, and not numbers"
                raise UnusableModel(file=file, reason=reason)


def _kind(value: ValueInfoProto) -> str:
    """The type of a tensor's elements, or what else the value is."""
    from onnx import TensorProto

    form = value.type.WhichOneof("value") or "undefined"
    if form != "tensor_type":
        return form.removesuffix("_type").replace("_", " ")
    return str(TensorProto.DataType.Name(value.type.tensor_type.elem_type)).lower()


def _infer(file: str, model: ModelProto) -> None:
    import onnx

    try:
        infer_types(model)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise UnusableModel(file=file, reason=f"its shapes do not fit together: {first}") from None


def _check_tensors(file: str, model: ModelProto) -> None:
    for output in model.graph.output:
        if not is_fixed(output):
            reason = f"the shape of its output {output.name!r} cannot be known before it runs"
            raise UnusableModel(file=file, reason=reason)
    for value in _values(model.graph):
        shape = shape_of(value)
        if not is_fixed(value):
            reason = f"the shape of {value.name!r} depends on the data, or cannot be inferred"
            raise UnusableModel(file=file, reason=reason)
        if math.prod(shape) > LARGEST_TENSOR:
            raise UnusableModel(file=file, reason=f"the tensor {value.name!r} is over 4 GB")


def _check_rewritten(file: str, model: ModelProto) -> None:
    """Whether anything is in the compiler's way that no rewrite takes out of it."""
    if untaken := untaken_layers(model):
        raise UnusableModel(file=file, reason=refusal(untaken))


def _check_convolutions(file: str, graph: GraphProto) -> None:
    """ONNX's shape inference does not compare the channels of a kernel with its input's."""
    shapes = shapes_of(graph)
    for node in graph.node:
        if node.op_type != "Conv":
            continue
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        given, taken = shapes[node.input[0]][1], shapes[node.input[1]][1] * groups
        if given != taken:
            reason = f"its shapes do not fit together: {node.name!r} takes {taken} channels"
            raise UnusableModel(file=file, reason=f"{reason} and is given {given}")


def _check_weights(file: str, graph: GraphProto) -> None:
    import numpy as np
    from onnx import numpy_helper

    masks = {tensor.name for tensor in mask_constants(graph)}
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name in masks:
            values = np.maximum(values, 0)  # minus infinity is what a mask may be
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = int(values.size - np.isfinite(values).sum())
            reason = f"{bad} of the {values.size} weights {tensor.name!r} are NaN or infinite"
            raise UnusableModel(file=file, reason=reason)


def _values(graph: GraphProto) -> Iterator[ValueInfoProto]:
    yield from graph.input
    yield from graph.value_info
    yield from graph.output
