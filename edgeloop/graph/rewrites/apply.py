"""Applies rewrites to a model, and checks with numbers that it still computes the same.

The model is run before and after on the same random inputs. A rewrite after which the outputs
differ by more than rounding is not used, and neither is one that cannot be checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeloop._util.system import thread_limit
from edgeloop.graph.rewrites import layout, matrices, normalization
from edgeloop.graph.rewrites import layout as ranks
from edgeloop.graph.rewrites import matrices as reductions
from edgeloop.graph.rewrites import normalization as activations
from edgeloop.graph.rewrites.editor import GraphEditor

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto, TypeProto

_NOTED = "edgeloop.rewrites"
_TOLERANCE = 1e-3  # of the largest value of an output: rounding of deep networks is below it
_SEED = 15


@dataclass(frozen=True)
class Rewrite:
    """`text` says what becomes what, for people."""

    name: str
    text: str
    function: Callable[[GraphEditor], list[str]]


@dataclass(frozen=True)
class AppliedRewrite:
    """What was done to which layers."""

    name: str
    text: str
    layers: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.layers) - 2} more" if len(self.layers) > 2 else ""
        return f"{self.text} ({', '.join(self.layers[:2])}{more})"


REWRITES: tuple[Rewrite, ...] = (
    Rewrite("cast", "Cast to the same type → dropped", layout.drop_casts),
    Rewrite("gelu", "Erf of a GELU → Gelu", activations.fuse_gelu),
    Rewrite(
        "layer-norm",
        "normalization in single steps → LayerNormalization",
        normalization.fuse_layer_norm,
    ),
    Rewrite("einsum", "Einsum → Transpose, MatMul", matrices.expand_einsum),
    Rewrite(
        "gemm", "Gemm with factors or a computed matrix → plain Gemm, MatMul", matrices.plain_gemm
    ),
    Rewrite(
        "layer-norm-axes",
        "LayerNormalization over several axes → over one",
        normalization.flatten_layer_norm,
    ),
    Rewrite(
        "group-norm",
        "GroupNormalization → InstanceNormalization, Mul, Add",
        normalization.split_group_norm,
    ),
    Rewrite(
        "instance-norm",
        "InstanceNormalization of a volume → of a row",
        normalization.flatten_instance_norm,
    ),
    Rewrite(
        "batch-norm",
        "BatchNormalization alone → part of a Gemm, Conv by channel, or Mul and Add",
        normalization.scale_channels,
    ),
    Rewrite(
        "l1-norm", "LpNormalization with p=1 → Abs, ReduceSum, Div", normalization.expand_l1_norm
    ),
    Rewrite(
        "reductions",
        "ReduceL1, ReduceSumSquare, ReduceLogSum, ReduceLogSumExp, GlobalLpPool → ReduceSum",
        reductions.expand_reductions,
    ),
    Rewrite("cumsum", "CumSum → MatMul with a triangle", reductions.multiply_by_triangle),
    Rewrite("trilu", "Trilu → Mul with a mask", reductions.multiply_by_mask),
    Rewrite(
        "single-operand",
        "Max, Min, Sum or Mean of one tensor → that tensor",
        reductions.drop_single_operands,
    ),
    Rewrite("power", "Pow → Mul, Sqrt, Reciprocal", activations.expand_powers),
    Rewrite("composed", "Softsign, Celu, Sinh, Cosh, Acos → their formulas", activations.compose),
    Rewrite("gather", "GatherND at constant places → Gather", layout.gather_by_one_index),
    Rewrite("copy", "Gather of everything in order → Reshape", layout.drop_copies),
    Rewrite("max-pool", "MaxPool of a volume → two of images", layout.pool_videos_in_two_steps),
    Rewrite("kernel", "dilated ConvTranspose → one with a spread kernel", layout.spread_kernels),
    Rewrite("average-pool", "AveragePool that rounds up → plain", layout.drop_rounding_up),
    Rewrite("linear", "MatMul with a constant matrix, Add → Gemm", matrices.fuse_linear),
    Rewrite("matmul", "MatMul of many sides → fewer sides", matrices.flatten_matmul),
    Rewrite("softmax", "Softmax or LogSoftmax of many sides → fewer", ranks.flatten_softmax),
    Rewrite("transpose", "Transpose of many sides → fewer", ranks.merge_sides),
    Rewrite("slice", "Slice or Gather of many sides → fewer", ranks.flatten_slices),
    Rewrite("rank", "more than five sides → fewer", ranks.lower_ranks),
)
ALL = frozenset(rewrite.name for rewrite in REWRITES)
FUSIONS = frozenset(("gelu", "layer-norm", "linear"))


def apply_rewrites(model: ModelProto, wanted: Collection[str] = ALL) -> list[AppliedRewrite]:
    """In place, in a fixed order. The model must have the shape of every tensor."""
    import onnx

    applied, changed = _rewritten(model, wanted)
    if not applied:
        return []
    before = _outputs(model)
    if before is None:
        return []
    if not _agree(before, _outputs(changed)):
        applied, changed = [], onnx.ModelProto()
        changed.CopyFrom(model)
        for rewrite in REWRITES:
            one, trial = _rewritten(changed, {rewrite.name} & set(wanted))
            if one and _agree(before, _outputs(trial)):
                applied, changed = applied + one, trial
    model.CopyFrom(changed)
    _note(model, applied)
    return applied


def plan_rewrites(model: ModelProto, wanted: Collection[str] = ALL) -> ModelProto:
    """The model as it would be, not checked and not in place: to see what would be left."""
    return _rewritten(model, wanted)[1]


def planned_rewrites(model: ModelProto) -> list[AppliedRewrite]:
    """What would be done to a model, not checked and not in place."""
    return _rewritten(model, ALL)[0]


def applied_rewrites(model: ModelProto) -> list[AppliedRewrite]:
    """What was done to a model, which carries it in its metadata."""
    text = next((p.value for p in model.metadata_props if p.key == _NOTED), "[]")
    return [
        AppliedRewrite(item["name"], item["text"], tuple(item["layers"]))
        for item in json.loads(text)
    ]


def rewrite_notes(model: ModelProto) -> list[str]:
    """One sentence about what was done to a model, or none."""
    counts = [f"{item.name} ({len(item.layers)}×)" for item in applied_rewrites(model)]
    return [f"rewritten exactly for the compiler: {', '.join(counts)}."] if counts else []


def _note(model: ModelProto, applied: Iterable[AppliedRewrite]) -> None:
    items = [
        {"name": item.name, "text": item.text, "layers": list(item.layers)} for item in applied
    ]
    model.metadata_props.add(key=_NOTED, value=json.dumps(items))


def _rewritten(
    model: ModelProto, wanted: Collection[str]
) -> tuple[list[AppliedRewrite], ModelProto]:
    """The model is copied when the first rewrite is to be written to it."""
    import onnx

    applied, changed, editor = [], model, GraphEditor(model)
    for rewrite in REWRITES:
        layers = rewrite.function(editor) if rewrite.name in wanted else []
        if not layers:
            continue
        if changed is model:
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            editor = GraphEditor(changed)
            layers = rewrite.function(editor)
        ranks.drop_unread(editor)
        editor.commit()
        editor = GraphEditor(changed)
        applied.append(AppliedRewrite(rewrite.name, rewrite.text, tuple(layers)))
    return applied, changed


def _outputs(model: ModelProto) -> list[NDArray[Any]] | None:
    """Outputs for random inputs; None where the model cannot be run here."""
    import numpy as np

    try:
        import onnxruntime
    except ImportError:
        return None
    dice = np.random.default_rng(_SEED)
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = {
        value.name: _random(dice, value.type)
        for value in model.graph.input
        if value.name not in weights
    }
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = thread_limit()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, feeds))
    except Exception:  # noqa: BLE001 - native code raises what it likes; then nothing is known
        return None


def _random(dice: Any, kind: TypeProto) -> NDArray[Any]:
    """Floats as of pixels, from 0 to 1; whole numbers that any table of tokens has."""
    from onnx import helper

    tensor = kind.tensor_type
    shape = [side.dim_value for side in tensor.shape.dim]
    numbers = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    values: NDArray[Any] = dice.random(shape) if numbers.kind == "f" else dice.integers(0, 2, shape)
    return values.astype(numbers)


def _agree(before: list[NDArray[Any]], after: list[NDArray[Any]] | None) -> bool:
    import numpy as np

    if after is None:
        return False
    for one, other in zip(before, after, strict=True):
        if one.shape != other.shape:
            return False
        first, second = one.astype(np.float64), other.astype(np.float64)
        places = np.isfinite(first)
        if not np.array_equal(places, np.isfinite(second)):
            return False
        if one.dtype.kind != "f":
            if np.mean(first != second) > _TOLERANCE:
                return False
            continue
        largest = np.abs(first[places]).max(initial=0)
        if np.abs(first - second)[places].max(initial=0) > _TOLERANCE * largest + 1e-6:
            return False
    return True
