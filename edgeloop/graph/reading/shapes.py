"""Sizes that an exporter left open: compilers want every one of them as a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgeloop.errors import UnusableModel
from edgeloop.graph.info import Shape, shape_text
from edgeloop.graph.reading.given import ONLY_INPUT

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

_IMAGE_SIDE, _OTHER_SIDE = 224, 128  # in examples


def fix_shapes(file: str, graph: GraphProto, shapes: Mapping[str, Shape] | None = None) -> None:
    """Give every input its size, in place: from `shapes`, and 1 for a free batch.

    A size that has a name is the same wherever that name is used, so one input's shape can settle
    another's. Raises UnusableModel where a size stays open, or `shapes` does not fit.
    """
    inputs = real_inputs(graph)
    given = _named(file, inputs, shapes or {})
    unknown = sorted(set(given) - {value.name for value in inputs})
    if unknown:
        names = ", ".join(value.name for value in inputs)
        reason = f"it has no input {unknown[0]!r} to give a shape to; its inputs are {names}"
        raise UnusableModel(file=file, reason=reason)
    sizes: dict[str, int] = {}
    for value in inputs:
        if value.name in given:
            _give(file, value, given[value.name], sizes)
    for name in _batch_names(inputs):
        sizes.setdefault(name, 1)
    for value in inputs:
        _fill(value, sizes)
        if not is_fixed(value):
            raise UnusableModel(file=file, reason=_open_sizes(value))
    for value in graph.output:
        _fill(value, sizes)


def real_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """Without the weights that old exporters list among them."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def shape_of(value: ValueInfoProto) -> Shape:
    """A side that is not known is 0."""
    return tuple(max(side.dim_value, 0) for side in value.type.tensor_type.shape.dim)


def is_fixed(value: ValueInfoProto) -> bool:
    return value.type.tensor_type.HasField("shape") and all(shape_of(value))


def _named(
    file: str, inputs: list[ValueInfoProto], shapes: Mapping[str, Shape]
) -> dict[str, Shape]:
    """A shape without a name is that of the only input."""
    if ONLY_INPUT not in shapes:
        return dict(shapes)
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        example = f"{inputs[0].name}={shape_text(shapes[ONLY_INPUT])}"
        reason = f"its inputs are {names}: say whose shape it is, as in --shape {example}"
        raise UnusableModel(file=file, reason=reason)
    others = {name: shape for name, shape in shapes.items() if name != ONLY_INPUT}
    return {inputs[0].name: _whole(inputs[0], shapes[ONLY_INPUT]), **others}


def _whole(value: ValueInfoProto, shape: Shape) -> Shape:
    """224x224 are the sides of an image: batch and channels are as in the file."""
    sides = shape_of(value)
    if len(shape) != 2 or len(sides) != 4:
        return shape
    batch, first, _, last = sides
    return (batch or 1, *shape, last) if last and not first else (batch or 1, first or 3, *shape)


def _give(file: str, value: ValueInfoProto, shape: Shape, sizes: dict[str, int]) -> None:
    """Write a shape into an input, and what it says of named sizes into `sizes`."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.SetInParent()
        for size in shape:
            tensor.shape.dim.add().dim_value = size
        return
    fits = len(tensor.shape.dim) == len(shape) and all(
        side.dim_value in (0, size) or side.dim_value < 0
        for side, size in zip(tensor.shape.dim, shape, strict=True)
    )
    if not fits:
        reason = (
            f"its input {value.name!r} is {_words(value)}, so it cannot be {shape_text(shape)}: "
            "only sizes that the file leaves open can be given"
        )
        raise UnusableModel(file=file, reason=reason)
    for side, size in zip(tensor.shape.dim, shape, strict=True):
        name = side.dim_param
        if name and sizes.setdefault(name, size) != size:
            reason = f"its size {name!r} cannot be both {sizes[name]} and {size}"
            raise UnusableModel(file=file, reason=reason)
        side.dim_value = size


def _batch_names(inputs: list[ValueInfoProto]) -> set[str]:
    """Names of sizes that come first in a tensor and nowhere else. A lone side is a batch only if
    it is called so: it may as well be a length."""
    first: set[str] = set()
    later: set[str] = set()
    for value in inputs:
        names = [side.dim_param for side in value.type.tensor_type.shape.dim]
        later.update(names[1:])
        if len(names) > 1 or any("batch" in name.lower() for name in names):
            first.update(names[:1])
    return first - later - {""}


def _fill(value: ValueInfoProto, sizes: Mapping[str, int]) -> None:
    sides = value.type.tensor_type.shape.dim
    for index, side in enumerate(sides):
        if side.dim_param in sizes:
            side.dim_value = sizes[side.dim_param]
        elif not side.dim_param and side.dim_value <= 0 and index == 0 and len(sides) > 1:
            side.dim_value = 1


def _open_sizes(value: ValueInfoProto) -> str:
    if not value.type.tensor_type.HasField("shape"):
        return f"its input {value.name!r} has no shape: give it, as in --shape {value.name}=1x128"
    sides = value.type.tensor_type.shape.dim
    names = [side.dim_param or "?" for side in sides if side.dim_value <= 0]
    usual = _IMAGE_SIDE if len(sides) == 4 else _OTHER_SIDE
    example = shape_text(tuple(side or usual for side in shape_of(value)))
    return (
        f"the size of its input {value.name!r} is not fixed ({', '.join(names)}): "
        f"give it, as in --shape {value.name}={example}"
    )


def _words(value: ValueInfoProto) -> str:
    sides = value.type.tensor_type.shape.dim
    return "x".join(str(s.dim_value) if s.dim_value > 0 else s.dim_param or "?" for s in sides)
