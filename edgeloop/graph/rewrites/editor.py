"""A graph while it is being rewritten: makers and readers of each tensor, shapes, constants.

A rewrite finds some nodes, adds others in their place, and leaves the names of all tensors that
other nodes read as they were. Nodes are added where the last of the replaced ones was, so the
graph stays sorted; the rewrite gives the shape of every tensor that it adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

    Floats = NDArray[Any]

Shape = tuple[int, ...]
FLOAT = 1  # TensorProto.FLOAT
AXES_AS_INPUT = 18  # opset of all reductions but ReduceSum, whose axes are an input since 13
_STANDARD = ("", "ai.onnx")
CONTRIBUTED = "com.microsoft"  # operators of ONNX Runtime that ONNX got later, or not yet


class GraphEditor:
    """Changes reach the model with `commit`."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.graph = model.graph
        self.nodes: list[NodeProto] = list(model.graph.node)
        self.opset = next((o.version for o in model.opset_import if o.domain in _STANDARD), 1)
        self.ends = {value.name for value in self.graph.output}
        self._tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        self._shapes: dict[str, Shape] = {}
        self._types: dict[str, int] = {}
        for value in (*self.graph.input, *self.graph.value_info, *self.graph.output):
            self._learn(value)
        for tensor in self.graph.initializer:
            self._shapes[tensor.name] = tuple(tensor.dims)
            self._types[tensor.name] = tensor.data_type
        self._new: list[tuple[str, int, Shape]] = []
        self._weights: list[TensorProto] = []
        self._names = {*self._shapes, *(name for node in self.nodes for name in node.output)}
        self._index()

    def shape(self, name: str) -> Shape | None:
        """None where a side is not known."""
        return self._shapes.get(name)

    def kind(self, name: str) -> int:
        return self._types.get(name, FLOAT)

    def constant(self, name: str) -> NDArray[Any] | None:
        from onnx import numpy_helper

        tensor = self._tensors.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def is_constant(self, name: str) -> bool:
        return name in self._tensors

    def scalar(self, name: str) -> float | None:
        """The value of a constant with a single one."""
        tensor = self._tensors.get(name)
        if tensor is None or math.prod(tensor.dims) != 1:
            return None
        values = self.constant(name)
        return None if values is None else float(values.reshape(-1)[0])

    def maker(self, name: str, *kinds: str) -> NodeProto | None:
        """The node that makes a tensor, if it is one of these kinds."""
        node = self._makers.get(name)
        return node if node is not None and (not kinds or node.op_type in kinds) else None

    def readers(self, name: str) -> list[NodeProto]:
        return self._readers.get(name, [])

    def only_reader(self, name: str, *kinds: str) -> NodeProto | None:
        """Its single reader, unless the tensor is an output of the model."""
        readers = self.readers(name)
        if len(readers) != 1 or name in self.ends:
            return None
        return readers[0] if not kinds or readers[0].op_type in kinds else None

    def is_private(self, nodes: Sequence[NodeProto], output: str) -> bool:
        """Whether what these nodes make, but for `output`, is read by these nodes alone."""
        inside = {id(node) for node in nodes}
        made = {name for node in nodes for name in node.output if name and name != output}
        return not made & self.ends and all(
            id(reader) in inside for name in made for reader in self.readers(name)
        )

    def weights(self, near: str, values: NDArray[Any]) -> str:
        """A new constant, named after what it is for."""
        from onnx import numpy_helper

        name = self._fresh(near)
        tensor = numpy_helper.from_array(values, name)
        self._tensors[name] = tensor
        self._shapes[name] = tuple(values.shape)
        self._types[name] = tensor.data_type
        self._weights.append(tensor)
        return name

    def ints(self, near: str, values: Sequence[int]) -> str:
        import numpy as np

        return self.weights(near, np.array(list(values), np.int64))

    def floats(self, near: str, values: Any) -> str:
        import numpy as np

        return self.weights(near, np.asarray(values, np.float32))

    def replacement(self, nodes: Sequence[NodeProto]) -> Replacement:
        return Replacement(self, nodes)

    def bypass(self, renamed: Mapping[str, str]) -> None:
        """Readers of a key read its value instead; the nodes that make the keys are removed."""
        from onnx import NodeProto

        remaining = [n for n in self.nodes if not any(name in renamed for name in n.output)]
        for place, node in enumerate(remaining):
            if any(name in renamed for name in node.input):
                remaining[place] = copy = NodeProto()
                copy.CopyFrom(node)
                copy.input[:] = [renamed.get(name, name) for name in node.input]
        self.nodes = remaining
        self._index()

    def commit(self) -> None:
        """Write nodes, weights and shapes to the model, and drop what nothing reads any more."""
        from onnx import helper

        graph = self.graph
        kept = [*self.nodes]
        del graph.node[:]
        graph.node.extend(kept)
        graph.initializer.extend(self._weights)
        read = {name for node in graph.node for name in node.input} | self.ends
        used = [tensor for tensor in graph.initializer if tensor.name in read]
        if len(used) < len(graph.initializer):
            del graph.initializer[:]
            graph.initializer.extend(used)
        made = {name for node in graph.node for name in node.output}
        values = [value for value in graph.value_info if value.name in made]
        del graph.value_info[:]
        graph.value_info.extend(values)
        for name, kind, shape in self._new:
            if name in made and name not in self.ends:
                graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
        for opset in self.model.opset_import:
            if opset.domain in _STANDARD:
                opset.version = self.opset
        domains = {opset.domain for opset in self.model.opset_import}
        if CONTRIBUTED not in domains and any(n.domain == CONTRIBUTED for n in graph.node):
            self.model.opset_import.append(helper.make_opsetid(CONTRIBUTED, 1))

    def raise_opset(self, least: int) -> None:
        """To an opset that only adds operators. Between 13 and 17 that is so for everything but
        RoiAlign."""
        self.opset = max(self.opset, least)

    def _learn(self, value: ValueInfoProto) -> None:
        tensor = value.type.tensor_type
        self._types[value.name] = tensor.elem_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            self._shapes[value.name] = tuple(d.dim_value for d in tensor.shape.dim)

    def _index(self) -> None:
        self._makers = {name: node for node in self.nodes for name in node.output}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self._readers.setdefault(name, []).append(node)

    def _fresh(self, near: str) -> str:
        number, name = 0, f"{near}_rewritten"
        while name in self._names:
            number += 1
            name = f"{near}_rewritten_{number}"
        self._names.add(name)
        return name

    def _finish(
        self, old: Sequence[NodeProto], new: Sequence[NodeProto], made: Sequence[tuple[str, int]]
    ) -> None:
        gone = {id(node) for node in old}
        last = max(index for index, node in enumerate(self.nodes) if id(node) in gone)
        before = [node for node in self.nodes[: last + 1] if id(node) not in gone]
        self.nodes = [*before, *new, *self.nodes[last + 1 :]]
        self._new.extend((name, kind, self._shapes[name]) for name, kind in made)
        self._index()


class Replacement:
    """New nodes in the place of old ones; the last one added makes the old output."""

    def __init__(self, editor: GraphEditor, old: Sequence[NodeProto]) -> None:
        self._editor = editor
        self._old = list(old)
        self._name = old[-1].name or old[-1].output[0]
        self._nodes: list[NodeProto] = []
        self._made: list[tuple[str, int]] = []

    def add(
        self,
        operator: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        output: str = "",
        kind: int = FLOAT,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """The name of what the new node makes: `output`, or a new name."""
        from onnx import helper

        editor = self._editor
        made = output or editor._fresh(f"{self._name}_{operator}")
        if not output:
            editor._shapes[made], editor._types[made] = tuple(shape), kind
            self._made.append((made, kind))
        label = self._name if output else made
        self._nodes.append(
            helper.make_node(operator, list(inputs), [made], label, domain=domain, **attributes)
        )
        return made

    def reshape(self, source: str, shape: Sequence[int], output: str = "") -> str:
        """Nothing where the tensor has that shape already and needs no other name."""
        editor = self._editor
        if not output and editor.shape(source) == tuple(shape):
            return source
        target = editor.ints(f"{self._name}_shape", shape)
        kind = editor.kind(source)
        return self.add("Reshape", [source, target], shape, output, kind)

    def transpose(self, source: str, order: Sequence[int], output: str = "") -> str:
        """Nothing where the order stays and no other name is needed."""
        editor = self._editor
        if not output and list(order) == sorted(order):
            return source
        shape = editor.shape(source)
        assert shape is not None
        moved = tuple(shape[side] for side in order)
        kind = editor.kind(source)
        return self.add("Transpose", [source], moved, output, kind, perm=list(order))

    def add_convolution(
        self,
        like: Convolution,
        source: str,
        kernel: Floats,
        bias: Floats | None,
        shape: tuple[int, ...],
        output: str = "",
        **changed: Any,
    ) -> str:
        """A Conv with the settings of another one, but for those that are given."""
        name = like.node.name or like.output
        inputs = [source, self._editor.floats(f"{name}_kernel", kernel)]
        if bias is not None:
            inputs.append(self._editor.floats(f"{name}_bias", bias))
        settings: dict[str, Any] = {
            "kernel_shape": list(kernel.shape[2:]),
            "strides": list(like.strides),
            "pads": list(like.pads),
            "dilations": list(like.dilations),
            "group": like.group,
            **changed,
        }
        return self.add("Conv", inputs, shape, output, **settings)

    def add_pointwise(
        self,
        name: str,
        source: str,
        matrix: Floats,
        bias: Floats | None = None,
        output: str = "",
    ) -> str:
        """A Conv of single pixels by a matrix (outputs, inputs)."""
        shape = self._editor.shape(source)
        assert shape is not None
        kernel = matrix.reshape(*matrix.shape, 1, 1)
        inputs = [source, self._editor.floats(f"{name}_kernel", kernel)]
        if bias is not None:
            inputs.append(self._editor.floats(f"{name}_bias", bias))
        made = (shape[0], matrix.shape[0], *shape[2:])
        return self.add("Conv", inputs, made, output, kernel_shape=[1, 1])

    def add_copy(self, node: NodeProto, source: str, output: str = "") -> str:
        """The same operator on another tensor; the shape is that of its new input."""
        shape = self._editor.shape(source)
        assert shape is not None
        settings = {a.name: attribute(node, a.name) for a in node.attribute}
        inputs = [source, *node.input[1:]]
        return self.add(node.op_type, inputs, shape, output, domain=node.domain, **settings)

    def done(self) -> str:
        """The name of the layer that was rewritten."""
        self._editor._finish(self._old, self._nodes, self._made)
        return self._name


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    from onnx import helper

    entry = next((a for a in node.attribute if a.name == name), None)
    if entry is None:
        return default
    value = helper.get_attribute_value(entry)
    return value.decode() if isinstance(value, bytes) else value


def axes_of(editor: GraphEditor, node: NodeProto, rank: int) -> list[int] | None:
    """The axes of a reduction, as an attribute or as an input, counted from the front; None where
    they are not constant."""
    axes = attribute(node, "axes")
    if axes is None and len(node.input) > 1 and node.input[1]:
        values = editor.constant(node.input[1])
        if values is None:
            return None
        axes = [int(value) for value in values.reshape(-1)]
    if not axes:
        return None if attribute(node, "noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def rewritten(
    editor: GraphEditor,
    operators: Collection[str],
    rewrite: Callable[[GraphEditor, NodeProto], bool],
    only: Collection[str] | None = None,
) -> list[str]:
    """The names of the layers that were rewritten: of all with these operators, or of `only`."""
    layers = []
    for node in [n for n in editor.nodes if n.op_type in operators]:
        label = node.name or node.output[0]
        if only is not None and label not in only:
            continue
        is_there = editor.maker(node.output[0]) is node
        if is_there and rewrite(editor, node):
            layers.append(label)
    return layers


Applied = Callable[..., list[str]]
"""Takes a `GraphEditor` and, optionally, names of layers; rewrites those, or all that it can, and
returns the names of the layers it has rewritten."""


def each(*operators: str) -> Callable[[Callable[[GraphEditor, NodeProto], bool]], Applied]:
    """Makes a rewrite of one node a rewrite of a graph, or of some of its layers."""

    def wrap(rewrite: Callable[[GraphEditor, NodeProto], bool]) -> Applied:
        def apply(editor: GraphEditor, only: Collection[str] | None = None) -> list[str]:
            return rewritten(editor, operators, rewrite, only)

        apply.__doc__ = rewrite.__doc__
        return apply

    return wrap


def close_to(value: float | None, target: float) -> bool:
    return value is not None and math.isclose(value, target, rel_tol=1e-3)


def is_float(editor: GraphEditor, node: NodeProto) -> bool:
    """Whether it computes with 32-bit floats of known shapes."""
    names = (node.input[0], node.output[0])
    return all(editor.kind(name) == FLOAT and editor.shape(name) is not None for name in names)


# Convolutions, as rewrites read them.


POINTWISE = frozenset(
    (
        "Relu",
        "LeakyRelu",
        "Clip",
        "Sigmoid",
        "HardSigmoid",
        "HardSwish",
        "Tanh",
        "Elu",
        "Gelu",
        "Abs",
        "Neg",
        "Exp",
        "Sqrt",
        "Softplus",
        "Mish",
    )
)
"""Operators that compute each value from one value of their first input, with constants."""


@dataclass(frozen=True)
class Convolution:
    """A two-dimensional Conv with constant weights. `pads` are top, left, bottom, right."""

    node: NodeProto
    source: str
    output: str
    kernel: Floats
    bias: Floats
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    group: int

    @property
    def is_pointwise(self) -> bool:
        """One pixel in, one pixel out, at the same place."""
        return (
            self.kernel.shape[2:] == (1, 1) and self.strides == (1, 1) and self.pads == (0, 0, 0, 0)
        )


def convolution(editor: GraphEditor, node: NodeProto | None) -> Convolution | None:
    """None where it is none, or one whose weights, shapes or padding are not known."""
    import numpy as np

    if node is None or node.op_type != "Conv" or node.domain not in ("", "ai.onnx"):
        return None
    kernel = editor.constant(node.input[1])
    shapes = editor.shape(node.input[0]), editor.shape(node.output[0])
    if kernel is None or kernel.ndim != 4 or None in shapes or kernel.dtype != np.float32:
        return None
    if attribute(node, "auto_pad", "NOTSET") != "NOTSET" or editor.kind(node.output[0]) != FLOAT:
        return None
    bias: Floats | None = np.zeros(kernel.shape[0], np.float32)
    if len(node.input) > 2 and node.input[2]:
        bias = editor.constant(node.input[2])
    if bias is None:
        return None
    return Convolution(
        node=node,
        source=str(node.input[0]),
        output=str(node.output[0]),
        kernel=kernel.astype(np.float64),
        bias=bias.astype(np.float64),
        strides=tuple(attribute(node, "strides", [1, 1])),
        pads=tuple(attribute(node, "pads", [0, 0, 0, 0])),
        dilations=tuple(attribute(node, "dilations", [1, 1])),
        group=int(attribute(node, "group", 1)),
    )
