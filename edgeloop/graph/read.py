"""Loads a model with all of its weights, and says in words why it cannot be loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop.errors import BadModel, LocalFileError, UnusableModel
from edgeloop.graph.info import Shape

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


LARGEST_FILE = 2**31 - 1
_LARGEST_INSIDE = 1 << 30  # bytes of weights: with more of them, a file has them beside it
_SMALL = 1 << 12  # elements: shapes, pads and scales, on which other shapes depend


def check_file(path: Path) -> None:
    """Raises UnusableModel for what cannot be a model at all: a folder, nothing, an empty file."""
    try:
        if path.is_dir():
            raise UnusableModel(file=str(path), reason="it is a folder. Name an ONNX file")
        if path.stat().st_size == 0:
            raise UnusableModel(file=path.name, reason="the file is empty")
    except FileNotFoundError:
        raise UnusableModel(file=str(path.absolute()), reason="there is no such file") from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None


def load_model(path: Path, with_weights: bool = True) -> ModelProto:
    """Without its weights, those that lie beside the file stay there."""
    import onnx
    from google.protobuf.message import DecodeError

    size = -1
    try:
        size = path.stat().st_size
        if not path.is_file():  # a pipe would never end
            raise UnusableModel(file=path.name, reason="it is not a file")
        if size > LARGEST_FILE:
            reason = "it is larger than 2 GB. Save it with its weights beside it"
            raise UnusableModel(file=path.name, reason=reason)
        model = onnx.load_model(str(path), load_external_data=False)
        check_limits(path.name, model)
        if with_weights:
            load_external_data(path, model)
    except (DecodeError, ValueError):
        reason = "it is empty" if not size else "it is not an ONNX model, or it was cut off"
        raise UnusableModel(file=path.name, reason=reason) from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    if not model.graph.node:
        raise UnusableModel(file=path.name, reason="its graph is empty")
    return model


def save_model(model: ModelProto, path: Path) -> None:
    """With weights beside the file where one file cannot hold them."""
    import onnx

    size = sum(len(tensor.raw_data) for tensor in all_tensors(model))
    if size <= _LARGEST_INSIDE:
        onnx.save_model(model, str(path))
        return
    beside = f"{path.name}.data"
    path.with_name(beside).unlink(missing_ok=True)
    onnx.save_model(model, str(path), save_as_external_data=True, location=beside)


def without_weights(model: ModelProto) -> ModelProto:
    """A copy for ONNX's own passes, which copy a model several times and take at most 2 GB: of a
    large weight it has type and shape alone."""
    import onnx

    light = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    for name in ("opset_import", "functions", "metadata_props"):
        getattr(light, name).extend(getattr(model, name))
    light.graph.name = model.graph.name
    for name in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, name).extend(getattr(model.graph, name))
    for tensor in model.graph.initializer:
        copy = light.graph.initializer.add()
        if math.prod(tensor.dims) <= _SMALL:
            copy.CopyFrom(tensor)
            continue
        copy.name, copy.data_type, copy.data_location = tensor.name, tensor.data_type, copy.EXTERNAL
        copy.dims.extend(tensor.dims)
    return light


def with_weights_of(light: ModelProto, model: ModelProto) -> ModelProto:
    """Puts the weights back into what a pass made of `without_weights(model)`."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for tensor in light.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            tensor.CopyFrom(weights[tensor.name])
    return light


def shape_of(value: ValueInfoProto) -> Shape:
    """A side that is not known is 0."""
    return tuple(max(side.dim_value, 0) for side in value.type.tensor_type.shape.dim)


def shapes_of(graph: GraphProto) -> dict[str, Shape]:
    """The shape of every tensor that has one: inputs, outputs, what is between, weights."""
    shapes = {value.name: shape_of(value) for value in all_values(graph)}
    shapes.update({tensor.name: tuple(tensor.dims) for tensor in graph.initializer})
    return shapes


def all_values(graph: GraphProto) -> Iterator[ValueInfoProto]:
    yield from graph.input
    yield from graph.value_info
    yield from graph.output


# How large a graph may be: counted in the file, before anything is made of it.
#
# A few lines of functions that call each other twice are a billion nodes once they are inlined, and
# a name of megabytes is copied by every pass. No exporter writes such files.


MOST_NODES = 50_000  # with functions written out: the largest language models have half of that
MOST_ENDS = 2_000  # inputs, and outputs
MOST_SIDES = 64  # of a tensor
MOST_CALLS = 100  # functions that call each other
LONGEST_NAME = 4_096

FunctionKey = tuple[str, str, str]


def check_limits(file: str, model: ModelProto) -> None:
    """Raises UnusableModel for a graph that no reader could get through."""
    graph = model.graph
    _check_count(file, "nodes", len(graph.node), MOST_NODES)
    _check_count(file, "functions", len(model.functions), MOST_NODES)
    _check_count(file, "inputs", len(graph.input) - len(graph.initializer), MOST_ENDS)
    _check_count(file, "outputs", len(graph.output), MOST_ENDS)
    _check_count(file, "nodes", _Calls(file, model).nodes_of(graph.node), MOST_NODES)
    for value in (*graph.input, *graph.output):
        if len(value.type.tensor_type.shape.dim) > MOST_SIDES:
            sides = len(value.type.tensor_type.shape.dim)
            reason = f"its tensor {_short(value.name)!r} has {sides:,} sides"
            raise UnusableModel(file=file, reason=f"{reason}, more than {MOST_SIDES}")
    for name in _names(model):
        if len(name) > LONGEST_NAME:
            reason = f"the name {_short(name)!r} has {len(name):,} characters"
            raise UnusableModel(file=file, reason=f"{reason}, more than {LONGEST_NAME:,}")


class _Calls:
    """Nodes as they will be when every function is written out where it is called."""

    def __init__(self, file: str, model: ModelProto) -> None:
        self._file = file
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._counted: dict[FunctionKey, int] = {}
        self._open: list[FunctionKey] = []

    def nodes_of(self, nodes: Iterable[NodeProto]) -> int:
        return sum(self._size(node) for node in nodes)

    def _size(self, node: NodeProto) -> int:
        inner = sum(self.nodes_of(graph.node) for graph in _graphs_in(node))
        key = (node.domain, node.op_type, node.overload)
        return inner + (self._size_of_function(key) if key in self._functions else 1)

    def _size_of_function(self, key: FunctionKey) -> int:
        if key not in self._counted:
            if key in self._open or len(self._open) > MOST_CALLS:
                reason = f"its functions call each other without end ({_short(key[1])})"
                raise UnusableModel(file=self._file, reason=reason)
            self._open.append(key)
            self._counted[key] = self.nodes_of(self._functions[key].node)
            self._open.pop()
        return self._counted[key]


def _check_count(file: str, what: str, count: int, most: int) -> None:
    if count > most:
        shown = f"{count:,}" if count < 10**9 else "billions of"
        raise UnusableModel(file=file, reason=f"it has {shown} {what}, more than {most:,}")


def _graphs_in(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def _names(model: ModelProto) -> Iterator[str]:
    yield from (model.producer_name, model.producer_version, model.domain, model.graph.name)
    yield from (opset.domain for opset in model.opset_import)
    yield from _names_in_graph(model.graph)
    for function in model.functions:
        yield from (function.domain, function.name, *function.input, *function.output)
        yield from _names_in_nodes(function.node)


def _names_in_graph(graph: GraphProto) -> Iterator[str]:
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            yield from _names_of(value)
    yield from (tensor.name for tensor in graph.initializer)
    yield from _names_in_nodes(graph.node)


def _names_of(value: ValueInfoProto) -> Iterator[str]:
    yield value.name
    yield from (side.dim_param for side in value.type.tensor_type.shape.dim)


def _names_in_nodes(nodes: Iterable[NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        for graph in _graphs_in(node):
            yield from _names_in_graph(graph)


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:60]}…"


# Weights of an ONNX model that lie in files beside it: which ones, whether they are whole, and what
# is in them.
#
# onnx's own loader refuses data files that have a second name (a hard link), and what it says of
# missing and short ones does not tell them apart.


_LONGEST_SHOWN = 200
_PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


def external_files(path: Path, model: ModelProto) -> dict[str, Path]:
    """Weights kept in other files: those must lie in or below the model's own folder."""
    files: dict[str, Path] = {}
    folder = path.parent.resolve()
    for tensor in all_tensors(model):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        location = fields.get("location", "")
        files[location] = _external_file(path, folder, location)
        _extent(path, files[location], fields, _data_size(tensor))
    if path.name in files:
        raise BadModel(file=path.name, reason="it names itself as its external data")
    return files


def load_external_data(path: Path, model: ModelProto) -> None:
    """Read the weights that lie beside the model at `path` into `model`."""
    files = external_files(path, model)
    for tensor in all_tensors(model):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = _extent(path, files[fields["location"]], fields, _data_size(tensor))
        with files[fields["location"]].open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(length)
        tensor.data_location = tensor.DEFAULT
        del tensor.external_data[:]


def _external_file(path: Path, folder: Path, location: str) -> Path:
    file, shown = folder / location, repr(location[:_LONGEST_SHOWN])
    try:
        outside = not location or not file.resolve().is_relative_to(folder)
        if outside or Path(location).is_absolute() or ".." in Path(location).parts:
            reason = f"its external data {shown} points outside the model's folder"
            raise BadModel(file=path.name, reason=f"{reason}. Save it with its data beside it")
        is_there = file.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, a link to itself, a null character
        is_there = False
    if not is_there:
        reason = f"its external data {shown} is missing. Put that file beside the model"
        raise BadModel(file=path.name, reason=reason)
    return file


def _extent(path: Path, file: Path, fields: dict[str, str], needed: int) -> tuple[int, int]:
    """Offset and length. Exporters may leave the length out; the tensor's shape says it too."""
    try:
        offset, length = int(fields.get("offset", 0)), int(fields.get("length", needed))
    except ValueError:
        offset = length = -1
    if offset < 0 or length < needed:
        raise BadModel(file=path.name, reason="its external data has no valid extent")
    if offset + length > file.stat().st_size:
        reason = f"its external data {file.name!r} is cut off. Export or copy it again"
        raise BadModel(file=path.name, reason=reason)
    return offset, length


def _data_size(tensor: TensorProto) -> int:
    """Bytes of the tensor's data; types below a byte are packed."""
    from onnx import helper

    try:
        kind = tensor.DataType.Name(tensor.data_type)
        item = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError, TypeError):
        return 0  # ONNX's own check says what is wrong with it
    bits = _PACKED_BITS.get(kind, 8 * int(item.itemsize))
    count: int = math.prod(tensor.dims)
    return (count * bits + 7) // 8


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """All tensors that may carry data, those in attributes, sub-graphs and functions too."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node)


def _tensors_of_graph(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from attribute.tensors
        if attribute.HasField("t"):
            yield attribute.t
        for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            yield from _tensors_of_graph(inner)


# How large the whole numbers may be that a model takes: a token must be in the vocabulary.


# What an index passes on its way into a table without becoming another number.
_PASSED = {
    "Cast",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
}
_KEEP_SHAPE = ("Cast", "Identity", "DequantizeLinear")


def index_limits(path: Path) -> dict[str, int]:
    """For each input that picks rows of a constant table (`Gather`): how many rows the smallest
    such table has. Every value must be below that. Inputs that pick none are left out."""
    import onnx

    graph = onnx.load_model(str(path), load_external_data=False).graph
    tables = _tables(graph)
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in set(node.input):
            readers.setdefault(name, []).append(node)
    limits = {value.name: _limit(value.name, readers, tables) for value in graph.input}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _tables(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes of all constants; weights of half precision may pass a Cast on their way."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    shapes[node.output[0]] = tuple(attribute.t.dims)
        elif node.op_type in _KEEP_SHAPE and node.input[0] in shapes:
            shapes[node.output[0]] = shapes[node.input[0]]
    return shapes


def _limit(
    name: str, readers: dict[str, list[NodeProto]], tables: dict[str, tuple[int, ...]]
) -> int | None:
    limits: list[int] = []
    waiting, seen = [name], {name}
    while waiting:
        value = waiting.pop()
        for node in readers.get(value, ()):
            if _is_lookup(node, value, tables):
                limits.append(_rows(node, tables[node.input[0]]))
            elif node.op_type in _PASSED and value in node.input[: _carried(node)]:
                fresh = [output for output in node.output if output not in seen]
                seen.update(fresh)
                waiting += fresh
    return min((limit for limit in limits if limit > 0), default=None)


def _is_lookup(node: NodeProto, value: str, tables: dict[str, tuple[int, ...]]) -> bool:
    is_gather = node.op_type == "Gather" and len(node.input) == 2
    return is_gather and node.input[1] == value and bool(tables.get(node.input[0]))


def _carried(node: NodeProto) -> int:
    """How many of its inputs a node hands on; the others only say how."""
    return len(node.input) if node.op_type == "Concat" else 1


def _rows(node: NodeProto, shape: tuple[int, ...]) -> int:
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return shape[axis] if -len(shape) <= axis < len(shape) else 0
