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

import csv
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgeloop._util.system import thread_limit
from edgeloop.errors import BadInput, ModelFailed, ModelRefused, PlanMisfit
from edgeloop.graph.bits import TunableTensor, channel_axis, weight_layers
from edgeloop.graph.check import soften_masks
from edgeloop.graph.count import count_layers
from edgeloop.graph.info import GraphInfo, Layout
from edgeloop.platforms.base import PROBE
from edgeloop.platforms.batching import calibration_batch, calibration_runs, is_pixels
from edgeloop.platforms.precision import Precision, PrecisionPlan
from edgeloop.tasks import Samples

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


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
    batch = calibration_batch(info, samples)
    images = [one.name for one in info.inputs if is_pixels(batch[one.name], one)]
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
        model=model,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=activations,
        tensors_range=TensorsData(CalibrationMethod.MinMax, ranges),
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=settings.op_types_to_quantize,
        extra_options=settings.extra_options,
    )
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(str(target), False)


def _range(node: NodeProto, ranges: dict[str, Range]) -> Range:
    if node.op_type in _KEEPING and node.input[0] in ranges:
        return ranges[node.input[0]]
    if node.op_type == "Concat":
        input_ranges = [ranges[name] for name in node.input if name in ranges]
        if input_ranges:
            return min(low for low, _ in input_ranges), max(high for _, high in input_ranges)
    high = 4 + 4 / len(ranges)
    return (0.0, high) if node.op_type in _POSITIVE else (-high, high)


# Quantized models in which every tensor has the bits that a plan says.
#
# Calibration is done once: the ranges of all tensors are kept, and any number of plans are written
# from them. A tensor with 16 bits makes the layers around it compute in 16 bits, and converts what
# else they read or give; ONNX Runtime's settings for QNN put these conversions in. The compiler
# takes 4-bit weights only per channel, and a constant beside a 16-bit tensor only with 16 bits.


_WITH_CONSTANTS = frozenset(
    ("Add", "Concat", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub", "Where")
)

Ranges = Mapping[str, tuple[float, float]]


def calibrate(model: ModelProto, info: GraphInfo, samples: Samples) -> dict[str, list[float]]:
    """The smallest and largest value of every tensor; the masks of the model are softened first."""
    from onnx import ModelProto, save_model
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    soften_masks(model.graph, LOWEST_MASK)
    with tempfile.TemporaryDirectory() as name, limited_sessions():
        folder = Path(name)
        copy = ModelProto()  # saving takes the weights out of it
        copy.CopyFrom(model)
        save_model(copy, folder / "model.onnx", save_as_external_data=True)
        calibrator = create_calibrator(
            folder / "model.onnx",
            None,
            augmented_model_path=str(folder / "augmented.onnx"),
            calibrate_method=CalibrationMethod.MinMax,
        )
        calibrator.collect_data(calibration_reader(calibration_runs(info, samples)))
        ranges = calibrator.compute_data()
    return {
        name: [float(data.range_value[0].item()), float(data.range_value[1].item())]
        for name, data in ranges.items()
    }


def pixel_inputs(info: GraphInfo, samples: Samples) -> list[str]:
    """Inputs that are given images: 8 bits hold them exactly."""
    batch = calibration_batch(info, samples)
    return [one.name for one in info.inputs if is_pixels(batch[one.name], one)]


def quantize_plan(
    model: ModelProto,
    ranges: Ranges,
    pixels: Sequence[str],
    tensors: Sequence[TunableTensor],
    plan: PrecisionPlan,
    target: Path,
    outputs: Sequence[str] = (),
) -> list[str]:
    """Write the QDQ model of a plan; `model` is one that `calibrate` has seen. Returns those of the
    further outputs that it has."""
    import numpy as np
    from onnx import load_model, save_model
    from onnxruntime.quantization import QDQQuantizer, QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    bits = spread_bits(plan, tensors, pixels)
    wide = {name for name, count in bits.items() if count == 16}
    narrow = {name for name, count in bits.items() if count == 4}
    overrides: Overrides = {
        **weight_overrides(model),
        **_pixel_overrides(model, pixels, wide),
        **_narrow_weights(model, narrow),
    }
    for name in wide:
        overrides.setdefault(name, [{"quant_type": QuantType.QUInt16}])
    for name in _wide_constants(model, wide):
        overrides[name] = [{"quant_type": QuantType.QUInt16}]
    try:
        settings = get_qnn_qdq_config(
            model,
            None,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            keep_removable_activations=activates_moved(model),
            init_overrides=overrides,
        )
    except ValueError as error:
        raise ModelRefused(reason=f"its tensors cannot have these bits: {error}") from None
    if wide or narrow:
        settings.extra_options["UseQDQContribOps"] = True
    values = {
        name: (np.array(low, np.float32), np.array(high, np.float32))
        for name, (low, high) in ranges.items()
    }
    quantizer = QDQQuantizer(
        model=model,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=TensorsData(CalibrationMethod.MinMax, values),
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=settings.op_types_to_quantize,
        extra_options=settings.extra_options,
    )
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(str(target), False)
    if not outputs:
        return []
    quantized = load_model(target)
    added = add_probes(quantized, outputs)
    save_model(quantized, target)
    return added


def spread_bits(
    plan: PrecisionPlan, tensors: Sequence[TunableTensor], pixels: Sequence[str]
) -> dict[str, int]:
    """The bits of every tensor that can have some, from those that a plan names. Raises PlanMisfit
    where it names others, or two that share their bits with different ones."""
    groups = [tensor for tensor in tensors if tensor.kind == "activation"]
    weights = [tensor.name for tensor in tensors if tensor.kind == "weights"]
    plan.check_tensors([m for group in groups for m in (*group.members, *pixels)], weights)
    named = plan.bits
    bits = {name: named.get(name, plan.default.weights) for name in weights}
    for group in groups:
        named_bits = {name: named[name] for name in group.members if name in named}
        if len(set(named_bits.values())) > 1:
            shown = " and ".join(map(repr, list(named_bits)[:2]))
            reason = f"the precision file gives {shown} different bits, but they share theirs"
            raise PlanMisfit(reason=reason)
        count = next(iter(named_bits.values()), plan.default.activations)
        bits |= dict.fromkeys(group.members, count)
    return bits | {name: named.get(name, 8) for name in pixels}


def add_probes(model: ModelProto, names: Iterable[str]) -> list[str]:
    """Give tensors of a QDQ model as outputs, as they are after quantization. Those that are not
    quantized by themselves are left out."""
    from onnx import TensorProto, helper

    graph = model.graph
    quantizers: dict[str, NodeProto] = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            quantizers.setdefault(node.input[0].removesuffix("_QuantizeLinear_Input"), node)
    added = [name for name in names if name in quantizers]
    for name in added:
        quantizer = quantizers[name]
        probe = f"{name}{PROBE}"
        graph.node.append(
            helper.make_node(
                "DequantizeLinear",
                [quantizer.output[0], *quantizer.input[1:]],
                [probe],
                name=probe,
                domain=quantizer.domain,
            )
        )
        graph.output.append(helper.make_tensor_value_info(probe, TensorProto.FLOAT, None))
    return added


def _pixel_overrides(model: ModelProto, pixels: Sequence[str], wide: set[str]) -> Overrides:
    """Pixels keep their exact scale."""
    import numpy as np
    from onnxruntime.quantization import QuantType

    overrides: Overrides = {}
    for source in pixels:
        is_wide = source in wide
        scale: dict[str, Any] = {
            "quant_type": QuantType.QUInt16 if is_wide else QuantType.QUInt8,
            "scale": np.array(1 / (65535 if is_wide else 255), dtype=np.float32),
            "zero_point": np.array(0, dtype=np.uint16 if is_wide else np.uint8),
        }
        overrides |= {name: [dict(scale)] for name in moved_pixels(model, [source])}
    return overrides


def _narrow_weights(model: ModelProto, narrow: set[str]) -> Overrides:
    from onnxruntime.quantization import QuantType

    layers = weight_layers(model.graph)
    return {
        name: [
            {"quant_type": QuantType.QInt4, "axis": channel_axis(layers[name]), "symmetric": True}
        ]
        for name in sorted(narrow)
    }


def _wide_constants(model: ModelProto, wide: set[str]) -> list[str]:
    """Constants that elementwise layers read beside a tensor with 16 bits, or for one."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [
        name
        for node in model.graph.node
        if node.op_type in _WITH_CONSTANTS and wide & {*node.input, *node.output}
        for name in node.input
        if name in constants
    ]


# How the weights of single operators are quantized: what the compiler takes, found by asking it.
#
# `a8w8-per-channel` and `a16w8` mean signed weights, with a scale per output channel where an
# operator has channels. Convolutions and Gemm take them (a MatMul with constant weights is a Gemm
# by now). A LayerNormalization with signed weights is refused at every precision, and with unsigned
# ones it is taken; unsigned weights of the other normalizations are more accurate.


_UNSIGNED = frozenset(("LayerNormalization", "InstanceNormalization"))

_LARGEST = 127
_SMALLEST_SCALE = 1e-8

Overrides = dict[str, list[dict[str, Any]]]


def weight_overrides(model: ModelProto) -> Overrides:
    """For ONNX Runtime's quantizer, by the name of the weights."""
    from onnxruntime.quantization import QuantType

    weights = {tensor.name for tensor in model.graph.initializer}
    gains = (node.input[1] for node in model.graph.node if node.op_type in _UNSIGNED)
    unsigned = {"quant_type": QuantType.QUInt8, "symmetric": False}
    return {name: [dict(unsigned)] for name in gains if name in weights}


def kernel_scales(model: ModelProto) -> Overrides:
    """A scale per channel for the kernels of convolutions, all channels at once: ONNX Runtime takes
    them one by one, which is most of the time where nothing is calibrated."""
    import numpy as np
    from onnx import numpy_helper
    from onnxruntime.quantization import QuantType

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    kernels = {n.input[1] for n in model.graph.node if n.op_type == "Conv"} & set(weights)
    common = {"quant_type": QuantType.QInt8, "axis": 0, "zero_point": np.array(0, np.int8)}
    overrides: Overrides = {}
    for name in kernels:
        values = numpy_helper.to_array(weights[name])
        largest = np.abs(values).reshape(len(values), -1).max(axis=1)
        scales = np.maximum(largest / _LARGEST, _SMALLEST_SCALE).astype(np.float32)
        overrides[name] = [{**common, "scale": scale} for scale in scales]
    return overrides


# The graph that would be deployed, from a quantized model with float inputs and outputs.
#
# A camera gives bytes, channel last, and programs that read the results want bytes too. So the
# deployed graph takes and gives uint8 (uint16 where activations are 16 bits), images channel last;
# its first and last conversions, which cost more than many a layer, are gone. The compiler's
# estimate is only right for this graph: with float, channel-first ends the error nearly triples.
# Whole numbers have 32 bits, since the chip has no int64. An output that needs no computing, such
# as a table of anchors, is left out.


OutputForm = Literal["logits", "classes"]

_TO_CHANNEL_FIRST = (0, 3, 1, 2)
_TO_CHANNEL_LAST = (0, 2, 3, 1)
_INPUT_SCALE = 1 / 255
_RESHAPING = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")  # values stay as they are


def deployed(
    quantized: ModelProto, layouts: Mapping[str, Layout], output: OutputForm = "logits"
) -> ModelProto:
    """A new model; `layouts` has those of the inputs that are images. `classes` ends it in ArgMax
    over the classes (int32: the chip has no int64)."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(quantized)
    _leave_out_unused(model.graph)
    for source in model.graph.input:
        layout = layouts.get(source.name, "")
        if layout:
            _take_pixels(model.graph, source, layout)
        else:
            _take_tensor(model.graph, source)
    is_channel_first = "NCHW" in layouts.values()
    if output == "classes":
        _give_classes(model.graph, is_channel_first)
        return model
    _leave_out_constants(model.graph)
    for target in model.graph.output:
        _give_tensor(model.graph, target, is_channel_first)
    return model


def _take_pixels(graph: GraphProto, source: ValueInfoProto, layout: Layout) -> None:
    """uint8 pixels with scale 1/255 in front of the input's own QuantizeLinear."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    shape = _shape(source)
    readers = _readers(graph, source.name)
    pixels = _fresh(graph, f"{source.name}_pixels")
    scale, zero = f"{pixels}_scale", f"{pixels}_zero"
    graph.initializer.append(numpy_helper.from_array(np.array(_INPUT_SCALE, np.float32), scale))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.uint8), zero))
    moved = _fresh(graph, f"{source.name}_moved")
    front = [helper.make_node("DequantizeLinear", [pixels, scale, zero], [moved], name=moved)]
    if layout == "NCHW":
        shape = [shape[0], shape[2], shape[3], shape[1]]
        first = _fresh(graph, f"{source.name}_channel_first")
        front.append(
            helper.make_node("Transpose", [moved], [first], name=first, perm=_TO_CHANNEL_FIRST)
        )
        moved = first
    quantizers = [node for node in readers if node.op_type == "QuantizeLinear"]
    _rename_inputs(graph, source.name, moved)
    can_skip = layout == "NHWC" and len(quantizers) == len(readers)
    if can_skip and all(_is_pixel_scale(graph, node) for node in quantizers):
        for node in quantizers:
            _rename_inputs(graph, node.output[0], pixels)
            graph.node.remove(node)
        front = []
    _put_in_front(graph, front)
    source.CopyFrom(helper.make_tensor_value_info(pixels, TensorProto.UINT8, shape))


def _take_tensor(graph: GraphProto, source: ValueInfoProto) -> None:
    """Floats as the bytes that the graph makes of them first; int64 as int32; others as they are,
    and floats that nothing quantizes too."""
    from onnx import TensorProto, helper

    kind = source.type.tensor_type.elem_type
    if kind == TensorProto.INT64:
        narrow, name = _fresh(graph, f"{source.name}_int32"), source.name
        _put_in_front(graph, [helper.make_node("Cast", [narrow], [name], name=narrow, to=kind)])
        shape = _shape(source)
        source.CopyFrom(helper.make_tensor_value_info(narrow, TensorProto.INT32, shape))
    quantizer = _first_quantizer(graph, source.name) if kind == TensorProto.FLOAT else None
    if quantizer is None:
        return
    bytes_name, scales = _fresh(graph, f"{source.name}_bytes"), list(quantizer.input[1:])
    for node in _readers(graph, source.name):
        if node.op_type == "QuantizeLinear" and list(node.input[1:]) == scales:
            _rename_inputs(graph, node.output[0], bytes_name)
            graph.node.remove(node)
    if _readers(graph, source.name):
        maker = helper.make_node(
            "DequantizeLinear",
            [bytes_name, *scales],
            [source.name],
            bytes_name,
            domain=quantizer.domain,
        )
        _put_in_front(graph, [maker])
    kind = _kind_of(graph, scales[1])
    source.CopyFrom(helper.make_tensor_value_info(bytes_name, kind, _shape(source)))


def _leave_out_unused(graph: GraphProto) -> None:
    read = {name for node in graph.node for name in node.input}
    unused = [source for source in graph.input if source.name not in read]
    for source in unused:
        graph.input.remove(source)


def _leave_out_constants(graph: GraphProto) -> None:
    """Outputs that are weights or inputs, moved or not: nothing computes them."""
    makers = _makers(graph)
    idle = (*_RESHAPING, "QuantizeLinear", "DequantizeLinear", "Cast", "Identity")

    def is_computed(name: str) -> bool:
        while (node := makers.get(name)) is not None and node.op_type in idle:
            name = node.input[0]
        return node is not None

    computed = [output for output in graph.output if is_computed(output.name)]
    if not computed:
        raise ModelRefused(reason="it computes nothing: its outputs are constants, or its inputs")
    if len(computed) < len(graph.output):
        del graph.output[:]
        graph.output.extend(computed)


def _give_tensor(graph: GraphProto, output: ValueInfoProto, is_channel_first: bool) -> None:
    """The bytes of an output in place of its floats; int64 as int32."""
    from onnx import TensorProto, helper

    kind, shape = output.type.tensor_type.elem_type, _shape(output)
    if kind == TensorProto.INT64:
        narrow = _fresh(graph, f"{output.name}_int32")
        graph.node.append(
            helper.make_node("Cast", [output.name], [narrow], name=narrow, to=TensorProto.INT32)
        )
        output.CopyFrom(helper.make_tensor_value_info(narrow, TensorProto.INT32, shape))
    last, is_at_end = _last_dequantize(graph, output.name)
    if kind != TensorProto.FLOAT or last is None:
        return
    name = last.input[0]
    moves = is_channel_first and len(shape) == 4
    is_given = name in (other.name for other in graph.output)
    if moves or is_given or not is_at_end:
        moved, name = output.name, _fresh(graph, f"{output.name}_bytes")
        if moves:
            shape = [shape[0], shape[2], shape[3], shape[1]]
            moved = _fresh(graph, f"{output.name}_channel_last")
            move = helper.make_node(
                "Transpose", [output.name], [moved], name=moved, perm=_TO_CHANNEL_LAST
            )
            graph.node.append(move)
        scales = list(last.input[1:])
        graph.node.append(
            helper.make_node(
                "QuantizeLinear", [moved, *scales], [name], name=name, domain=last.domain
            )
        )
    elif not _readers(graph, output.name):
        graph.node.remove(last)
    output.CopyFrom(helper.make_tensor_value_info(name, _kind_of(graph, last.input[2]), shape))


def _give_classes(graph: GraphProto, is_channel_first: bool) -> None:
    """ArgMax of the quantized logits equals that of the float ones; its int64 becomes int32."""
    from onnx import TensorProto, helper

    output = graph.output[0]
    shape = _shape(output)
    axis = 3 if not is_channel_first and len(shape) == 4 else 1
    wide, name = (_fresh(graph, f"{output.name}_{end}") for end in ("int64", "classes"))
    graph.node.append(
        helper.make_node("ArgMax", [output.name], [wide], name=wide, axis=axis, keepdims=0)
    )
    graph.node.append(helper.make_node("Cast", [wide], [name], name=name, to=TensorProto.INT32))
    del shape[axis]
    output.CopyFrom(helper.make_tensor_value_info(name, TensorProto.INT32, shape))


def _is_pixel_scale(graph: GraphProto, quantizer: NodeProto) -> bool:
    """Is the input quantized exactly as pixels are? Then they may go in as they are."""
    from onnx import numpy_helper

    values = {t.name: t for t in graph.initializer if t.name in quantizer.input}
    scale, zero = (numpy_helper.to_array(values[name]) for name in quantizer.input[1:3])
    return zero.dtype.name == "uint8" and not zero.any() and abs(float(scale) * 255 - 1) < 1e-6


def _first_quantizer(graph: GraphProto, name: str) -> NodeProto | None:
    """The QuantizeLinear that reads a tensor, or what only moves its values."""
    names = {name}
    quantizer: NodeProto | None = None
    for node in graph.node:
        if not node.input or node.input[0] not in names:
            continue
        if node.op_type == "QuantizeLinear":
            quantizer = node
            break
        if node.op_type in _RESHAPING:
            names.add(node.output[0])
    return quantizer


def _last_dequantize(graph: GraphProto, name: str) -> tuple[NodeProto | None, bool]:
    """The DequantizeLinear that makes an output, and whether nothing moves values behind it."""
    makers = _makers(graph)
    node = makers.get(name)
    is_at_end = True
    while node is not None and node.op_type in _RESHAPING:
        node, is_at_end = makers.get(node.input[0]), False
    if node is None or node.op_type != "DequantizeLinear":
        return None, False
    return node, is_at_end


def _makers(graph: GraphProto) -> dict[str, NodeProto]:
    return {name: node for node in graph.node for name in node.output}


def _readers(graph: GraphProto, name: str) -> list[NodeProto]:
    return [node for node in graph.node if name in node.input]


def _rename_inputs(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new


def _put_in_front(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    for node in reversed(list(nodes)):
        graph.node.insert(0, node)


def _fresh(graph: GraphProto, name: str) -> str:
    """A name that no tensor and no node has yet: this one, or one with a line behind it."""
    named = (*graph.input, *graph.output, *graph.initializer, *graph.node)
    taken = {one.name for one in named} | {n for node in graph.node for n in node.output}
    while name in taken:
        name += "_"
    return name


def _kind_of(graph: GraphProto, zero_point: str) -> int:
    return next(int(t.data_type) for t in graph.initializer if t.name == zero_point)


def _shape(value: ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


# Graphs that are split between the chip and the CPU: which part runs where, and what that costs.
#
# Only with `--allow-cpu-fallback`. The compiler knows the time of the chip's parts, but not
# that of the CPU's or of the transfers between, so the latency is that of the chip's parts and says
# so.


_CONVERTING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Division:
    """`layers` are (operator, layer) pairs that run on the CPU, `share` is theirs of all MACs."""

    parts: int
    layers: tuple[tuple[str, str], ...]
    share: float = 0.0

    def __str__(self) -> str:
        named = ", ".join(f"{kind} {name!r}" for kind, name in self.layers[:5])
        more = f" and {len(self.layers) - 5} more" if len(self.layers) > 5 else ""
        return (
            f"{named}{more} run on the CPU ({100 * self.share:.1f} % of the MACs), the rest in "
            f"{self.parts} parts on the chip: the latency is that of these parts alone."
        )


def division(session: Any, model: ModelProto, provider: str) -> Division:
    """How a session divides a model; it must have recorded that."""
    import onnx

    parts = session.get_provider_graph_assignment_info()
    layers = tuple(
        (node.op_type, node.name)
        for part in parts
        if part.ep_name != provider
        for node in part.get_nodes()
        if node.op_type not in _CONVERTING
    )
    counted = count_layers(onnx.shape_inference.infer_shapes(model))
    total = sum(layer.macs for layer in counted)
    names = {name for _, name in layers}
    cpu_macs = sum(layer.macs for layer in counted if layer.name in names)
    count = sum(part.ep_name == provider for part in parts)
    return Division(count, layers, cpu_macs / total if total else 0.0)


def events_of(profile: Path, parts: int, added: Sequence[str]) -> Mapping[str, float]:
    """What the compiler says of a graph; `added` are the events that add up over several parts.

    With every part that it compiles it writes all parts so far once more; the last ones are all.
    """
    with profile.open(newline="") as file:
        rows = [(row["Event Identifier"], row["Time"]) for row in csv.DictReader(file)]
    events = {name: float(value) for name, value in rows if name in added}
    if parts <= 1:
        return events
    for name in events:
        values = [float(value) for event, value in rows if event == name]
        if len(values) != parts * (parts + 1) // 2:
            reason = "the compiler gives no estimate of all parts of a graph that is split"
            raise ModelFailed(reason=reason)
        events[name] = sum(values[-parts:])
    return events
