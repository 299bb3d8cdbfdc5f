"""Computes what is constant in a graph: exporters write arithmetic where compilers want numbers.

`Pad` and `Resize` of older opsets get their amounts from chains of Shape, Gather, Cast and Concat
that give the same numbers for every input of a fixed size. One pass in the order of the graph
infers the type of each tensor and computes every node whose inputs are known, however long the
chain is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from edgeloop.graph.reading.branches import take_known_branches

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, TypeProto

LARGEST_CONSTANT = 1 << 22  # elements: beyond, a folded tensor costs more than computing it
_LARGEST_AMOUNTS = 1 << 12  # elements of a shape, of pads, of scales: what decides other shapes
_LARGEST_WORK = 1 << 28  # multiplications of a product of matrices
_LARGEST_SLOW = 1 << 14  # elements of what the reference computes one by one
_LEAST_TOTAL, _TOTAL_SHARE = 1 << 24, 4  # elements of all results together, and per weight
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_CODE = ("If", "Loop", "Scan", "SequenceMap", "RegexFullMatch", "ImageDecoder", "TfIdfVectorizer")
_NEVER = frozenset(
    ("Bernoulli", "Multinomial", *_RANDOM, *_CODE, "Identity")  # shared weights stay shared
)
_PRODUCTS = frozenset(("MatMul", "Gemm"))
# Those whose work grows with their operands and results, and no faster.
_QUICK_NAMES = (
    "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization BitShift "
    "BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Concat Constant "
    "ConstantOfShape Cos Cosh CumSum DepthToSpace DequantizeLinear Div Dropout Elu Equal Erf Exp "
    "Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual "
    "HardSigmoid IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Max Mean "
    "Min Mod Mul Neg Not OneHot Or PRelu Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu "
    "Reshape Round Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign "
    "SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh Tile Transpose Trilu Unsqueeze Where "
    "Xor"
)
_QUICK = frozenset(_QUICK_NAMES.split())


def fold_constants(model: ModelProto) -> None:
    """In place. Nodes that cannot be computed now stay as they are."""
    _fold(model)
    while take_known_branches(model.graph):
        _fold(model)


def _fold(model: ModelProto) -> None:
    graph = model.graph
    folding = _Folding(model)
    kept = [node for node in graph.node if not folding.computes(node)]
    if len(kept) == len(graph.node):
        return
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in _names_read(node)}
    graph.initializer.extend(t for name, t in folding.computed.items() if name in used)


class _Folding:
    """What is known so far, from the first node to the last."""

    def __init__(self, model: ModelProto) -> None:
        graph = model.graph
        self._opsets = list(model.opset_import)
        self._version = {opset.domain: opset.version for opset in model.opset_import}
        self._outputs = {value.name for value in graph.output}
        self._constants: dict[str, TensorProto] = {t.name: t for t in graph.initializer}
        self._types: dict[str, TypeProto] = {value.name: value.type for value in graph.input}
        self._types |= {name: _type_of(t) for name, t in self._constants.items()}
        self.computed: dict[str, TensorProto] = {}
        weights = sum(math.prod(t.dims) for t in graph.initializer)
        self._left = _LEAST_TOTAL + _TOTAL_SHARE * weights

    def computes(self, node: NodeProto) -> bool:
        """Whether the node's outputs are constants now, so that it can go."""
        types = self._inferred(node)
        self._types |= types
        if node.op_type == "Identity" and node.input[0] in self._constants:
            self._constants[node.output[0]] = self._constants[node.input[0]]
        is_foldable = (
            not self._outputs.intersection(node.output)
            and node.op_type not in _NEVER
            and self._is_little_work(node, [types.get(name) for name in node.output if name])
        )
        found = self._values(node) if is_foldable else None
        if found is None:
            return False
        self._left -= sum(math.prod(tensor.dims) for tensor in found.values())
        self.computed |= found
        self._constants |= found
        return True

    def _is_little_work(self, node: NodeProto, results: list[TypeProto | None]) -> bool:
        """Before anything is allocated: by the sizes of all operands and results."""
        shapes = [_sides(kind) if kind is not None else None for kind in results]
        made = [math.prod(shape) for shape in shapes if shape is not None]
        if len(made) < len(shapes) or sum(made) > min(LARGEST_CONSTANT, self._left):
            return False
        if node.op_type in _QUICK:
            return True
        read = [
            math.prod(self._constants[name].dims) for name in node.input if name in self._constants
        ]
        if node.op_type in _PRODUCTS and len(read) >= 2:  # n·k, k·m and n·m
            return bool(math.isqrt(read[0] * read[1] * sum(made)) <= _LARGEST_WORK)
        return bool(sum(read) + sum(made) <= _LARGEST_SLOW)

    def _values(self, node: NodeProto) -> dict[str, TensorProto] | None:
        from onnx import numpy_helper

        if node.op_type == "Shape" and node.input[0] in self._types:
            values = [_shape_asked(node, _sides(self._types[node.input[0]]))]
        elif all(not name or name in self._constants for name in node.input):
            values = self._evaluated(node)
        else:
            return None
        if len(values) != len(node.output) or any(value is None for value in values):
            return None
        pairs = zip(node.output, values, strict=True)
        return {name: numpy_helper.from_array(value, name) for name, value in pairs}

    def _evaluated(self, node: NodeProto) -> list[Any]:
        import numpy as np
        from onnx import helper, numpy_helper
        from onnx.reference import ReferenceEvaluator

        given = [name for name in dict.fromkeys(node.input) if name]
        inputs = [helper.make_value_info(name, self._types[name]) for name in given]
        outputs = [helper.make_value_info(name, self._types[name]) for name in node.output]
        graph = helper.make_graph([node], "constant", inputs, outputs)
        try:
            values = {name: numpy_helper.to_array(self._constants[name]) for name in given}
            evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=self._opsets))
            return [np.asarray(value) for value in evaluator.run(None, values)]
        except Exception:  # noqa: BLE001 - it stays in the graph, for the compiler to judge
            return []

    def _inferred(self, node: NodeProto) -> dict[str, TypeProto]:
        """The types of its outputs; empty where ONNX cannot tell."""
        import onnx
        from onnx import defs, shape_inference

        given = [name for name in node.input if name]
        if any(name not in self._types for name in given):
            return {}
        amounts = {
            name: self._constants[name]
            for name in given
            if name in self._constants and math.prod(self._constants[name].dims) <= _LARGEST_AMOUNTS
        }
        try:
            schema = defs.get_schema(node.op_type, self._version.get(node.domain, 1), node.domain)
            return shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self._types[name] for name in given},
                amounts,
                opset_imports=self._opsets,
            )
        except (defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            return {}


def _shape_asked(node: NodeProto, sides: tuple[int, ...] | None) -> Any:
    """What a Shape node gives: all sides of its input, or those from `start` to `end`."""
    import numpy as np

    if sides is None:
        return None
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return np.array(sides[bounds.get("start", 0) : bounds.get("end", len(sides))], np.int64)


def _sides(kind: TypeProto) -> tuple[int, ...] | None:
    """The shape; None unless every side is known."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return None
    sides = tensor.shape.dim
    if not all(side.HasField("dim_value") for side in sides):
        return None
    return tuple(side.dim_value for side in sides)


def _type_of(tensor: TensorProto) -> TypeProto:
    from onnx import helper

    return helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))


def _names_read(node: NodeProto) -> Iterable[str]:
    """Names that a node reads, those inside of its sub-graphs too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*attribute.graphs, attribute.g):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _names_read(inner)
