"""The steps of recovery, each on a float graph and its quantized form: what it changes, and which
of its variants looks best on the CPU. Whether it is kept is decided elsewhere, on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from edgeloop.tuning.recovery import equalize, ranges
from edgeloop.tuning.recovery.bias import MOST_PASSES, correct_biases
from edgeloop.tuning.recovery.floats import FloatGraph
from edgeloop.tuning.recovery.observe import Run, Runs, output_error, session_of
from edgeloop.tuning.recovery.quantized import QuantizedGraph
from edgeloop.tuning.recovery.rounding import round_layers

if TYPE_CHECKING:
    from onnx import ModelProto

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
    tensors = ranges.chosen_tensors(graph, quantized)
    if not tensors:
        return None
    some = affordable(graph.model, runs, passes=2, most=_MOST_OBSERVED)
    known = ranges.histograms(graph, some, tensors)
    attempts = (
        Attempt(graph, ranges.ranged(graph, quantized, variant, known), variant)
        for variant in ranges.VARIANTS
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
