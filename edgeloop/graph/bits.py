"""Which tensors of a graph can have a precision of their own, and which of them share one.

An activation function is computed with the layer before it, and an operator that only moves values
cannot change their scale: the tensors before and after have the same bits. Of each such group one
tensor stands for all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from edgeloop.graph.read import shapes_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

ACTIVATIONS = frozenset(("Relu", "Clip"))
MOVING = frozenset(
    (
        "DepthToSpace",
        "Flatten",
        "Gather",
        "Identity",
        "MaxPool",
        "Reshape",
        "Resize",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    )
)
CHANNEL_AXES = {"Conv": 0, "ConvTranspose": 1}


@dataclass(frozen=True)
class TunableTensor:
    """`members` are all activations that share its bits. `layer` and `operator` are what makes it,
    or what uses these weights; both are empty for an input of the model. `neighbours` are the
    tensors that share a layer with it, `inputs` those that its layer reads, `size` is how many
    numbers it has."""

    name: str
    kind: Literal["activation", "weights"]
    layer: str = ""
    operator: str = ""
    members: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    size: int = 0

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)


def tunable_from(fields: Mapping[str, Any]) -> TunableTensor:
    """From `to_fields`, whose tuples are lists once they were JSON."""
    return TunableTensor(
        name=fields["name"],
        kind=fields["kind"],
        layer=fields["layer"],
        operator=fields["operator"],
        members=tuple(fields["members"]),
        neighbours=tuple(fields["neighbours"]),
        inputs=tuple(fields["inputs"]),
        size=fields["size"],
    )


def tunable_tensors(model: ModelProto, exact: Iterable[str] = ()) -> tuple[TunableTensor, ...]:
    """In the order of the graph, activations first. `exact` are inputs that 8 bits hold without an
    error, such as pixels. The model needs its shapes inferred."""
    graph = model.graph
    groups = _groups(graph, set(exact))
    makers = {name: node for node in graph.node for name in node.output}
    shapes = shapes_of(graph)
    of = {member: members[0] for members in groups for member in members}
    around: dict[str, set[str]] = defaultdict(set)
    for node in graph.node:
        near = {of[name] for name in (*node.input, *node.output) if name in of}
        for name in near:
            around[name] |= near - {name}
    names = {members[0]: _name(members, graph) for members in groups}
    activations = []
    for members in groups:
        maker = makers.get(members[0])
        read = () if maker is None else tuple(names[of[n]] for n in maker.input if n in of)
        activations.append(
            TunableTensor(
                name=names[members[0]],
                kind="activation",
                layer=maker.name if maker else "",
                operator=maker.op_type if maker else "",
                members=tuple(members),
                neighbours=tuple(sorted(names[near] for near in around[members[0]])),
                inputs=read,
                size=max(math.prod(shapes.get(member, ())) for member in members),
            )
        )
    return (*activations, *_weights(graph))


def channel_axis(node: NodeProto) -> int:
    """Of the weights of a layer: the axis of its outputs."""
    if node.op_type == "Gemm":
        is_transposed = any(one.name == "transB" and one.i for one in node.attribute)
        return 0 if is_transposed else 1
    return CHANNEL_AXES[node.op_type]


def weight_layers(graph: GraphProto) -> dict[str, NodeProto]:
    """The first layer that uses each tensor of weights that may have 4 bits."""
    from onnx import TensorProto

    floats = {
        t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) >= 2
    }
    first_users: dict[str, NodeProto] = {}
    for node in graph.node:
        if (node.op_type in CHANNEL_AXES or node.op_type == "Gemm") and node.input[1] in floats:
            first_users.setdefault(node.input[1], node)
    return first_users


def _weights(graph: GraphProto) -> list[TunableTensor]:
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    return [
        TunableTensor(name, "weights", node.name, node.op_type, (name,), size=sizes[name])
        for name, node in weight_layers(graph).items()
    ]


def _groups(graph: GraphProto, exact: set[str]) -> list[list[str]]:
    """Lists of tensors, each in the order of the graph."""
    kinds = _float_tensors(graph)
    leaders = {name: name for name in kinds}

    def leader(name: str) -> str:
        while leaders[name] != name:
            name = leaders[name]
        return name

    order = {name: place for place, name in enumerate(kinds)}
    for node in graph.node:
        if not node.input or node.input[0] not in leaders:
            continue
        if node.op_type in ACTIVATIONS | MOVING:
            for output in (name for name in node.output if name in leaders):
                first, second = leader(node.input[0]), leader(output)
                early, late = sorted((first, second), key=lambda name: order[name])
                leaders[late] = early
    groups: dict[str, list[str]] = defaultdict(list)
    for name in kinds:
        groups[leader(name)].append(name)
    return [members for members in groups.values() if not exact & set(members)]


def _float_tensors(graph: GraphProto) -> list[str]:
    """Inputs and results of layers, in their order."""
    from onnx import TensorProto

    values = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in constants]
    made = [name for node in graph.node for name in node.output if name]
    return [name for name in (*inputs, *made) if types.get(name) == TensorProto.FLOAT]


def _name(members: list[str], graph: GraphProto) -> str:
    """The first one that is not only the argument of an activation function."""
    arguments = {node.input[0] for node in graph.node if node.op_type in ACTIVATIONS}
    return next((name for name in members if name not in arguments), members[0])
