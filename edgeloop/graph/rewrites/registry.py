"""The functions of the exact rewrites, and how they are applied to a model one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgeloop.graph.rewrites import channels, convolutions, moves, pointwise
from edgeloop.graph.rewrites import channels as scaling
from edgeloop.graph.rewrites import pointwise as classes
from edgeloop.graph.rewrites.catalog import RewriteStep
from edgeloop.graph.rewrites.editor import GraphEditor
from edgeloop.graph.rewrites.layout import drop_unread
from edgeloop.graph.rewrites.sites import Applied

if TYPE_CHECKING:
    from onnx import ModelProto

FUNCTIONS: Mapping[str, Applied] = {
    "fold-scaling": scaling.fold_before,
    "fold-scaling-border": scaling.fold_with_border,
    "normalize-by-conv": scaling.mix_before,
    "fold-scaling-behind": scaling.fold_behind,
    "plain-operands": scaling.plain_operands,
    "stride-over-blocks": moves.stride_over_blocks,
    "reorder-kernel": moves.reorder_kernel,
    "shuffle-by-conv": moves.shuffle_by_convolution,
    "select-by-conv": moves.reorder_by_convolution,
    "conv-before-resize": convolutions.convolve_before_resize,
    "parts-before-resize": convolutions.convolve_parts_before_resize,
    "pool-before-conv": convolutions.pool_before_convolution,
    "hard-swish": pointwise.fuse_hard_swish,
    "merge-joined": convolutions.merge_joined,
    "merge-added": convolutions.merge_added,
    "merge-consecutive": convolutions.merge_consecutive,
    "pad-channels": channels.pad_channels,
    "end-in-classes": classes.end_in_classes,
}


def apply_steps(model: ModelProto, steps: Sequence[RewriteStep]) -> list[list[str]]:
    """In place, in order; the names of the layers that each step has rewritten. The model must have
    the shape of every tensor."""
    return [_apply(model, step) for step in steps]


def _apply(model: ModelProto, step: RewriteStep) -> list[str]:
    editor = GraphEditor(model)
    layers = FUNCTIONS[step.name](editor, step.layers)
    if layers:
        drop_unread(editor)
        editor.commit()
    return layers
