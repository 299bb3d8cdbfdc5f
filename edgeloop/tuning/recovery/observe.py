"""What flows through a graph: its tensors on calibration samples, a few at a time.

Sessions run as many tensors at once as fit into a bounded memory. A quantized graph runs without
the optimizations of ONNX Runtime, so that it computes what its nodes say and not what a CPU has
fast instructions for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.system import thread_limit
from edgeloop.graph import shapes_of

if TYPE_CHECKING:
    from onnx import ModelProto

Run = Mapping[str, NDArray[Any]]
Runs = Callable[[], Iterator[Run]]
"""The inputs of a model, run by run; every call begins anew."""

_AT_ONCE_BYTES = 256 << 20


def observed(
    model: ModelProto, runs: Runs, tensors: Sequence[str], is_exact: bool = False
) -> Iterator[tuple[str, NDArray[Any]]]:
    """The tensors of every run, by name. `is_exact` leaves optimizations out."""
    for names in _chunks(model, tensors):
        session = session_of(with_outputs(model, names), is_exact)
        for inputs in runs():
            arrays = session.run(list(names), dict(inputs))
            yield from zip(names, arrays, strict=True)


def session_of(model: ModelProto, is_exact: bool = False) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_limit() or 1
    options.log_severity_level = 3
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_DISABLE_ALL if is_exact else levels.ORT_ENABLE_BASIC
    )
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """The part of a model that these tensors need, with them as its outputs."""
    import onnx

    makers = {name: node for node in model.graph.node for name in node.output}
    wanted, needed = list(names), set()
    while wanted:
        node = makers.get(wanted.pop())
        if node is not None and id(node) not in needed:
            needed.add(id(node))
            wanted += node.input
    part = onnx.ModelProto()
    part.ir_version = model.ir_version
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.name = model.graph.name
    part.graph.node.extend(node for node in model.graph.node if id(node) in needed)
    read = {name for node in part.graph.node for name in node.input}
    part.graph.input.extend(model.graph.input)
    part.graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return part


def output_error(model: ModelProto, quantized: ModelProto, runs: Runs) -> float:
    """The mean over all outputs of noise power by signal power, on the CPU: a guide to choose
    between variants by, never a score."""
    names = [output.name for output in model.graph.output]
    first, second = session_of(model), session_of(quantized, is_exact=True)
    signal, noise = np.zeros(len(names)), np.zeros(len(names))
    for inputs in runs():
        pairs = zip(first.run(names, dict(inputs)), second.run(names, dict(inputs)), strict=True)
        for place, (expected, given) in enumerate(pairs):
            if expected.dtype.kind != "f":
                continue
            one = expected.astype(np.float64)
            signal[place] += float(np.vdot(one, one))
            noise[place] += float(np.sum(np.square(given.astype(np.float64) - one)))
    return float(np.mean(noise / np.maximum(signal, 1e-30)))


def _chunks(model: ModelProto, tensors: Sequence[str]) -> Iterator[list[str]]:
    shapes = shapes_of(model.graph)
    chunk: list[str] = []
    size = 0
    for name in tensors:
        own = 4 * math.prod(max(1, side) for side in shapes.get(name, ()))
        if chunk and size + own > _AT_ONCE_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(name)
        size += own
    if chunk:
        yield chunk
