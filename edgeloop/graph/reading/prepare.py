"""A model's file as every toolchain and runtime takes it: fixed sizes, float32."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.errors import BadModel, LocalFileError
from edgeloop.graph.info import Shape
from edgeloop.graph.reading.external_data import external_files
from edgeloop.graph.reading.floats import has_other_floats, pass_empty_casts, to_float32
from edgeloop.graph.reading.fold import fold_constants
from edgeloop.graph.reading.inference import infer_types
from edgeloop.graph.reading.load import load_model, save_model
from edgeloop.graph.reading.shapes import fix_shapes, is_fixed, real_inputs
from edgeloop.graph.reading.standard import (
    convert_opset,
    inline_functions,
    is_newer_than_the_runtime,
)

if TYPE_CHECKING:
    from onnx import ModelProto


def needs_preparing(path: Path, shapes: Mapping[str, Shape] | None) -> bool:
    """Whether `prepare_model` would have something to do; quick, and without native code. A file
    that cannot be read needs none: whoever reads it says why."""
    try:
        model = load_model(path, with_weights=False)
    except (BadModel, LocalFileError):
        return False
    return bool(shapes) or _is_open(model) or _changes(model)


def prepare_model(path: Path, shapes: Mapping[str, Shape] | None, folder: Path) -> Path:
    """A copy in `folder` with the file's name that computes the same, or `path` itself if it needs
    no change. Raises UnusableModel where a size stays open, or `shapes` does not fit."""
    model = load_model(path, with_weights=False)
    converts = _changes(model)
    if not converts and not _is_open(model) and not shapes:
        return path
    fix_shapes(path.name, model.graph, shapes)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / path.name
    if converts:
        model = load_model(path)
        fix_shapes(path.name, model.graph, shapes)
        model = one_float(inline_functions(path.name, model))
        if is_newer_than_the_runtime(model):
            model = convert_opset(path.name, model)
        save_model(model, target)
        return target
    for location, file in external_files(path, model).items():
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / location)
    target.write_bytes(model.SerializeToString())
    return target


def one_float(model: ModelProto) -> ModelProto:
    """In place, if the model has other floats than float32. What is constant is computed before, in
    the types that it was written in: sizes may depend on it."""
    if has_other_floats(model):
        fold_constants(model)
        to_float32(model)
        infer_types(model, strict=False)
        pass_empty_casts(model.graph)
        del model.graph.value_info[:]
    return model


def _changes(model: ModelProto) -> bool:
    """Whether more than its inputs' sizes has to change."""
    return has_other_floats(model) or is_newer_than_the_runtime(model)


def _is_open(model: ModelProto) -> bool:
    return not all(is_fixed(value) for value in real_inputs(model.graph))
