"""Models that quantize badly and compute what they computed before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto

from edgeloop.tuning.equalize import LayerPair, pairs_of
from edgeloop.tuning.quantized import FloatGraph

NETS = Path(__file__).parent / "data/nets"


def unequal(model: ModelProto, spread: float, seed: int = 0) -> ModelProto:
    """Channels between two layers differ by up to spread², exact in float: as networks with
    depthwise layers often have them."""
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = FloatGraph(copy)
    dice = np.random.default_rng(seed)
    for pair in pairs_of(graph):
        count = len(graph.array(graph.nodes[pair.first].input[1]))
        _scale(graph, pair, np.exp(dice.uniform(-1, 1, count) * np.log(spread)))
    return copy


def _scale(graph: FloatGraph, pair: LayerPair, factor: np.ndarray) -> None:
    first, second = graph.nodes[pair.first], graph.nodes[pair.second]
    for name in first.input[1:3]:
        values = graph.array(name)
        graph.set_array(name, values / factor.reshape(-1, *[1] * (values.ndim - 1)))
    values = graph.array(second.input[1])
    is_depthwise = values.shape[1] == 1
    shape = (-1, 1, 1, 1) if is_depthwise else (1, -1, 1, 1)
    graph.set_array(second.input[1], values * factor.reshape(shape))
