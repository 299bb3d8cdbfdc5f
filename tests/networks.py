"""Graphs of public networks, as their authors exported them: `bench/latency/skeletons.zip`."""

from __future__ import annotations

import random
import zipfile
from functools import cache
from pathlib import Path

import onnx

from edgeloop.graph.outline import INPUT, OUTPUT, Outline, OutlineLayer, outline_of

SKELETONS = Path(__file__).parents[1] / "bench/latency/skeletons.zip"


@cache
def public_outline(name: str) -> Outline:
    with zipfile.ZipFile(SKELETONS) as archive:
        model = onnx.load_from_string(archive.read(f"{name}.onnx"))
    return outline_of(onnx.shape_inference.infer_shapes(model))


def some_times(outline: Outline, seed: int = 1) -> list[tuple[str, str, float]]:
    """A table of layers with made-up times: a few that take most of it."""
    rng = random.Random(seed)
    return [
        (layer.name, layer.operator, 40 * rng.random() ** 6)
        for layer in outline.layers
        if layer.operator not in (INPUT, OUTPUT)
    ]


def chain(length: int) -> Outline:
    layers = [OutlineLayer(name="x", operator=INPUT, shape=(1, 3, 8, 8), tensors=("x",))]
    for place in range(1, length - 1):
        layer = OutlineLayer(
            name=f"/{place}/Conv", operator="Conv", shape=(1, 8, 8, 8), inputs=(place - 1,)
        )
        layers.append(layer)
    layers.append(OutlineLayer(name="y", operator=OUTPUT, inputs=(length - 2,)))
    return Outline(count=length, layers=tuple(layers))
