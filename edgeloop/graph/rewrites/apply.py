"""Applies rewrites to a model; a rewrite is kept only if the model still computes the same.

A rewrite after which outputs differ by more than rounding is not used, and neither is one that
cannot be checked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.graph.rewrites.checking import compare_outputs
from edgeloop.graph.rewrites.editor import GraphEditor
from edgeloop.graph.rewrites.layout import drop_unread
from edgeloop.graph.rewrites.registry import COMPILER_REWRITES, Rewrite, RewriteStep, find_rewrite

if TYPE_CHECKING:
    from onnx import ModelProto

_NOTED = "edgeloop.rewrites"


@dataclass(frozen=True)
class AppliedRewrite:
    """What was done to which layers."""

    name: str
    text: str
    layers: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.layers) - 2} more" if len(self.layers) > 2 else ""
        return f"{self.text} ({', '.join(self.layers[:2])}{more})"


ALL = frozenset(rewrite.name for rewrite in COMPILER_REWRITES)
FUSIONS = frozenset(("gelu", "layer-norm", "linear"))


def apply_rewrites(model: ModelProto, names: Collection[str] = ALL) -> list[AppliedRewrite]:
    """In place, in a fixed order. The model must have the shape of every tensor."""

    applied, changed = _rewritten(model, names)
    if not applied:
        return []
    if not compare_outputs(model, changed).is_equal:
        if compare_outputs(model, model).problem:
            return []  # it cannot be run on this machine, so no rewrite of it can be checked
        applied, changed = _rewritten_one_by_one(model, names)
    model.CopyFrom(changed)
    _note(model, applied)
    return applied


def apply_steps(model: ModelProto, steps: Sequence[RewriteStep]) -> list[list[str]]:
    """In place, in order and unchecked; the names of the layers that each step has rewritten. The
    model must have the shape of every tensor."""
    return [_applied(model, find_rewrite(step.name), step.layers) for step in steps]


def _applied(model: ModelProto, rewrite: Rewrite, layers: tuple[str, ...] | None) -> list[str]:
    editor = GraphEditor(model)
    rewritten = rewrite.apply(editor, layers)
    if rewritten:
        drop_unread(editor)
        editor.commit()
    return rewritten


def plan_rewrites(model: ModelProto, names: Collection[str] = ALL) -> ModelProto:
    """The model as it would be, not checked and not in place: to see what would be left."""
    return _rewritten(model, names)[1]


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
    model: ModelProto, names: Collection[str]
) -> tuple[list[AppliedRewrite], ModelProto]:
    """What was done, and the changed model: a copy, unless nothing was done."""
    import onnx

    applied, changed, editor = [], model, GraphEditor(model)
    for rewrite in COMPILER_REWRITES:
        layers = rewrite.apply(editor) if rewrite.name in names else []
        if not layers:
            continue
        if changed is model:  # copying a large model takes long, and most need no rewrite
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            editor = GraphEditor(changed)
            layers = rewrite.apply(editor)
        drop_unread(editor)
        editor.commit()
        editor = GraphEditor(changed)
        applied.append(AppliedRewrite(rewrite.name, rewrite.text, tuple(layers)))
    return applied, changed


def _rewritten_one_by_one(
    model: ModelProto, names: Collection[str]
) -> tuple[list[AppliedRewrite], ModelProto]:
    """The same without those after which the model computes something else."""
    applied, changed = list[AppliedRewrite](), model
    for name in (one.name for one in COMPILER_REWRITES if one.name in names):
        more, trial = _rewritten(changed, {name})
        if more and compare_outputs(model, trial).is_equal:
            applied, changed = applied + more, trial
    return applied, changed
