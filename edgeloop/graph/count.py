"""MACs and parameters counted from the graph, and the table of its layers.

A MAC is one multiplication with its addition; only convolutions and matrix products have them,
Einsum among these.
Parameters are the trained numbers: weights, biases, and the constants that other layers apply to a
whole tensor, each counted once however many layers share it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.graph.check import layout_of, shapes_of
from edgeloop.graph.info import GraphInfo, Shape, TensorInfo
from edgeloop.graph.memory import graph_memory

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

COLUMNS = (
    *("name", "operator", "inputs", "outputs", "parameters", "macs"),
    *("time_us", "share", "timed_with", "timed_on"),
)

# Inputs of these operators that are settings (a shape, a limit, a scale), not trained numbers.
_SETTINGS = frozenset(
    ("Clip", "Expand", "Pad", "Reshape", "Resize", "Slice", "Tile", "TopK", "Upsample")
)
_QUANTIZERS = frozenset(("QuantizeLinear", "DequantizeLinear"))


@dataclass(frozen=True)
class CountedLayer:
    name: str
    operator: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    parameters: int
    macs: int
    time_us: float | None = None


@dataclass(frozen=True)
class LayerTiming:
    """What the layers `members` take together; their time stands beside the one that is `name`."""

    name: str
    members: tuple[str, ...]
    time_us: float
    share: float


def count_layers(model: ModelProto) -> tuple[CountedLayer, ...]:
    """One entry a node, in the order of the graph; the model needs its shapes inferred."""
    from onnx import TensorProto

    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    shapes = shapes_of(model.graph)
    weights = {t.name: math.prod(t.dims) for t in model.graph.initializer if t.data_type in floats}
    counted: set[str] = set()
    layers = []
    for node in model.graph.node:
        own = set() if node.op_type in _SETTINGS | _QUANTIZERS else set(node.input) & set(weights)
        layers.append(
            CountedLayer(
                name=node.name,
                operator=node.op_type,
                inputs=tuple(shapes[n] for n in node.input if n in shapes and n not in weights),
                outputs=tuple(shapes[name] for name in node.output if name in shapes),
                parameters=sum(weights[name] for name in own - counted),
                macs=_macs(node, shapes),
            )
        )
        counted |= own
    return tuple(layers)


def graph_info(file: str, model: ModelProto) -> GraphInfo:
    layers = count_layers(model)
    shapes = shapes_of(model.graph)
    outputs = tuple(_tensor(value, shapes) for value in model.graph.output)
    inputs = tuple(_tensor(value, shapes) for value in model.graph.input)
    return GraphInfo(
        inputs=tuple(replace(one, layout=layout_of(one.shape, one.dtype)) for one in inputs),
        outputs=outputs,
        macs=sum(layer.macs for layer in layers),
        params=sum(layer.parameters for layer in layers),
        memory=graph_memory(model.graph),
    )


def _tensor(value: ValueInfoProto, shapes: Mapping[str, Shape]) -> TensorInfo:
    from onnx import helper

    kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return TensorInfo(value.name, shapes[value.name], kind.name)


def with_times(
    layers: Iterable[CountedLayer], times_us: Mapping[str, float]
) -> tuple[CountedLayer, ...]:
    return tuple(replace(layer, time_us=times_us.get(layer.name)) for layer in layers)


def write_layers(path: Path, layers: Iterable[CountedLayer]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for layer in layers:
            time_us = "" if layer.time_us is None else f"{layer.time_us:.3f}"
            shapes = (_words(layer.inputs), _words(layer.outputs))
            numbers = (layer.parameters, layer.macs, time_us)
            writer.writerow((layer.name, layer.operator, *shapes, *numbers, "", "", ""))


def add_times(path: Path, timings: Iterable[LayerTiming], device: str) -> None:
    """Complete a table that `write_layers` wrote. A layer that is timed with others says with which
    one; one that is in none of the groups is part of another layer, and takes no time."""
    by_member = {name: timing for timing in timings for name in timing.members}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            timing = by_member.get(row["name"])
            columns = {"time_us": "0.000", "share": "0.0000", "timed_with": "", "timed_on": device}
            if timing is not None and timing.name == row["name"]:
                columns |= {"time_us": f"{timing.time_us:.3f}", "share": f"{timing.share:.4f}"}
            elif timing is not None:
                columns |= {"time_us": "", "share": "", "timed_with": timing.name}
            writer.writerow(row | columns)


def costliest(path: Path, count: int) -> list[LayerTiming]:
    """From a table with times; none if it has none, or cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("time_us")]
        found = [
            LayerTiming(row["name"], (), float(row["time_us"]), float(row.get("share") or 0))
            for row in rows
        ]
    except (OSError, ValueError, KeyError, csv.Error):
        return []
    return sorted(found, key=lambda layer: -layer.time_us)[:count]


def _macs(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    if node.op_type == "Conv":
        _, per_group, *kernel = shapes[node.input[1]]
        return math.prod(shapes[node.output[0]]) * per_group * math.prod(kernel)
    if node.op_type == "ConvTranspose":
        _, per_group, *kernel = shapes[node.input[1]]
        return math.prod(shapes[node.input[0]]) * per_group * math.prod(kernel)
    if node.op_type == "MatMul":
        return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    if node.op_type == "Gemm":
        first = shapes[node.input[0]]
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        return math.prod(shapes[node.output[0]]) * first[0 if transposed else 1]
    if node.op_type == "Einsum":
        return _einsum_macs(node, shapes)
    if node.op_type in ("GRU", "LSTM"):
        steps, samples, _ = shapes[node.input[0]]
        return steps * samples * sum(math.prod(shapes[name]) for name in node.input[1:3])
    return 0


def _einsum_macs(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Every combination of its indices once, if it multiplies at all."""
    equation = next(a.s.decode() for a in node.attribute if a.name == "equation")
    terms = equation.partition("->")[0].replace(" ", "").split(",")
    sizes: dict[str, int] = {}
    for term, name in zip(terms, node.input, strict=True):
        before, dots, behind = term.partition("...")
        shape = shapes[name]
        hidden = [f".{i}" for i in range(len(shape) - len(before) - len(behind), 0, -1)]
        for index, size in zip([*before, *(hidden if dots else ()), *behind], shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    return math.prod(sizes.values()) if len(terms) > 1 else 0


def _words(shapes: Iterable[Shape]) -> str:
    return " ".join("x".join(str(side) for side in shape) or "scalar" for shape in shapes)
