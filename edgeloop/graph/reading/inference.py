"""Types and shapes of all tensors, by ONNX's own inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeloop.graph.reading.load import without_weights

if TYPE_CHECKING:
    from onnx import ModelProto


def infer_types(model: ModelProto, strict: bool = True) -> None:
    """In place. From the graph itself: what is written in the file may be wrong or missing.

    Raises InferenceError where shapes do not fit together; if not `strict`, they stay unknown.
    """
    import onnx

    light = without_weights(model)
    del light.graph.value_info[:]
    for output in light.graph.output:
        output.type.tensor_type.ClearField("shape")
    for node in light.graph.node:
        if node.op_type == "GroupNormalization":  # ONNX infers nothing behind it; this is like it
            node.op_type = "InstanceNormalization"
    inferred = onnx.shape_inference.infer_shapes(
        light, check_type=strict, strict_mode=strict, data_prop=True
    )
    for name in ("value_info", "output"):
        values = getattr(model.graph, name)
        del values[:]
        values.extend(getattr(inferred.graph, name))
