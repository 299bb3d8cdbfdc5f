"""What a file says of itself before anything is done with it: for `inspect`, and for `upload`.

A file that cannot be used is described as far as it can be read, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop.errors import UnusableModel
from edgeloop.graph.caveats import estimate_caveats
from edgeloop.graph.check import read_graph
from edgeloop.graph.count import graph_info
from edgeloop.graph.info import GraphInfo, GraphMemory, Shape, info_from
from edgeloop.graph.reading import STANDARD_DOMAINS, check_limits
from edgeloop.graph.rewrites import planned_rewrites

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

_IMAGE_SIDE, _OTHER_SIDE = 224, 128


@dataclass(frozen=True)
class DeclaredTensor:
    """An input or output as the file has it: a free size is its name, or `?`."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    @property
    def needs_shape(self) -> bool:
        """Whether more than the batch is free."""
        sides = self.shape if len(self.shape) == 1 else self.shape[1:]
        return not all(isinstance(side, int) for side in sides)

    @property
    def example(self) -> str:
        """Its shape with sizes that are usual, as people type it."""
        usual = _IMAGE_SIDE if len(self.shape) == 4 else _OTHER_SIDE
        sides = [side if isinstance(side, int) else usual for side in self.shape]
        first = [1 if isinstance(side, str) else side for side in self.shape[:1]]
        return "x".join(map(str, [*first, *sides[1:]]))


@dataclass(frozen=True)
class GraphSummary:
    """`info` and `memory` are None where `problem` says why the model cannot be used."""

    file: str
    size: int
    opset: int
    exporter: str
    operators: Mapping[str, int]
    inputs: tuple[DeclaredTensor, ...]
    outputs: tuple[DeclaredTensor, ...]
    info: GraphInfo | None = None
    memory: GraphMemory | None = None
    caveats: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    problem: str = ""

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)


def summary_from(fields: Mapping[str, Any]) -> GraphSummary:
    """From `to_fields`, after a way that turned tuples into lists."""
    ends = {
        side: tuple(DeclaredTensor(**{**one, "shape": tuple(one["shape"])}) for one in fields[side])
        for side in ("inputs", "outputs")
    }
    texts = {name: tuple(fields[name]) for name in ("caveats", "rewrites")}
    info = info_from(fields["info"]) if fields["info"] else None
    memory = GraphMemory(**fields["memory"]) if fields["memory"] else None
    return GraphSummary(**{**fields, **ends, **texts, "info": info, "memory": memory})


def summarize(
    path: Path, shapes: Mapping[str, Shape] | None = None, rewrites: bool = False
) -> GraphSummary:
    """Raises UnusableModel only where the file cannot be read as ONNX at all. Which `rewrites` the
    compiler would need takes a copy of the model to find out."""
    declared = _declared(path)
    try:
        graph = read_graph(path, shapes)
    except UnusableModel as error:
        return GraphSummary(**declared, problem=str(error.fields["reason"]))
    info = graph_info(path.name, graph)
    return GraphSummary(
        **declared,
        info=info,
        memory=info.memory,
        caveats=tuple(estimate_caveats(graph)),
        rewrites=tuple(map(str, planned_rewrites(graph))) if rewrites else (),
    )


def _declared(path: Path) -> dict[str, Any]:
    """From the file alone, without its external data."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except (DecodeError, ValueError):
        reason = "it is not an ONNX model, or it was cut off. Export or copy it again"
        raise UnusableModel(file=path.name, reason=reason) from None
    if not model.graph.node:
        reason = "it holds no ONNX graph, or it was cut off. Export or copy it again"
        raise UnusableModel(file=path.name, reason=reason)
    check_limits(path.name, model)
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    operators = Counter(node.op_type for node in graph.node)
    return {
        "file": path.name,
        "size": _size(path, model),
        "opset": next((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), 0),
        "exporter": f"{model.producer_name} {model.producer_version}".strip(),
        "operators": dict(operators.most_common()),
        "inputs": tuple(_tensor(value) for value in graph.input if value.name not in weights),
        "outputs": tuple(_tensor(value) for value in graph.output),
    }


def _size(path: Path, model: ModelProto) -> int:
    """Of the file with its external data."""
    places = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    files = [path, *(path.parent / place for place in places)]
    return sum(file.stat().st_size for file in files if file.is_file())


def _tensor(value: ValueInfoProto) -> DeclaredTensor:
    sides = value.type.tensor_type.shape.dim
    shape = tuple(side.dim_value if side.dim_value > 0 else side.dim_param or "?" for side in sides)
    return DeclaredTensor(value.name, shape, _dtype(value.type.tensor_type.elem_type))


def _dtype(kind: int) -> str:
    from onnx import helper

    try:
        return str(helper.tensor_dtype_to_np_dtype(kind).name)
    except (KeyError, ValueError, TypeError):
        return "unknown"
