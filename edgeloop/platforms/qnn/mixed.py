"""Quantized models in which every tensor has the bits that a plan says.

Calibration is done once: the ranges of all tensors are kept, and any number of plans are written
from them. A tensor with 16 bits makes the layers around it compute in 16 bits, and converts what
else they read or give; ONNX Runtime's settings for QNN put these conversions in. The compiler takes
4-bit weights only per channel, and a constant beside a 16-bit tensor only with 16 bits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop.errors import ModelRefused, PlanMisfit
from edgeloop.graph import GraphInfo, TunableTensor, channel_axis, soften_masks, weight_layers
from edgeloop.platforms.base import PROBE
from edgeloop.platforms.batching import calibration_batch, calibration_runs, is_pixels
from edgeloop.platforms.precision import PrecisionPlan
from edgeloop.platforms.qnn.overrides import Overrides, weight_overrides
from edgeloop.platforms.qnn.quantize import (
    LOWEST_MASK,
    activates_moved,
    calibration_reader,
    limited_sessions,
    moved_pixels,
)
from edgeloop.tasks import Samples

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

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
        found = calibrator.compute_data()
    return {
        name: [float(data.range_value[0].item()), float(data.range_value[1].item())]
        for name, data in found.items()
    }


def pixel_inputs(info: GraphInfo, samples: Samples) -> list[str]:
    """Inputs that are given images: 8 bits hold them exactly."""
    given = calibration_batch(info, samples)
    return [one.name for one in info.inputs if is_pixels(given[one.name], one)]


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
        model,
        True,
        False,
        QuantType.QInt8,
        QuantType.QUInt8,
        TensorsData(CalibrationMethod.MinMax, values),
        [],
        [],
        settings.op_types_to_quantize,
        settings.extra_options,
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
        given = {name: named[name] for name in group.members if name in named}
        if len(set(given.values())) > 1:
            shown = " and ".join(map(repr, list(given)[:2]))
            reason = f"the precision file gives {shown} different bits, but they share theirs"
            raise PlanMisfit(reason=reason)
        count = next(iter(given.values()), plan.default.activations)
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
