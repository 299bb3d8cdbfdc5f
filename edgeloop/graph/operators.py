"""Operators: those that Qualcomm's compiler takes, and what to use in place of the others.

The lists are what the compiler (QNN 2.7 through ONNX Runtime) did with small graphs of every
operator, quantized with 8 and 16 bits, and not what is written about it. The page
docs/reference/operators.md has the forms. Some operators are only taken in other words, which
`edgeloop.graph.rewrites` finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from edgeloop.graph.rewrites import LARGEST_RANK, plan_rewrites

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

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
