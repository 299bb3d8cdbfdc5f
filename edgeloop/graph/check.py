"""Reads a model's graph, explains in plain words what is wrong with it, and simplifies it.

Compilers accept NaN weights silently and refuse everything else, unknown operators included, with
one generic sentence; so whatever can be known from the graph alone is checked here, first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.errors import UnusableModel
from edgeloop.graph.info import Shape
from edgeloop.graph.read import all_values, load_model, shape_of, shapes_of
from edgeloop.graph.rewrites.apply import plan_rewrites
from edgeloop.graph.rewrites.layout import LARGEST_RANK
from edgeloop.graph.simplify import (
    STANDARD_DOMAINS,
    convert_opset,
    fix_shapes,
    fold_constants,
    infer_types,
    inline_functions,
    is_fixed,
    one_float,
    real_inputs,
    simplify,
)

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


LARGEST_TENSOR = 2**32  # elements: bytes once quantized
_NUMBERS = frozenset(
    [
        "bool",
        "float",
        "float16",
        "bfloat16",
        "double",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    ]
)
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def read_graph(
    path: Path, shapes: Mapping[str, Shape] | None = None, any_operator: bool = False
) -> ModelProto:
    """The checked, simplified model with the shape of every tensor; raises UnusableModel.

    `shapes` gives sizes of inputs that the file leaves open; a free batch is 1 without them.
    `any_operator` reads a graph of which a CPU may run parts.
    """
    model = inline_functions(path.name, load_model(path))
    _check_domains(path.name, model)
    _check_ends(path.name, model.graph)
    fix_shapes(path.name, model.graph, shapes)
    fold_constants(one_float(model))
    if not any_operator:
        _check_operators(path.name, model)
    model = convert_opset(path.name, model)
    simplify(model.graph)
    _infer(path.name, model)
    _check_tensors(path.name, model)
    if not any_operator:
        _check_rewritten(path.name, model)
    _check_convolutions(path.name, model.graph)
    _check_weights(path.name, model.graph)
    return model


def _check_domains(file: str, model: ModelProto) -> None:
    foreign = sorted({n.domain for n in model.graph.node if n.domain not in STANDARD_DOMAINS})
    if foreign:
        kinds = sorted({n.op_type for n in model.graph.node if n.domain in foreign})
        reason = (
            f"it uses operators outside ONNX's own set ({', '.join(foreign)}: "
            f"{', '.join(kinds[:5])}). Export it with standard operators"
        )
        raise UnusableModel(file=file, reason=reason)
    if any(node.op_type in _QUANTIZERS for node in model.graph.node):
        reason = "it is quantized already. Upload the float model: quantizing is done here"
        raise UnusableModel(file=file, reason=reason)


def _check_operators(file: str, model: ModelProto) -> None:
    """After folding: what only computes shapes never reaches the compiler."""
    if unknown := unknown_layers(model):
        raise UnusableModel(file=file, reason=refusal(unknown))


def _check_ends(file: str, graph: GraphProto) -> None:
    for what, values in (("input", real_inputs(graph)), ("output", list(graph.output))):
        if not values:
            raise UnusableModel(file=file, reason=f"it has no {what}")
        for value in values:
            kind = _kind(value)
            if kind not in _NUMBERS and not (what == "output" and kind == "undefined"):
                reason = f"its {what} {value.name!r} is of the type {kind}, and not numbers"
                raise UnusableModel(file=file, reason=reason)


def _kind(value: ValueInfoProto) -> str:
    """The type of a tensor's elements, or what else the value is."""
    from onnx import TensorProto

    form = value.type.WhichOneof("value") or "undefined"
    if form != "tensor_type":
        return form.removesuffix("_type").replace("_", " ")
    return str(TensorProto.DataType.Name(value.type.tensor_type.elem_type)).lower()


def _infer(file: str, model: ModelProto) -> None:
    import onnx

    try:
        infer_types(model)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise UnusableModel(file=file, reason=f"its shapes do not fit together: {first}") from None


def _check_tensors(file: str, model: ModelProto) -> None:
    for output in model.graph.output:
        if not is_fixed(output):
            reason = f"the shape of its output {output.name!r} cannot be known before it runs"
            raise UnusableModel(file=file, reason=reason)
    for value in all_values(model.graph):
        shape = shape_of(value)
        if not is_fixed(value):
            reason = f"the shape of {value.name!r} depends on the data, or cannot be inferred"
            raise UnusableModel(file=file, reason=reason)
        if math.prod(shape) > LARGEST_TENSOR:
            raise UnusableModel(file=file, reason=f"the tensor {value.name!r} is over 4 GB")


def _check_rewritten(file: str, model: ModelProto) -> None:
    """Whether anything is in the compiler's way that no rewrite takes out of it."""
    if untaken := untaken_layers(model):
        raise UnusableModel(file=file, reason=refusal(untaken))


def _check_convolutions(file: str, graph: GraphProto) -> None:
    """ONNX's shape inference does not compare the channels of a kernel with its input's."""
    shapes = shapes_of(graph)
    for node in graph.node:
        if node.op_type != "Conv":
            continue
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        channels, taken = shapes[node.input[0]][1], shapes[node.input[1]][1] * groups
        if channels != taken:
            reason = f"its shapes do not fit together: {node.name!r} takes {taken} channels"
            raise UnusableModel(file=file, reason=f"{reason} and is given {channels}")


def _check_weights(file: str, graph: GraphProto) -> None:
    import numpy as np
    from onnx import numpy_helper

    masks = {tensor.name for tensor in mask_constants(graph)}
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name in masks:
            values = np.maximum(values, 0)  # minus infinity is what a mask may be
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = int(values.size - np.isfinite(values).sum())
            reason = f"{bad} of the {values.size} weights {tensor.name!r} are NaN or infinite"
            raise UnusableModel(file=file, reason=reason)


# Masks of attention: constants so negative that a Softmax turns what they are added to into 0.
#
# Exporters write the lowest float, or minus infinity. Quantized, one such value leaves no steps for
# all others, and every word gets the same attention; so a quantized model has smaller ones.


_LARGEST = -1000.0  # what is above is a number like others
_ON_THE_WAY = frozenset(
    (
        "Add",
        "Mul",
        "Max",
        "Min",
        "Where",
        "Cast",
        "Concat",
        "Gather",
        "Slice",
        "Expand",
        "Tile",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
    )
)


def mask_constants(graph: GraphProto) -> list[TensorProto]:
    """Constants with very low values that reach nothing but Softmax."""
    from onnx import numpy_helper

    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {output.name for output in graph.output}
    masks = []
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        is_low = values.dtype.kind == "f" and values.size and values.min() < _LARGEST
        if is_low and _ends_in_softmax(tensor.name, readers, outputs):
            masks.append(tensor)
    return masks


def soften_masks(graph: GraphProto, lowest: float) -> None:
    """In place: masks no lower than `lowest`, for a graph that will be quantized."""
    import numpy as np
    from onnx import numpy_helper

    for tensor in mask_constants(graph):
        values = numpy_helper.to_array(tensor)
        softer = np.maximum(values, np.array(lowest, values.dtype))
        tensor.CopyFrom(numpy_helper.from_array(softer, tensor.name))


def _ends_in_softmax(
    name: str, readers: Mapping[str, Sequence[NodeProto]], outputs: set[str]
) -> bool:
    waiting, seen = [name], {name}
    while waiting:
        current = waiting.pop()
        if current in outputs or current not in readers:
            return False
        for node in readers[current]:
            if node.op_type in ("Softmax", "LogSoftmax"):
                continue
            if node.op_type not in _ON_THE_WAY:
                return False
            new = set(node.output) - seen
            seen |= new
            waiting.extend(new)
    return True


# Operators: those that Qualcomm's compiler takes, and what to use in place of the others.
#
# The lists are what the compiler (QNN 2.7 through ONNX Runtime) did with small graphs of every
# operator, quantized with 8 and 16 bits, and not what is written about it. The page
# docs/reference/operators.md has the forms. Some operators are only taken in other words, which
# `edgeloop.graph.rewrites` finds.


# Gone before the compiler sees the graph: folded into constants, or dropped.
_FOLDED = "Constant ConstantOfShape Dropout Identity Range Shape Size"

_TAKEN = """
Abs Add And ArgMax ArgMin Asin Atan Attention AveragePool BatchNormalization Cast Ceil Clip Concat
Conv ConvTranspose Cos DepthToSpace Div Elu Equal Exp Expand Flatten Floor Gather GatherElements
GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample GRU HardSigmoid
HardSwish InstanceNormalization LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax
LpNormalization LpPool LRN LSTM MatMul Max MaxPool Mean Min Mish Mul Neg Not Or Pad Pow PRelu
Reciprocal ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Resize RMSNormalization
RoiAlign Round ScatterElements ScatterND Selu Sigmoid Sign Sin Slice Softmax Softplus SpaceToDepth
Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile TopK Transpose Unsqueeze Upsample
Where Xor
"""

# Taken after a rewrite; Erf only as a part of GELU.
_REWRITTEN = """
Acos Celu Cosh CumSum Einsum Erf GlobalLpPool GroupNormalization ReduceL1 ReduceLogSum
ReduceLogSumExp ReduceSumSquare Sinh Softsign Trilu
"""

TAKEN = frozenset((_FOLDED + " " + _TAKEN).split())
REWRITTEN = frozenset(_REWRITTEN.split())

_LOGARITHM = "its formula with Log and Sqrt"
_FIXED = "a mask of fixed size with Where or Mul"
_BEFORE = "the model without it, and compute it before or after the model"
_ALTERNATIVES: Mapping[str, str] = {
    "Acosh": _LOGARITHM,
    "Asinh": _LOGARITHM,
    "Atanh": _LOGARITHM,
    "Col2Im": "ConvTranspose",
    "Compress": _FIXED,
    "DeformConv": "Conv with dilations, or GridSample and Conv",
    "Det": _BEFORE,
    "DFT": "Conv with sines and cosines as its kernel",
    "Erf": "Gelu or Tanh",
    "Hardmax": "ArgMax",
    "If": "an export for one fixed case",
    "IsInf": "Clip",
    "Loop": "an export for a fixed number of steps",
    "MaxRoiPool": "RoiAlign",
    "MaxUnpool": "Resize or ConvTranspose",
    "MeanVarianceNormalization": "LayerNormalization or InstanceNormalization",
    "Mod": "x - y · Floor(x / y)",
    "NonMaxSuppression": "the model without its post-processing, with boxes and scores as outputs",
    "NonZero": _FIXED,
    "OneHot": "Gather of a unit matrix",
    "ReduceProd": "Mul, or Exp of the ReduceSum of Log",
    "ReverseSequence": "Slice with a step of -1",
    "RNN": "LSTM or GRU",
    "Scan": "an export for a fixed number of steps",
    "Shrink": "Relu(x - λ) - Relu(-x - λ)",
    "STFT": "Conv with sines and cosines as its kernel",
    "Unique": _FIXED,
}
_SPECIAL = "its plain form (see docs/reference/operators.md)"


def refusal(layers: Iterable[tuple[str, str]]) -> str:
    """One sentence about (operator, layer) pairs that the compiler does not take: which operators,
    in which layers, and what to use instead; of many, the first three operators."""
    named: dict[str, list[str]] = {}
    for operator, layer in layers:
        named.setdefault(operator, []).append(layer)
    parts = []
    for operator, names in list(named.items())[:3]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        instead = _ALTERNATIVES.get(operator, _SPECIAL)
        parts.append(f"{operator} (layer {names[0]!r}{more}): use {instead} instead")
    rest = f"; and {len(named) - 3} more operators" if len(named) > 3 else ""
    return "the chip's compiler does not take " + "; ".join(parts) + rest


def unknown_layers(model: ModelProto) -> list[tuple[str, str]]:
    """Layers that are taken neither as they are nor after a rewrite."""
    return [_named(node) for node in model.graph.node if node.op_type not in TAKEN | REWRITTEN]


def untaken_layers(model: ModelProto) -> list[tuple[str, str]]:
    """Layers that remain in the way after all rewrites: operators that are not taken, or too many
    sides. The model needs the shape of every tensor."""
    if not _in_the_way(model):
        return []
    return [_named(node) for node in _in_the_way(plan_rewrites(model))]


def _in_the_way(model: ModelProto) -> list[NodeProto]:
    values = (*model.graph.value_info, *model.graph.output)
    large = {v.name for v in values if len(v.type.tensor_type.shape.dim) > LARGEST_RANK}
    return [
        node
        for node in model.graph.node
        if node.op_type not in TAKEN or any(name in large for name in node.output)
    ]


def _named(node: NodeProto) -> tuple[str, str]:
    return node.op_type, node.name or node.output[0]


# Graphs for which a compiler's latency estimate is known to be off, recognised by their shape.


SHUFFLE = (
    "channel shuffle: the estimate of such graphs was up to 46 % too high against published figures"
)
DENSE = (
    "densely concatenated layers: the estimate of such graphs was up to 66 % too low against "
    "published figures"
)
_DENSE_CHAIN = 4
_THROUGH = frozenset(("QuantizeLinear", "DequantizeLinear"))


def estimate_caveats(model: ModelProto) -> list[str]:
    """Reasons to trust a latency estimate of this graph less."""
    graph = model.graph
    caveats = []
    if _shuffles_channels(graph):
        caveats.append(SHUFFLE)
    if _longest_concat_chain(graph) >= _DENSE_CHAIN:
        caveats.append(DENSE)
    return caveats


def _shuffles_channels(graph: GraphProto) -> bool:
    """Reshape to five dimensions, swap two, reshape back."""
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type != "Transpose":
            continue
        order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
        before = _maker(makers, node.input[0])
        if order == [0, 2, 1, 3, 4] and before is not None and before.op_type == "Reshape":
            return True
    return False


def _longest_concat_chain(graph: GraphProto) -> int:
    """How many Concats feed one another directly: dense blocks have many, a U-Net has none."""
    makers = {name: node for node in graph.node for name in node.output}
    depth: dict[str, int] = {}
    for node in graph.node:
        if node.op_type != "Concat":
            continue
        before = [_maker(makers, name) for name in node.input]
        chained = [depth.get(m.output[0], 0) for m in before if m and m.op_type == "Concat"]
        depth[node.output[0]] = 1 + max(chained, default=0)
    return max(depth.values(), default=0)


def _maker(makers: dict[str, NodeProto], name: str) -> NodeProto | None:
    """Who makes this tensor; quantization in between is looked through."""
    node = makers.get(name)
    while node is not None and node.op_type in _THROUGH:
        node = makers.get(node.input[0])
    return node
