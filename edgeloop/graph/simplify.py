"""Simplifies a graph for compilers: removes what exporters leave behind.

Constants as nodes, weights shared through Identity or listed as inputs, batch norms beside their
convolution, zeros around an image as a layer of their own, nodes without a name, class maps of 64
bits: compilers refuse each of them or quantize it badly, and none of them is necessary.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop.errors import UnusableModel
from edgeloop.graph.info import ONLY_INPUT, Shape, shape_text
from edgeloop.graph.read import (
    all_tensors,
    external_files,
    load_model,
    save_model,
    shape_of,
    with_weights_of,
    without_weights,
)

if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        GraphProto,
        ModelProto,
        NodeProto,
        TensorProto,
        TypeProto,
        ValueInfoProto,
    )


def simplify(graph: GraphProto) -> None:
    """In place. The model computes the same as before, except for int32 instead of int64."""
    _constants_to_initializers(graph)
    _drop_identities(graph)
    _fold_batch_norms(graph)
    _fold_pads(graph)
    _separate_shared_biases(graph)
    weights = {tensor.name for tensor in graph.initializer}
    real = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(real)
    _drop_unused_weights(graph)
    _name_nodes(graph)
    _narrow_output(graph)


def _constants_to_initializers(graph: GraphProto) -> None:
    computing: list[NodeProto] = []
    for node in graph.node:
        tensor = _constant(node) if node.op_type == "Constant" else None
        if tensor is None:
            computing.append(node)
            continue
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    _replace_nodes(graph, computing)


def _constant(node: NodeProto) -> TensorProto | None:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.name == "value":
            copy = onnx.TensorProto()
            copy.CopyFrom(value)
            return copy
        if attribute.name in ("value_float", "value_floats"):
            return numpy_helper.from_array(np.asarray(value, dtype=np.float32))
        if attribute.name in ("value_int", "value_ints"):
            return numpy_helper.from_array(np.asarray(value, dtype=np.int64))
    return None


def _drop_identities(graph: GraphProto) -> None:
    outputs = {value.name for value in graph.output}
    renamed: dict[str, str] = {}
    remaining: list[NodeProto] = []
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        passes = node.op_type == "Identity" or (node.op_type == "Dropout" and len(node.output) == 1)
        if passes and node.output[0] not in outputs:
            renamed[node.output[0]] = node.input[0]
        else:
            remaining.append(node)
    _replace_nodes(graph, remaining)


def _fold_batch_norms(graph: GraphProto) -> None:
    """A batch norm behind a convolution becomes part of its weights: one rounding less."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    makers = {node.output[0]: node for node in graph.node if node.op_type == "Conv"}
    readers = Counter(name for node in graph.node for name in node.input)
    ends = {value.name for value in graph.output}
    remaining: list[NodeProto] = []
    for node in graph.node:
        conv = makers.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        foldable = (
            conv is not None
            and len(node.output) == 1
            and readers[conv.output[0]] == 1
            and conv.output[0] not in ends
            and all(name in weights for name in (*conv.input[1:], *node.input[1:]))
        )
        if conv is not None and foldable:
            _fold(graph, conv, node, weights)
        else:
            remaining.append(node)
    _replace_nodes(graph, remaining)


def _fold(
    graph: GraphProto, conv: NodeProto, norm: NodeProto, weights: dict[str, TensorProto]
) -> None:
    import numpy as np
    from onnx import numpy_helper

    kernel, *rest = (numpy_helper.to_array(weights[name]) for name in conv.input[1:])
    gain, shift, mean, variance = (numpy_helper.to_array(weights[n]) for n in norm.input[1:])
    epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
    factor = gain / np.sqrt(variance + epsilon)
    bias = (rest[0] if rest else 0) - mean
    names = f"{norm.output[0]}_kernel", f"{norm.output[0]}_bias"
    folded = kernel * factor.reshape(-1, *[1] * (kernel.ndim - 1)), bias * factor + shift
    for name, values in zip(names, folded, strict=True):
        graph.initializer.append(numpy_helper.from_array(values.astype(kernel.dtype), name))
    del conv.input[1:]
    conv.input.extend(names)
    conv.output[0] = norm.output[0]


def _fold_pads(graph: GraphProto) -> None:
    """Zeros put around an image for convolutions alone are padding of those convolutions."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    ends = {value.name for value in graph.output}
    gone: set[str] = set()
    for pad in [node for node in graph.node if node.op_type == "Pad"]:
        name, added = pad.output[0], _zeros_around(pad, weights)
        readers = [node for node in graph.node if name in node.input]
        if added is None or name in ends or not all(_is_padded(node, name) for node in readers):
            continue
        for conv in readers:
            _pad(conv, added)
            conv.input[0] = pad.input[0]
        gone.add(name)
    if gone:
        _replace_nodes(graph, [node for node in graph.node if node.output[0] not in gone])


def _is_padded(node: NodeProto, name: str) -> bool:
    """Whether it is a convolution of this image that says its padding itself."""
    auto = next((a.s for a in node.attribute if a.name == "auto_pad"), b"NOTSET")
    return node.op_type == "Conv" and node.input[0] == name and auto == b"NOTSET"


def _pad(conv: NodeProto, added: list[int]) -> None:
    from onnx import helper

    pads = next((list(a.ints) for a in conv.attribute if a.name == "pads"), [0] * len(added))
    rest = [attribute for attribute in conv.attribute if attribute.name != "pads"]
    both = [a + b for a, b in zip(added, pads, strict=True)]
    del conv.attribute[:]
    conv.attribute.extend([*rest, helper.make_attribute("pads", both)])


def _zeros_around(pad: NodeProto, weights: dict[str, TensorProto]) -> list[int] | None:
    """How many before each side of the image and then how many behind, if it adds zeros there and
    nothing else."""
    from onnx import numpy_helper

    mode = next((a.s for a in pad.attribute if a.name == "mode"), b"constant")
    names = [name for name in pad.input[1:] if name]
    if mode != b"constant" or not names or not all(name in weights for name in names):
        return None
    amounts, *others = (numpy_helper.to_array(weights[name]) for name in names)
    values = [int(amount) for amount in amounts]
    before, behind = values[: len(values) // 2], values[len(values) // 2 :]
    is_plain = min(values, default=-1) >= 0 and not any((*before[:2], *behind[:2]))
    if not is_plain or len(pad.input) > 3 or any(other.any() for other in others):
        return None
    return before[2:] + behind[2:]


def _separate_shared_biases(graph: GraphProto) -> None:
    """A bias gets the scale of its own convolution, so two convolutions cannot share one."""
    import onnx

    weights = {tensor.name: tensor for tensor in graph.initializer}
    seen: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.input) < 3:
            continue
        name = node.input[2]
        if name in weights and seen[name]:
            copy = onnx.TensorProto()
            copy.CopyFrom(weights[name])
            copy.name = f"{name}_{seen[name]}"
            graph.initializer.append(copy)
            node.input[2] = copy.name
        seen[name] += 1


def _name_nodes(graph: GraphProto) -> None:
    used: set[str] = set()
    for number, node in enumerate(graph.node):
        if not node.name or node.name in used:
            node.name = f"{node.op_type}_{number}"
        used.add(node.name)


def _narrow_output(graph: GraphProto) -> None:
    """A graph that ends in int64 compiles and then fails on the chip: it ends in int32 instead."""
    from onnx import TensorProto, helper

    for output in graph.output:
        if output.type.tensor_type.elem_type != TensorProto.INT64:
            continue
        wide = f"{output.name}_int64"
        for node in graph.node:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name == output.name:
                        names[index] = wide
        cast = helper.make_node("Cast", [wide], [output.name], name=wide, to=TensorProto.INT32)
        graph.node.append(cast)
        output.type.tensor_type.elem_type = TensorProto.INT32


def _drop_unused_weights(graph: GraphProto) -> None:
    used = {name for node in graph.node for name in node.input}
    used |= {value.name for value in graph.output}
    used_tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    if len(used_tensors) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(used_tensors)


def _replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    del graph.node[:]
    graph.node.extend(nodes)


# A model's file as every toolchain and runtime takes it: fixed sizes, float32.


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


# Sizes that an exporter left open: compilers want every one of them as a number.


_IMAGE_SIDE, _OTHER_SIDE = 224, 128  # in examples
_NO_NAMES = ("?", "-1", "*", "none")  # what exporters write for a size that has no name


def fix_shapes(file: str, graph: GraphProto, shapes: Mapping[str, Shape] | None = None) -> None:
    """Give every input its size, in place: from `shapes`, and 1 for a free batch.

    A size that has a name is the same wherever that name is used, so one input's shape can settle
    another's. Raises UnusableModel where a size stays open, or `shapes` does not fit.
    """
    _clear_placeholders(graph)
    inputs = real_inputs(graph)
    named_shapes = _named(file, inputs, shapes or {})
    unknown = sorted(set(named_shapes) - {value.name for value in inputs})
    if unknown:
        names = ", ".join(value.name for value in inputs)
        reason = f"it has no input {unknown[0]!r} to give a shape to; its inputs are {names}"
        raise UnusableModel(file=file, reason=reason)
    sizes: dict[str, int] = {}
    for value in inputs:
        if value.name in named_shapes:
            _give(file, value, named_shapes[value.name], sizes)
    for name in _batch_names(inputs):
        sizes.setdefault(name, 1)
    for value in inputs:
        _fill(value, sizes)
        if not is_fixed(value):
            raise UnusableModel(file=file, reason=_open_sizes(value))
    for value in graph.output:
        _fill(value, sizes)


def _clear_placeholders(graph: GraphProto) -> None:
    """Two sizes called `?` need not be equal."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param.strip().lower() in _NO_NAMES:
                side.ClearField("dim_param")


def real_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """Without the weights that old exporters list among them."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


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


# Brings a graph to ONNX's own operators, at an opset that everything downstream knows.


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
    schemas = [defs.get_schema(kind, version) for kind in sorted(kinds) if defs.has(kind)]
    new = [("", s.name) for s in schemas if _first_version(s.name) > NEWEST_OPSET]
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


# One type of floats: compilers and quantizers want float32, whatever a model was saved in.


# Attributes that name the type of a result or of the numbers in between.
_TYPE_ATTRIBUTES = frozenset(("to", "dtype", "stash_type", "softmax_precision"))


def has_other_floats(model: ModelProto) -> bool:
    """Whether anything in it is a float of 16 or 64 bits."""
    others = _others()
    if any(tensor.data_type in others for tensor in all_tensors(model)):
        return True
    graphs = list(_graphs(model.graph))
    ends = [value for graph in graphs for value in (*graph.input, *graph.output)]
    nodes = [node for owner in (*graphs, *model.functions) for node in owner.node]
    return any(value.type.tensor_type.elem_type in others for value in ends) or any(
        _is_other(attribute) for node in nodes for attribute in node.attribute
    )


def to_float32(model: ModelProto) -> None:
    """In place; the model has no functions. The same function up to rounding."""
    from onnx import TensorProto

    others = _others()
    for tensor in all_tensors(model):
        if tensor.data_type in others:
            _convert(tensor)
    for graph in _graphs(model.graph):
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in others:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for attribute in (a for node in graph.node for a in node.attribute):
            if _is_other(attribute):
                attribute.i = TensorProto.FLOAT


def pass_empty_casts(graph: GraphProto) -> None:
    """Casts to the type that a tensor has already become Identity; needs inferred types."""
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Cast" and types.get(node.input[0]) == _target(node):
            node.op_type = "Identity"
            del node.attribute[:]


def _target(node: NodeProto) -> int:
    return next((int(a.i) for a in node.attribute if a.name == "to"), -1)


def _convert(tensor: TensorProto) -> None:
    """What is finite stays finite: masks often hold the lowest number of their type."""
    import numpy as np
    from onnx import numpy_helper

    values = numpy_helper.to_array(tensor)
    limits = np.finfo(np.float32)
    if values.dtype == np.float64:
        values = np.where(np.isfinite(values), values.clip(limits.min, limits.max), values)
    tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))


def _others() -> tuple[int, ...]:
    from onnx import TensorProto

    return (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def _is_other(attribute: AttributeProto) -> bool:
    return attribute.name in _TYPE_ATTRIBUTES and attribute.i in _others()


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and those inside of it."""
    yield graph
    for attribute in (a for node in graph.node for a in node.attribute):
        for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            yield from _graphs(inner)


# Computes what is constant in a graph: exporters write arithmetic where compilers want numbers.
#
# `Pad` and `Resize` of older opsets get their amounts from chains of Shape, Gather, Cast and Concat
# that give the same numbers for every input of a fixed size. One pass in the order of the graph
# infers the type of each tensor and computes every node whose inputs are known, however long the
# chain is.


LARGEST_CONSTANT = 1 << 22  # elements: beyond, a folded tensor costs more than computing it
_LARGEST_AMOUNTS = 1 << 12  # elements of a shape, of pads, of scales: what decides other shapes
_LARGEST_WORK = 1 << 28  # multiplications of a product of matrices
_LARGEST_SLOW = 1 << 14  # elements of what the reference computes one by one
_LEAST_TOTAL, _TOTAL_SHARE = 1 << 24, 4  # elements of all results together, and per weight
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_CODE = ("If", "Loop", "Scan", "SequenceMap", "RegexFullMatch", "ImageDecoder", "TfIdfVectorizer")
_NEVER = frozenset(
    ("Bernoulli", "Multinomial", *_RANDOM, *_CODE, "Identity")  # shared weights stay shared
)
_PRODUCTS = frozenset(("MatMul", "Gemm"))
# Those whose work grows with their operands and results, and no faster.
_QUICK_NAMES = (
    "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization BitShift "
    "BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Concat Constant "
    "ConstantOfShape Cos Cosh CumSum DepthToSpace DequantizeLinear Div Dropout Elu Equal Erf Exp "
    "Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual "
    "HardSigmoid IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Max Mean "
    "Min Mod Mul Neg Not OneHot Or PRelu Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu "
    "Reshape Round Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign "
    "SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh Tile Transpose Trilu Unsqueeze Where "
    "Xor"
)
_QUICK = frozenset(_QUICK_NAMES.split())


def fold_constants(model: ModelProto) -> None:
    """In place. Nodes that cannot be computed now stay as they are."""
    _fold_once(model)
    while take_known_branches(model.graph):
        _fold_once(model)


def _fold_once(model: ModelProto) -> None:
    graph = model.graph
    folding = _Folding(model)
    remaining = [node for node in graph.node if not folding.computes(node)]
    if len(remaining) == len(graph.node):
        return
    del graph.node[:]
    graph.node.extend(remaining)
    used = {name for node in remaining for name in _names_read(node)}
    graph.initializer.extend(t for name, t in folding.computed.items() if name in used)


class _Folding:
    """What is known so far, from the first node to the last."""

    def __init__(self, model: ModelProto) -> None:
        graph = model.graph
        self._opsets = list(model.opset_import)
        self._version = {opset.domain: opset.version for opset in model.opset_import}
        self._outputs = {value.name for value in graph.output}
        self._constants: dict[str, TensorProto] = {t.name: t for t in graph.initializer}
        self._types: dict[str, TypeProto] = {value.name: value.type for value in graph.input}
        self._types |= {name: _type_of(t) for name, t in self._constants.items()}
        self.computed: dict[str, TensorProto] = {}
        weights = sum(math.prod(t.dims) for t in graph.initializer)
        self._left = _LEAST_TOTAL + _TOTAL_SHARE * weights

    def computes(self, node: NodeProto) -> bool:
        """Whether the node's outputs are constants now, so that it can go."""
        types = self._inferred(node)
        self._types |= types
        if node.op_type == "Identity" and node.input[0] in self._constants:
            self._constants[node.output[0]] = self._constants[node.input[0]]
        is_foldable = (
            not self._outputs.intersection(node.output)
            and node.op_type not in _NEVER
            and self._is_little_work(node, [types.get(name) for name in node.output if name])
        )
        constants = self._values(node) if is_foldable else None
        if constants is None:
            return False
        self._left -= sum(math.prod(tensor.dims) for tensor in constants.values())
        self.computed |= constants
        self._constants |= constants
        return True

    def _is_little_work(self, node: NodeProto, results: list[TypeProto | None]) -> bool:
        """Before anything is allocated: by the sizes of all operands and results."""
        shapes = [_sides(kind) if kind is not None else None for kind in results]
        made = [math.prod(shape) for shape in shapes if shape is not None]
        if len(made) < len(shapes) or sum(made) > min(LARGEST_CONSTANT, self._left):
            return False
        if node.op_type in _QUICK:
            return True
        read = [
            math.prod(self._constants[name].dims) for name in node.input if name in self._constants
        ]
        if node.op_type in _PRODUCTS and len(read) >= 2:  # n·k, k·m and n·m
            return bool(math.isqrt(read[0] * read[1] * sum(made)) <= _LARGEST_WORK)
        return bool(sum(read) + sum(made) <= _LARGEST_SLOW)

    def _values(self, node: NodeProto) -> dict[str, TensorProto] | None:
        from onnx import numpy_helper

        if node.op_type == "Shape" and node.input[0] in self._types:
            values = [_shape_asked(node, _sides(self._types[node.input[0]]))]
        elif all(not name or name in self._constants for name in node.input):
            values = self._evaluated(node)
        else:
            return None
        if len(values) != len(node.output) or any(value is None for value in values):
            return None
        pairs = zip(node.output, values, strict=True)
        return {name: numpy_helper.from_array(value, name) for name, value in pairs}

    def _evaluated(self, node: NodeProto) -> list[Any]:
        import numpy as np
        from onnx import helper, numpy_helper
        from onnx.reference import ReferenceEvaluator

        operands = [name for name in dict.fromkeys(node.input) if name]
        inputs = [helper.make_value_info(name, self._types[name]) for name in operands]
        outputs = [helper.make_value_info(name, self._types[name]) for name in node.output]
        graph = helper.make_graph([node], "constant", inputs, outputs)
        try:
            values = {name: numpy_helper.to_array(self._constants[name]) for name in operands}
            evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=self._opsets))
            return [np.asarray(value) for value in evaluator.run(None, values)]
        except Exception:  # noqa: BLE001 - it stays in the graph, for the compiler to judge
            return []

    def _inferred(self, node: NodeProto) -> dict[str, TypeProto]:
        """The types of its outputs; empty where ONNX cannot tell."""
        import onnx
        from onnx import defs, shape_inference

        operands = [name for name in node.input if name]
        if any(name not in self._types for name in operands):
            return {}
        amounts = {
            name: self._constants[name]
            for name in operands
            if name in self._constants and math.prod(self._constants[name].dims) <= _LARGEST_AMOUNTS
        }
        try:
            schema = defs.get_schema(node.op_type, self._version.get(node.domain, 1), node.domain)
            return shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self._types[name] for name in operands},
                amounts,
                opset_imports=self._opsets,
            )
        except (defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            return {}


def _shape_asked(node: NodeProto, sides: tuple[int, ...] | None) -> Any:
    """What a Shape node gives: all sides of its input, or those from `start` to `end`."""
    import numpy as np

    if sides is None:
        return None
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return np.array(sides[bounds.get("start", 0) : bounds.get("end", len(sides))], np.int64)


def _sides(kind: TypeProto) -> tuple[int, ...] | None:
    """The shape; None unless every side is known."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return None
    sides = tensor.shape.dim
    if not all(side.HasField("dim_value") for side in sides):
        return None
    return tuple(side.dim_value for side in sides)


def _type_of(tensor: TensorProto) -> TypeProto:
    from onnx import helper

    return helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))


def _names_read(node: NodeProto) -> Iterable[str]:
    """Names that a node reads, those inside of its sub-graphs too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*attribute.graphs, attribute.g):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _names_read(inner)


# Branches whose condition is known: one of them is part of the graph, the other is gone.


def take_known_branches(graph: GraphProto) -> bool:
    """In place; whether there were any. A branch may hold further ones, so call it again."""
    from onnx import numpy_helper

    constants = {t.name: t for t in graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in graph.node if _is_plain_constant(n)}
    nodes: list[NodeProto] = []
    was_taken = False
    for node in graph.node:
        if node.op_type == "If" and node.input[0] in constants:
            is_true = bool(numpy_helper.to_array(constants[node.input[0]]).any())
            taken_name = "then_branch" if is_true else "else_branch"
            branch = next(a.g for a in node.attribute if a.name == taken_name)
            nodes.extend(_taken(graph, node, branch))
            was_taken = True
        else:
            nodes.append(node)
    if was_taken:
        del graph.node[:]
        graph.node.extend(nodes)
    return was_taken


def _is_plain_constant(node: NodeProto) -> bool:
    return node.op_type == "Constant" and [a.name for a in node.attribute] == ["value"]


def _taken(graph: GraphProto, node: NodeProto, branch: GraphProto) -> list[NodeProto]:
    """The branch's nodes, under names that nothing outside of it has."""
    import onnx
    from onnx import helper

    inner_names = [name for inner in branch.node for name in inner.output if name]
    inner_names += [tensor.name for tensor in branch.initializer]
    renamed = {name: f"{node.output[0]}/{name}" for name in inner_names}
    for tensor in branch.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = renamed[tensor.name]
        graph.initializer.append(copy)
    taken = []
    for inner in branch.node:
        copied = onnx.NodeProto()
        copied.CopyFrom(inner)
        _rename([copied], renamed)
        taken.append(copied)
    for result, output in zip(branch.output, node.output, strict=False):
        source = renamed.get(result.name, result.name)
        taken.append(helper.make_node("Identity", [source], [output]))
    return taken


def _rename(nodes: Iterable[NodeProto], renamed: Mapping[str, str]) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = renamed.get(name, name)
        for attribute in node.attribute:
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                for value in (*graph.output, *graph.initializer):
                    value.name = renamed.get(value.name, value.name)
                _rename(graph.node, renamed)


# Types and shapes of all tensors, by ONNX's own inference.


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
