"""What a worker process does for tuning: noise of single tensors, and the steps of recovery.

How much of the error of a quantized model comes from one tensor is found without the chip: only
this tensor is rounded, all else stays float, and the outputs are compared. That is quick, and
ranks tensors well; what a whole plan gives is for the simulator to say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop._util.isolation import Answer, Array, WorkerCall
from edgeloop._util.system import thread_limit
from edgeloop.graph.bits import channel_axis, weight_layers
from edgeloop.graph.count import graph_info
from edgeloop.graph.info import GraphInfo, info_from
from edgeloop.graph.read import shapes_of
from edgeloop.platforms import PROBE
from edgeloop.platforms.batching import (
    calibration_runs,
    cut,
    model_inputs,
    run_samples,
    sample_count,
    samples_from_files,
)
from edgeloop.tuning import equalize, rounding
from edgeloop.tuning.equalize import MOST_PASSES, correct_biases
from edgeloop.tuning.quantized import (
    FloatGraph,
    QuantizedGraph,
    Run,
    Runs,
    channel_sqnr,
    output_error,
    session_of,
)
from edgeloop.tuning.rounding import round_layers

if TYPE_CHECKING:
    from onnx import ModelProto

    from edgeloop.tasks import Tensors

_EXACT = ".exact"
_NARROWEST = 1e-4  # the least range that quantizers give a tensor


class NoiseWork:
    """Keeps the model that was used last, and what it gives unchanged."""

    def __init__(self) -> None:
        self._key: object = None
        self._content = b""
        self._expected: Tensors = {}

    def noise(
        self,
        *inputs: Array,
        names: list[str],
        model: str,
        info: Mapping[str, Any],
        activations: Mapping[str, Sequence[float]],
        weights: Mapping[str, int],
    ) -> Answer:
        """The power of the error that rounding these tensors makes, as a share of the outputs'
        own: `activations` are ranges, rounded to 8 bits, `weights` have the bits given."""
        model_info = info_from(info)
        batch = dict(zip(names, inputs, strict=True))
        key = (model, Path(model).stat().st_mtime_ns, sample_count(batch))
        if self._key != key:
            self._key, self._content = key, Path(model).read_bytes()
            self._expected = _outputs(self._content, model_info, batch)
        changed = self._model()
        for name, (low, high) in activations.items():
            round_activation(changed, name, low, high)
        round_weights(changed, weights)
        rounded = _outputs(changed.SerializeToString(), model_info, batch)
        return {"noise": relative_noise(rounded, self._expected)}, ()

    def probe(self, model: str, target: str, names: list[str]) -> Answer:
        """The model with some of its tensors as further outputs; the shape of each."""
        import onnx
        from onnx import helper

        graph = onnx.shape_inference.infer_shapes(onnx.load_model(model))
        shapes = shapes_of(graph.graph)
        for name in names:
            probe = f"{name}{PROBE}"
            graph.graph.node.append(helper.make_node("Identity", [name], [probe], name=probe))
            value = helper.make_tensor_value_info(probe, onnx.TensorProto.FLOAT, shapes[name])
            graph.graph.output.append(value)
        onnx.save_model(graph, target)
        return {"shapes": {name: list(shapes[name]) for name in names}}, ()

    def local(
        self,
        *inputs: Array,
        names: list[str],
        model: str,
        info: Mapping[str, Any],
        given: str,
        tensors: list[str],
    ) -> Answer:
        """How well each tensor of the chip, in the file `given` in the order of `tensors`, agrees
        with what its layer gives in float from the same inputs, those that the chip had: the error
        of this layer alone."""
        import numpy as np
        import onnx

        model_info = info_from(info)
        batch = dict(zip(names, inputs, strict=True))
        with np.load(given) as file:
            chip = {name: file[f"arr_{place}"] for place, name in enumerate(tensors)}
        graph = onnx.shape_inference.infer_shapes(onnx.load_model(model))
        shapes = cut_between_layers(graph, list(chip))
        session = _session(graph.SerializeToString())
        exact: dict[str, list[Array]] = {name: [] for name in shapes}
        for place in range(0, sample_count(batch), model_info.batch):
            feeds = model_inputs(cut(batch, place, place + model_info.batch), model_info)
            chip_inputs = {
                name: chip[name][place : place + model_info.batch].reshape(shape)
                for name, shape in shapes.items()
            }
            outputs = session.run([f"{name}{_EXACT}" for name in shapes], {**feeds, **chip_inputs})
            for name, value in zip(shapes, outputs, strict=True):
                exact[name].append(value)
        agreements = {
            name: channel_sqnr(
                chip[name][: len(values) * model_info.batch].reshape(-1, *values[0].shape[1:]),
                np.concatenate(values),
            )
            for name, values in exact.items()
        }
        return {"sqnr_db": agreements}, ()

    def _model(self) -> ModelProto:
        import onnx

        return onnx.load_model_from_string(self._content)


def round_activation(model: ModelProto, name: str, low: float, high: float) -> None:
    """Everything that reads the tensor, outputs too, gets it as 8 bits hold it."""
    import numpy as np
    from onnx import helper, numpy_helper

    graph = model.graph
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max(high - low, _NARROWEST) / 255
    zero = min(255, max(0, round(-low / scale)))
    ends = (f"{name}.scale", f"{name}.zero")
    graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), ends[0]))
    graph.initializer.append(numpy_helper.from_array(np.array(zero, np.uint8), ends[1]))
    maker = next((node for node in graph.node if name in node.output), None)
    source, result = name, f"{name}.rounded"
    if maker is not None:
        source, result = f"{name}.exact", name
        maker.output[list(maker.output).index(name)] = source
    else:
        for node in graph.node:
            for place, read in enumerate(node.input):
                if read == name:
                    node.input[place] = result
    place = 0 if maker is None else list(graph.node).index(maker) + 1
    middle = f"{name}.bytes"
    pair = (("QuantizeLinear", source, middle), ("DequantizeLinear", middle, result))
    for offset, (kind, first, last) in enumerate(pair):
        node = helper.make_node(kind, [first, *ends], [last], name=f"{name}.{kind}")
        graph.node.insert(place + offset, node)


def round_weights(model: ModelProto, bits: Mapping[str, int]) -> None:
    """With a scale for each output channel, symmetric, as compilers want them."""
    import numpy as np
    from onnx import numpy_helper

    layers = weight_layers(model.graph)
    for tensor in model.graph.initializer:
        if tensor.name not in bits or tensor.name not in layers:
            continue
        values = numpy_helper.to_array(tensor)
        axis = channel_axis(layers[tensor.name])
        others = tuple(place for place in range(values.ndim) if place != axis)
        most = 2 ** (bits[tensor.name] - 1) - 1
        scale = np.maximum(np.abs(values).max(axis=others, keepdims=True) / most, 1e-12)
        rounded = np.clip(np.rint(values / scale), -most - 1, most) * scale
        tensor.CopyFrom(numpy_helper.from_array(rounded.astype(values.dtype), tensor.name))


def cut_between_layers(model: ModelProto, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Each of these tensors becomes an input, and what its layer makes of the others an output;
    their shapes. Inputs of the model are left as they are."""
    from onnx import TensorProto, helper

    graph = model.graph
    shapes = shapes_of(graph)
    makers = {output: node for node in graph.node for output in node.output}
    cut_shapes = {name: tuple(shapes[name]) for name in names if name in makers and name in shapes}
    del graph.output[:]
    for name, shape in cut_shapes.items():
        node, exact = makers[name], f"{name}{_EXACT}"
        node.output[list(node.output).index(name)] = exact
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        graph.output.append(helper.make_tensor_value_info(exact, TensorProto.FLOAT, shape))
    return cut_shapes


def relative_noise(actual: Tensors, expected: Tensors) -> float:
    """The mean over all outputs; one of whole numbers counts the share of different ones."""
    import numpy as np

    shares = []
    for name, true in expected.items():
        if true.dtype.kind != "f":
            shares.append(float(np.mean(actual[name] != true)))
            continue
        power = float(np.sum(np.square(true, dtype=np.float64)))
        error = float(np.sum(np.square(actual[name].astype(np.float64) - true)))
        shares.append(error / power if power else float(error > 0))
    share = sum(shares) / max(1, len(shares))
    return share if math.isfinite(share) else 1e6


def _outputs(content: bytes, info: GraphInfo, batch: Tensors) -> Tensors:
    session = _session(content)
    names = [tensor.name for tensor in info.outputs]
    return run_samples(batch, info, lambda feeds: session.run(names, feeds))


def _session(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_limit()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


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
    ranges = equalize.channel_ranges(graph, some, between)
    attempts = (
        Attempt(*equalize.equalized(graph, quantized, variant, ranges), variant)
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


def hello(warm: bool = False) -> Answer:
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__}, ()


_NOISE = NoiseWork()
CALLS: Mapping[str, WorkerCall] = {
    "hello": hello,
    "noise": _NOISE.noise,
    "probe": _NOISE.probe,
    "local": _NOISE.local,
    "step": step,
}
