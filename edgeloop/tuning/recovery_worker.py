"""The steps of recovery in a process of their own: `python -m edgeloop.tuning.recovery_worker
FOLDER`. A step that crashes ONNX Runtime or fills the memory costs that step, not the runner."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop._util.isolation import Answer, Work, serve
from edgeloop.graph.count import graph_info
from edgeloop.platforms import calibration_runs, samples_from_files
from edgeloop.tuning import equalize, rounding
from edgeloop.tuning.equalize import MOST_PASSES, correct_biases
from edgeloop.tuning.quantized import (
    FloatGraph,
    QuantizedGraph,
    Run,
    Runs,
    output_error,
    session_of,
)
from edgeloop.tuning.rounding import round_layers

if TYPE_CHECKING:
    from onnx import ModelProto


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


# The steps of recovery, each on a float graph and its quantized form: what it changes, and which of
# its variants looks best on the CPU. Whether it is kept is decided elsewhere, on the device.


FEW_BITS, ALL_BITS = 4, 8
_FEWEST, _MOST_RUNS, _MOST_OBSERVED = 4, 32, 128
_COMPARED = 16
_SECONDS = 120.0  # of inference, for one step


@dataclass(frozen=True)
class Attempt:
    """What a step made. `graph` computes what the float model computes."""

    graph: FloatGraph
    quantized: QuantizedGraph
    variant: str = ""


Step = Callable[[FloatGraph, QuantizedGraph, Runs], Attempt | None]


def equalize_step(graph: FloatGraph, quantized: QuantizedGraph, runs: Runs) -> Attempt | None:
    pairs = equalize.pairs_of(graph)
    if not pairs:
        return None
    between = [tensor for pair in pairs for tensor in pair.between]
    some = affordable(graph.model, runs, passes=1, most=_MOST_OBSERVED)
    known = equalize.channel_ranges(graph, some, between)
    attempts = (
        Attempt(*equalize.equalized(graph, quantized, variant, known), variant)
        for variant in equalize.VARIANTS
    )
    return _best(attempts, runs)


def ranges_step(graph: FloatGraph, quantized: QuantizedGraph, runs: Runs) -> Attempt | None:
    tensors = rounding.chosen_tensors(graph, quantized)
    if not tensors:
        return None
    some = affordable(graph.model, runs, passes=2, most=_MOST_OBSERVED)
    known = rounding.histograms(graph, some, tensors)
    attempts = (
        Attempt(graph, rounding.ranged(graph, quantized, variant, known), variant)
        for variant in rounding.VARIANTS
    )
    return _best(attempts, runs)


def rounding_step(
    graph: FloatGraph, quantized: QuantizedGraph, runs: Runs, most_bits: int = FEW_BITS
) -> Attempt | None:
    changed = quantized.copy()
    some = affordable(changed.model, runs, passes=len(changed.layers), most=_MOST_RUNS)
    done = round_layers(graph, changed, some, most_bits)
    return Attempt(graph, changed, f"{done} layers") if done else None


def bias_step(graph: FloatGraph, quantized: QuantizedGraph, runs: Runs) -> Attempt | None:
    changed = quantized.copy()
    passes = min(MOST_PASSES, len(changed.layers))
    some = affordable(changed.model, runs, passes, most=_MOST_RUNS)
    done = correct_biases(graph, changed, some)
    return Attempt(graph, changed, f"{done} layers") if done else None


STEPS: Mapping[str, Step] = {
    "equalize": equalize_step,
    "ranges": ranges_step,
    "adaround": rounding_step,
    "bias": bias_step,
}
"""In the order in which they are tried."""


def _best(attempts: Iterator[Attempt], runs: Runs) -> Attempt:
    """The one whose outputs are nearest to the float model's on the CPU."""
    tried = list(attempts)
    some = affordable(tried[0].quantized.model, runs, passes=len(tried), most=_COMPARED)
    return min(tried, key=lambda one: output_error(one.graph.model, one.quantized.model, some))


def affordable(model: ModelProto, runs: Runs, passes: int, most: int) -> Runs:
    """As many runs as so many passes can have within the time of a step; always a few."""
    session = session_of(model, is_exact=True)
    first: Run = next(runs())
    began = time.monotonic()
    session.run(None, dict(first))
    took_s = max(time.monotonic() - began, 1e-4)
    count = max(_FEWEST, min(most, int(_SECONDS / (took_s * max(1, passes)))))
    return lambda: islice(runs(), count)


if __name__ == "__main__":
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # imported for nothing
    serve(_table, what="Recovering accuracy")
