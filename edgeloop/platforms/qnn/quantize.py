"""Quantized models as QDQ graphs, by ONNX Runtime's quantizer with its settings for QNN.

Samples are read one run at a time and only the smallest and largest value of every tensor is kept,
so memory does not grow with the calibration set. An input that is given images is always pixels ÷
255, and its scale is set to exactly that, not to what the calibration images happened to reach.

A quantized graph without calibration, for screening architectures before they are trained.

The compiler's estimate depends mostly on the graph, so scales that are made up give nearly that of
a calibrated model, at once. They matter where a Concat joins tensors and converts those whose scale
differs from its own. Ranges that shrink from layer to layer are a guess, chosen on one U-Net: of
eight others (random weights) five gave the calibrated estimate on both chips tried, two were within
4 %, and one was 13 and 17 % too low. Nothing else may be done with such a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop._util.system import thread_limit
from edgeloop.errors import BadInput
from edgeloop.graph import GraphInfo, Layout, soften_masks
from edgeloop.platforms.batching import calibration_batch, calibration_runs, is_pixels
from edgeloop.platforms.precision import Precision
from edgeloop.platforms.qnn.overrides import kernel_scales, weight_overrides
from edgeloop.tasks import Samples

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto

LOWEST_MASK, _LOWEST_WIDE_MASK = -20.0, -100.0  # exp(-20) is 2e-9


def quantize_model(
    model: ModelProto, info: GraphInfo, samples: Samples, target: Path, precision: Precision
) -> None:
    """Write the QDQ model; `model` is one that `read_graph` has simplified and that was rewritten
    for the compiler, `samples` what its inputs are calibrated with."""
    import numpy as np
    from onnxruntime.quantization import QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    if precision == "fp16":
        reason = "fp16 needs no quantized model: the device runs the float model with kind 'fp16'"
        raise BadInput(reason=reason)
    is_wide = precision == "a16w8"
    soften_masks(model.graph, _LOWEST_WIDE_MASK if is_wide else LOWEST_MASK)
    levels = 65535 if is_wide else 255
    pixels = {
        "quant_type": QuantType.QUInt16 if is_wide else QuantType.QUInt8,
        "scale": np.array(1 / levels, dtype=np.float32),
        "zero_point": np.array(0, dtype=np.uint16 if is_wide else np.uint8),
    }
    given = calibration_batch(info, samples)
    images = [one.name for one in info.inputs if is_pixels(given[one.name], one)]
    settings = get_qnn_qdq_config(
        model,
        calibration_reader(calibration_runs(info, samples)),
        activation_type=QuantType.QUInt16 if is_wide else QuantType.QUInt8,
        weight_type=QuantType.QUInt8 if precision == "a8w8" else QuantType.QInt8,
        per_channel=precision != "a8w8",
        keep_removable_activations=activates_moved(model),
        init_overrides={
            **weight_overrides(model),
            **{name: [dict(pixels)] for name in moved_pixels(model, images)},
        },
    )
    with limited_sessions():
        quantize(model, str(target), settings)


@contextmanager
def limited_sessions() -> Iterator[None]:
    """The calibrator makes its session with the library's defaults, which count all CPUs of the
    machine and bind threads to them, whatever CPUs this process is bound to."""
    import onnxruntime

    plain, threads = onnxruntime.SessionOptions, thread_limit()
    if not threads:
        yield
        return

    def limited() -> Any:
        options = plain()
        options.intra_op_num_threads = threads
        return options

    onnxruntime.SessionOptions = limited
    try:
        yield
    finally:
        onnxruntime.SessionOptions = plain


def activates_moved(model: ModelProto) -> bool:
    """Whether a Relu or Clip follows an operator that only moves values. The quantizer makes it
    part of the scale of the operator before it, and one that moves values cannot change scales."""
    moved = {name for node in model.graph.node if node.op_type in _MOVING for name in node.output}
    activations = (node for node in model.graph.node if node.op_type in ("Relu", "Clip"))
    return any(node.input[0] in moved for node in activations)


def moved_pixels(model: ModelProto, sources: Sequence[str]) -> list[str]:
    """Inputs that are pixels, and those moved about: still with the pixels' scale."""
    names = list(sources)
    for node in model.graph.node:
        if node.op_type == "Transpose" and node.input[0] in names:
            names.append(node.output[0])
    return names


def calibration_reader(runs: Iterator[dict[str, NDArray[Any]]]) -> Any:
    """ONNX Runtime wants an object that gives inputs until it gives None."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(runs, None)

    return Reader()


_MOVING = frozenset(("Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"))
_POSITIVE = frozenset(("Relu", "Clip", "Sigmoid", "Softmax", "HardSigmoid"))
_KEEPING = frozenset(("MaxPool", "Resize", "Transpose", "Reshape", "Flatten", "DepthToSpace"))

Range = tuple[float, float]


def quantize_with_fixed_scales(
    model: ModelProto, layouts: Mapping[str, Layout], target: Path, is_wide: bool = False
) -> None:
    """The same graph as `quantize_model` writes for a8w8-per-channel, or for a16w8 if `is_wide`,
    with ranges made up."""
    import numpy as np
    from onnxruntime.quantization import CalibrationMethod, QDQQuantizer, QuantType
    from onnxruntime.quantization.calibrate import TensorsData
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    activations = QuantType.QUInt16 if is_wide else QuantType.QUInt8
    settings = get_qnn_qdq_config(
        model,
        None,
        activation_type=activations,
        weight_type=QuantType.QInt8,
        per_channel=True,
        keep_removable_activations=activates_moved(model),
        init_overrides=weight_overrides(model),
    )
    settings.extra_options["TensorQuantOverrides"].update(kernel_scales(model))
    guessed: dict[str, Range] = {
        source.name: (0.0, 1.0) if layouts.get(source.name) else (-4.0, 4.0)
        for source in model.graph.input
    }
    for node in model.graph.node:
        for name in node.output:
            guessed[name] = _range(node, guessed)
    ranges = {
        name: (np.array(low, np.float32), np.array(high, np.float32))
        for name, (low, high) in guessed.items()
    }
    quantizer = QDQQuantizer(
        model,
        True,
        False,
        QuantType.QInt8,
        activations,
        TensorsData(CalibrationMethod.MinMax, ranges),
        [],
        [],
        settings.op_types_to_quantize,
        settings.extra_options,
    )
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(str(target), False)


def _range(node: NodeProto, ranges: dict[str, Range]) -> Range:
    if node.op_type in _KEEPING and node.input[0] in ranges:
        return ranges[node.input[0]]
    if node.op_type == "Concat":
        given = [ranges[name] for name in node.input if name in ranges]
        if given:
            return min(low for low, _ in given), max(high for _, high in given)
    high = 4 + 4 / len(ranges)
    return (0.0, high) if node.op_type in _POSITIVE else (-high, high)
