"""Brings a graph to ONNX's own operators, at an opset that everything downstream knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeloop.errors import UnusableModel
from edgeloop.graph.reading.fold import fold_constants
from edgeloop.graph.reading.inference import infer_types
from edgeloop.graph.reading.load import with_weights_of, without_weights

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto

STANDARD_DOMAINS = frozenset(("", "ai.onnx"))
OLDEST_OPSET = 13  # the first with per-channel QuantizeLinear
_FROM_OLD = 17
NEWEST_OPSET = 21
NEWEST_IR = 10  # of files, not of operators: what belongs to that opset
RUNTIME_OPSET, RUNTIME_IR = 26, 13  # what ONNX Runtime loads at most


def inline_functions(file: str, model: ModelProto) -> ModelProto:
    """Exporters write layers as functions of the model's own; compilers know none of them."""
    from onnx import inliner

    if not model.functions:
        return model
    try:
        light = inliner.inline_local_functions(without_weights(model), convert_version=True)
    except (RuntimeError, ValueError) as error:
        reason = f"its functions cannot be inlined: {str(error).strip().splitlines()[0]}"
        raise UnusableModel(file=file, reason=reason) from None
    return with_weights_of(light, model)


def opset_of(model: ModelProto) -> int:
    """0 where the model names none."""
    return next((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), 0)


def is_newer_than_the_runtime(model: ModelProto) -> bool:
    return opset_of(model) > RUNTIME_OPSET or model.ir_version > RUNTIME_IR


def convert_opset(file: str, model: ModelProto) -> ModelProto:
    """The same function at an opset from OLDEST_OPSET to NEWEST_OPSET, where that is possible."""
    version = opset_of(model)
    if not version:
        raise UnusableModel(file=file, reason="it names no ONNX opset")
    model.ir_version = min(model.ir_version, NEWEST_IR)
    if OLDEST_OPSET <= version <= NEWEST_OPSET:
        return model
    light = without_weights(model)
    try:
        light = _newer(light, version) if version < OLDEST_OPSET else _older(light)
    except (RuntimeError, ValueError):
        if OLDEST_OPSET <= version <= RUNTIME_OPSET:
            return model
        age = "old" if version < OLDEST_OPSET else "new"
        reason = (
            f"its opset {version} is too {age}. Export it with opset {_FROM_OLD} or {_FROM_OLD + 1}"
        )
        raise UnusableModel(file=file, reason=reason) from None
    converted = with_weights_of(light, model)
    fold_constants(converted)  # definitions of operators compute with shapes
    return converted


def _newer(model: ModelProto, version: int) -> ModelProto:
    """ONNX's converter forgets that old operators counted pixels from their corners."""
    from onnx import helper, numpy_helper, version_converter

    resized = {
        node.output[0]: node for node in model.graph.node if node.op_type in ("Resize", "Upsample")
    }
    converted = version_converter.convert_version(model, _FROM_OLD)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in converted.graph.node:
        if version < 11 and node.op_type == "Resize" and node.output[0] in resized:
            before = resized[node.output[0]]
            scales = weights.get(before.input[1]) if len(before.input) > 1 else None
            shrinks = scales is not None and bool((numpy_helper.to_array(scales) < 1).any())
            for name, value in (
                ("coordinate_transformation_mode", "asymmetric"),
                ("nearest_mode", "ceil" if shrinks else "floor"),
            ):
                _set(node, name, helper.make_attribute(name, value))
    return converted


def _set(node: NodeProto, name: str, attribute: AttributeProto) -> None:
    others = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, attribute])


def _older(model: ModelProto) -> ModelProto:
    """Operators that NEWEST_OPSET lacks are written out by their definition."""
    from onnx import defs, inliner, version_converter

    domains = STANDARD_DOMAINS
    version = opset_of(model)
    kinds = {node.op_type for node in model.graph.node if node.domain in domains}
    found = [defs.get_schema(kind, version) for kind in sorted(kinds) if defs.has(kind)]
    new = [("", s.name) for s in found if _first_version(s.name) > NEWEST_OPSET]
    if new:
        _name_types(model)
        model = inliner.inline_selected_functions(
            model, new, exclude=False, inline_schema_functions=True
        )
    return version_converter.convert_version(model, NEWEST_OPSET)


def _first_version(kind: str) -> int:
    from onnx import defs

    return min(s.since_version for s in defs.get_all_schemas_with_history() if s.name == kind)


def _name_types(model: ModelProto) -> None:
    """The inliner wants the type of every tensor, weights included."""
    from onnx import helper

    infer_types(model, strict=False)
    model.graph.value_info.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in model.graph.initializer
    )
