"""All rewrites of a graph: names, what each does in words, and where its code is.

A rewrite replaces layers without changing what the model computes; `checking.py` proves that with
numbers. The code is imported when a rewrite is applied, so that listing rewrites costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from edgeloop._util.values import suggestion
from edgeloop.errors import BadInput

if TYPE_CHECKING:
    from edgeloop.graph.rewrites.editor import GraphEditor


@dataclass(frozen=True)
class Rewrite:
    """`text` says what becomes what; `code` is the module and function beside this file. One that
    is not `is_equal` changes what the model returns, and is applied only if a user names it."""

    name: str
    text: str
    code: str
    is_equal: bool = True

    @property
    def function(self) -> Callable[..., list[str]]:
        """Takes a `GraphEditor`, rewrites all layers it can and returns their names. Those of
        `SPEED_REWRITES` also take the names of the layers to rewrite."""
        module, _, name = self.code.partition(".")
        function: Callable[..., list[str]] = getattr(
            import_module(f"edgeloop.graph.rewrites.{module}"), name
        )
        return function

    def apply(self, editor: GraphEditor, layers: tuple[str, ...] | None = None) -> list[str]:
        """The names of the layers that were rewritten: of all, or of those given."""
        return self.function(editor) if layers is None else self.function(editor, layers)


@dataclass(frozen=True)
class RewriteStep:
    """A rewrite of some layers, or of all that it can be applied to."""

    name: str
    layers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class OutputComparison:
    """`difference` is the largest one of any output, as a part of that output's spread; for classes
    it is the share of those that differ. `problem` says why a model could not be compared."""

    is_equal: bool
    difference: float
    problem: str = ""


COMPILER_REWRITES: tuple[Rewrite, ...] = (
    Rewrite("cast", "Cast to the same type → dropped", "layout.drop_casts"),
    Rewrite("gelu", "Erf of a GELU → Gelu", "normalization.fuse_gelu"),
    Rewrite(
        "layer-norm",
        "normalization in single steps → LayerNormalization",
        "normalization.fuse_layer_norm",
    ),
    Rewrite("einsum", "Einsum → Transpose, MatMul", "matrices.expand_einsum"),
    Rewrite(
        "gemm", "Gemm with factors or a computed matrix → plain Gemm, MatMul", "matrices.plain_gemm"
    ),
    Rewrite(
        "layer-norm-axes",
        "LayerNormalization over several axes → over one",
        "normalization.flatten_layer_norm",
    ),
    Rewrite(
        "group-norm",
        "GroupNormalization → InstanceNormalization, Mul, Add",
        "normalization.split_group_norm",
    ),
    Rewrite(
        "instance-norm",
        "InstanceNormalization of a volume → of a row",
        "normalization.flatten_instance_norm",
    ),
    Rewrite(
        "batch-norm",
        "BatchNormalization alone → part of a Gemm, Conv by channel, or Mul and Add",
        "normalization.scale_channels",
    ),
    Rewrite(
        "l1-norm", "LpNormalization with p=1 → Abs, ReduceSum, Div", "normalization.expand_l1_norm"
    ),
    Rewrite(
        "reductions",
        "ReduceL1, ReduceSumSquare, ReduceLogSum, ReduceLogSumExp, GlobalLpPool → ReduceSum",
        "matrices.expand_reductions",
    ),
    Rewrite("cumsum", "CumSum → MatMul with a triangle", "matrices.multiply_by_triangle"),
    Rewrite("trilu", "Trilu → Mul with a mask", "matrices.multiply_by_mask"),
    Rewrite(
        "single-operand",
        "Max, Min, Sum or Mean of one tensor → that tensor",
        "matrices.drop_single_operands",
    ),
    Rewrite("power", "Pow → Mul, Sqrt, Reciprocal", "normalization.expand_powers"),
    Rewrite(
        "composed", "Softsign, Celu, Sinh, Cosh, Acos → their formulas", "normalization.compose"
    ),
    Rewrite("gather", "GatherND at constant places → Gather", "layout.gather_by_one_index"),
    Rewrite("copy", "Gather of everything in order → Reshape", "layout.drop_copies"),
    Rewrite("max-pool", "MaxPool of a volume → two of images", "layout.pool_videos_in_two_steps"),
    Rewrite("kernel", "dilated ConvTranspose → one with a spread kernel", "layout.spread_kernels"),
    Rewrite("average-pool", "AveragePool that rounds up → plain", "layout.drop_rounding_up"),
    Rewrite("linear", "MatMul with a constant matrix, Add → Gemm", "matrices.fuse_linear"),
    Rewrite("matmul", "MatMul of many sides → fewer sides", "matrices.flatten_matmul"),
    Rewrite("softmax", "Softmax or LogSoftmax of many sides → fewer", "layout.flatten_softmax"),
    Rewrite("transpose", "Transpose of many sides → fewer", "layout.merge_sides"),
    Rewrite("slice", "Slice or Gather of many sides → fewer", "layout.flatten_slices"),
    Rewrite("rank", "more than five sides → fewer", "layout.lower_ranks"),
)
"""Applied to every model before it is compiled, in this order."""

SPEED_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        "fold-scaling", "normalization in front of a Conv → its weights", "channels.fold_before"
    ),
    Rewrite(
        "fold-scaling-border",
        "normalization in front of a padded Conv → its weights, and a constant map",
        "channels.fold_with_border",
    ),
    Rewrite(
        "normalize-by-conv", "normalization in front of a Conv → 1×1 Conv", "channels.mix_before"
    ),
    Rewrite(
        "fold-scaling-behind",
        "factors and offsets behind a Conv → its weights",
        "channels.fold_behind",
    ),
    Rewrite("plain-operands", "Sub and Div by constants → Add and Mul", "channels.plain_operands"),
    Rewrite(
        "stride-over-blocks",
        "space-to-depth in front of a Conv → Conv with larger strides",
        "moves.stride_over_blocks",
    ),
    Rewrite(
        "reorder-kernel",
        "channel shuffle in front of a Conv → its kernel in that order",
        "moves.reorder_kernel",
    ),
    Rewrite(
        "shuffle-by-conv",
        "channel shuffle → 1×1 Conv of ones and zeros",
        "moves.shuffle_by_convolution",
    ),
    Rewrite(
        "select-by-conv",
        "channels picked in another order → 1×1 Conv of ones and zeros",
        "moves.reorder_by_convolution",
    ),
    Rewrite(
        "conv-before-resize",
        "1×1 Conv behind a Resize → in front of it",
        "convolutions.convolve_before_resize",
    ),
    Rewrite(
        "parts-before-resize",
        "Resize, Concat, 1×1 Conv → 1×1 Convs, Resize, Add",
        "convolutions.convolve_parts_before_resize",
    ),
    Rewrite(
        "pool-before-conv",
        "average pooling behind a 1×1 Conv → in front of it",
        "convolutions.pool_before_convolution",
    ),
    Rewrite("hard-swish", "HardSwish in pieces → HardSwish", "pointwise.fuse_hard_swish"),
    Rewrite(
        "merge-joined", "parallel Convs that are joined → one Conv", "convolutions.merge_joined"
    ),
    Rewrite("merge-added", "Convs that are added → one Conv", "convolutions.merge_added"),
    Rewrite(
        "merge-consecutive",
        "two Convs with nothing between them → one Conv",
        "convolutions.merge_consecutive",
    ),
    Rewrite(
        "pad-channels", "channels → a multiple of 32, filled with zeros", "channels.pad_channels"
    ),
    Rewrite(
        "end-in-classes",
        "scores as the result → the class with the largest score",
        "pointwise.end_in_classes",
        is_equal=False,
    ),
)
"""Tried by `edgeloop advise`, which applies those that make a model faster."""


def find_rewrite(name: str) -> Rewrite:
    """One of `SPEED_REWRITES` by its name; raises BadInput with the nearest one."""
    for rewrite in SPEED_REWRITES:
        if rewrite.name == name:
            return rewrite
    near = suggestion(name, [one.name for one in SPEED_REWRITES], "the rewrites are")
    raise BadInput(reason=f"no such rewrite {name!r}; {near}")
