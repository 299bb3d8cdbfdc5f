"""Brings a graph to ONNX's own operators, at an opset that everything downstream knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeloop.errors import UnusableModel
from edgeloop.graph.reading.load import with_weights_of, without_weights

if TYPE_CHECKING:
    from onnx import ModelProto

STANDARD_DOMAINS = frozenset(("", "ai.onnx"))


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
