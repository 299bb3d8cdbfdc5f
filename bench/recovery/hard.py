"""Models that compute what they computed before, and that quantize badly: as networks do whose
channels differ in size, or that have a channel far larger than all others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from edgeloop.tuning.equalize import pairs_of
from edgeloop.tuning.quantized import FloatGraph, groups_of
from tests.recovery_nets import unequal


def unequal_channels(source: Path, target: Path, spread: float) -> Path:
    onnx.save_model(unequal(onnx.load_model(source), spread), target)
    return target


def outlier_channels(source: Path, target: Path, size: float) -> Path:
    """Layers whose output only one other layer reads get one more channel, `size` times as large as
    the largest of the others; the layer behind it does not use it."""
    model = onnx.load_model(source)
    graph = FloatGraph(model)
    for pair in pairs_of(graph):
        first, second = graph.nodes[pair.first], graph.nodes[pair.second]
        if first.op_type == second.op_type == "Conv" and len(first.input) > 2:
            _add_channel(model, first, second, size)
    del model.graph.value_info[:]
    onnx.save_model(onnx.shape_inference.infer_shapes(model), target)
    return target


def _add_channel(model: ModelProto, first: NodeProto, second: NodeProto, size: float) -> None:
    """A copy of a channel, made larger."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def replace(name: str, values: np.ndarray) -> None:
        tensors[name].CopyFrom(numpy_helper.from_array(values.astype(np.float32), name))

    weight, bias, reading = (
        numpy_helper.to_array(tensors[name]) for name in (*first.input[1:3], second.input[1])
    )
    if groups_of(first) != 1 or groups_of(second) != 1:
        return
    chosen = int(np.argmax(np.abs(weight).reshape(len(weight), -1).sum(axis=1)))
    replace(first.input[1], np.concatenate([weight, size * weight[chosen : chosen + 1]]))
    replace(first.input[2], np.concatenate([bias, [size * abs(float(bias[chosen]))]]))
    nothing = np.zeros_like(reading[:, :1])
    replace(second.input[1], np.concatenate([reading, nothing], axis=1))
