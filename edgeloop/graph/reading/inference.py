"""Types and shapes of all tensors, by ONNX's own inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeloop.graph.reading.load import without_weights

if TYPE_CHECKING:
    from onnx import ModelProto

_LONGEST_SHAPE = 1 << 20


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
        light, check_type=strict, strict_mode=strict, data_prop=not _has_long_tensor(light)
    )
    for name in ("value_info", "output"):
        values = getattr(model.graph, name)
        del values[:]
        values.extend(getattr(inferred.graph, name))


def _has_long_tensor(model: ModelProto) -> bool:
    """Whether it has a tensor that cannot be a shape: where ONNX follows the values of shapes, it
    makes one of every tensor with a single side, however long."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model)
    shapes = (value.type.tensor_type.shape.dim for value in inferred.graph.value_info)
    return any(len(sides) == 1 and sides[0].dim_value > _LONGEST_SHAPE for sides in shapes)
