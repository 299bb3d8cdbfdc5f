"""The steps of recovery in a process of their own: `python -m edgeloop.tuning.recovery.worker
FOLDER`. A step that crashes ONNX Runtime or fills the memory costs that step, not the runner."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgeloop.graph import graph_info
from edgeloop.isolation import Answer, Work, serve
from edgeloop.platforms import calibration_runs, samples_from_files
from edgeloop.tuning.recovery.floats import FloatGraph
from edgeloop.tuning.recovery.observe import Run
from edgeloop.tuning.recovery.quantized import QuantizedGraph
from edgeloop.tuning.recovery.steps import ALL_BITS, STEPS, rounding_step


def hello(warm: bool = False) -> Answer:
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__}, ()


def step(
    name: str,
    model: str,
    quantized: str,
    target_model: str,
    target: str,
    samples: Mapping[str, Any],
    rounds_all: bool = False,
) -> Answer:
    """One step on two files, into two others; `is_done` is false where it has nothing to change."""
    graph = FloatGraph.load(Path(model))
    info = graph_info(Path(model).name, graph.model)
    inputs = samples_from_files(samples)

    def runs() -> Iterator[Run]:
        return calibration_runs(info, inputs)

    work = STEPS[name]
    if name == "adaround" and rounds_all:
        work = partial(rounding_step, most_bits=ALL_BITS)
    attempt = work(graph, QuantizedGraph.load(Path(quantized)), runs)
    if attempt is None:
        return {"is_done": False, "variant": ""}, ()
    attempt.graph.save(Path(target_model))
    attempt.quantized.save(Path(target))
    return {"is_done": True, "variant": attempt.variant}, ()


def _table() -> Mapping[str, Work]:
    return {"hello": hello, "step": step}


if __name__ == "__main__":
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # imported for nothing
    serve(_table, what="Recovering accuracy")
