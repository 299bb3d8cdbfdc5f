"""Parameters, MACs and memory of a network without its weights and without an export.

The network is built and called on PyTorch's meta device, where tensors have shapes and no data. The
calls become a graph as the exporter and `graph.simplify` would leave it, with batch norms in their
convolutions, and that graph is counted by `graph.count` like that of a file: the values are equal.

Only calls whose graph is certain are taken. Any other, or a network that cannot be built on the
meta device, raises `NotCountable`, and the values have to come from an exported file.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from onnx import ModelProto, TensorProto, helper
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from edgeloop.graph.count import graph_info
from edgeloop.graph.info import GraphInfo
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.spaces import build

_META = torch.device("meta")
_WEIGHTED = frozenset(("Conv", "ConvTranspose", "Gemm", "BatchNormalization"))
_INPUT = "image"


class NotCountable(Exception):
    """The network does something whose graph only the exporter knows."""


def count_on_meta(arch: Architecture, project: Path | None = None) -> GraphInfo:
    """What `graph.inspect` would say of the exported file. Raises NotCountable."""
    try:
        with _building_on_meta():
            net = build(arch, project=project)
        return graph_info("", graph_on_meta(net, arch))
    except NotCountable:
        raise
    # A user's code may fail on the meta device in any way: the export then says what is wrong.
    except Exception as error:
        raise NotCountable(str(error)) from error


@contextmanager
def _building_on_meta() -> Iterator[None]:
    """Modules that a space imports on the way keep their tensors on the CPU: a later build of the
    same process needs their values."""
    plain_import = builtins.__import__

    def import_on_cpu(*args: Any, **kwargs: Any) -> Any:
        builtins.__import__ = plain_import  # entering a device imports, too
        try:
            with torch.device("cpu"):
                return plain_import(*args, **kwargs)
        finally:
            builtins.__import__ = import_on_cpu

    builtins.__import__ = import_on_cpu
    try:
        with _META:
            yield
    finally:
        builtins.__import__ = plain_import


def graph_on_meta(net: nn.Module, arch: Architecture) -> ModelProto:
    """The graph with the shape of every tensor and without the values of weights."""
    recorder = _Recorder(net)
    image = torch.empty(arch.shape, device=_META)
    recorder.place(image, _INPUT)
    with torch.no_grad(), recorder:
        output = net.eval()(image)
    is_tensor = isinstance(output, Tensor) and tuple(output.shape[:2]) == (1, arch.classes)
    if not is_tensor:
        raise NotCountable("its output does not fit the classes")
    return recorder.model(recorder.name_of(output))


@dataclass
class _Node:
    """`weights` are the shapes of its constants, by names of their own."""

    operator: str
    inputs: list[str]
    output: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    weights: dict[str, Sequence[int]] = field(default_factory=dict)


class _Recorder(TorchFunctionMode):
    """Turns the calls of a network into nodes. Names are by object: a tensor that is changed in
    place gets the name of its new value."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._constants = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}
        self._used: set[int] = set()
        self._names: dict[int, str] = {}
        self._shapes: dict[str, Sequence[int]] = {}
        self._held: list[Tensor] = []  # an id must not be given to another tensor
        self._shared_memory: set[str] = set()
        self._nodes: dict[str, _Node] = {}
        self._computed: set[tuple[str, ...]] = set()

    def place(self, tensor: Tensor, name: str) -> None:
        if tensor.dtype != torch.float32:
            raise NotCountable(f"it has tensors of the type {tensor.dtype}")
        self._names[id(tensor)] = name
        self._shapes[name] = tuple(tensor.shape)
        self._held.append(tensor)

    def name_of(self, tensor: object) -> str:
        try:
            return self._names[id(tensor)]
        except KeyError:
            raise NotCountable("it has a tensor that no call made") from None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor):
            if _has_tensor(result):
                raise NotCountable(f"{_name(func)} returns several tensors")
            return result
        if _name(func) in ("__get__", "__getattr__") or id(result) in self._constants:
            raise NotCountable("it reads a property of a tensor that is a tensor")
        handler = _HANDLERS.get(_name(func))
        if handler is None:
            raise NotCountable(f"{_name(func)} is not known")
        handler(self, result, *args, **kwargs)
        return result

    # What handlers use

    def add(
        self,
        result: Tensor,
        operator: str,
        inputs: Sequence[object],
        weights: Mapping[str, Sequence[int]] | None = None,
        **attributes: Any,
    ) -> None:
        """A node that makes `result`."""
        names = [self._input(value) for value in inputs]
        if self._names.get(id(result)) in self._shared_memory:
            raise NotCountable("it changes a view in place")
        if operator not in _WEIGHTED:
            # The exporter may compute it once: how often is not known here.
            if (operator, *names) in self._computed:
                raise NotCountable(f"it computes {operator} of the same tensors twice")
            self._computed.add((operator, *names))
        output = f"t{len(self._nodes)}"
        own = {f"{output}_{name}": shape for name, shape in (weights or {}).items()}
        self._nodes[output] = _Node(operator, [*names, *own], output, attributes, own)
        self.place(result, output)

    def weight(self, tensor: object) -> Sequence[int]:
        """The shape of a parameter or buffer, which no other call uses."""
        if not isinstance(tensor, Tensor) or id(tensor) not in self._constants:
            raise NotCountable("it computes its weights")
        if id(tensor) in self._used:
            raise NotCountable("it uses a weight twice")
        if tensor.dtype != torch.float32:
            raise NotCountable(f"it has weights of the type {tensor.dtype}")
        self._used.add(id(tensor))
        return tuple(tensor.shape)

    def alias(self, result: Tensor, source: object) -> None:
        """The same values under another shape share memory in PyTorch and not in the graph."""
        self._shared_memory |= {self.name_of(source), self.name_of(result)}

    def passes(self, result: Tensor, source: object) -> None:
        name = self.name_of(source)
        self.place(result, name)
        if result is not source:
            self._shared_memory.add(name)

    def _input(self, value: object) -> str:
        if id(value) in self._names:
            return self._names[id(value)]
        shape = self.weight(value)
        name = f"w{len(self._used)}"
        self._shapes[name] = shape
        return name

    # The graph

    def model(self, output: str) -> ModelProto:
        nodes = self._folded(self._live(output), output)
        made = {node.output for node in nodes}
        weights: dict[str, Sequence[int]] = {}
        for node in nodes:
            constants = (n for n in node.inputs if n not in made and n not in ("", _INPUT))
            weights |= {n: node.weights.get(n, self._shapes.get(n, ())) for n in constants}
        if output not in made:
            raise NotCountable("it returns its input")
        kind = TensorProto.FLOAT
        graph = helper.make_graph(
            [
                helper.make_node(node.operator, node.inputs, [node.output], **node.attributes)
                for node in nodes
            ],
            "counted",
            [helper.make_tensor_value_info(_INPUT, kind, self._shapes[_INPUT])],
            [helper.make_tensor_value_info(output, kind, self._shapes[output])],
            value_info=[
                helper.make_tensor_value_info(name, kind, self._shapes[name])
                for name in (node.output for node in nodes)
                if name != output
            ],
        )
        for name, shape in weights.items():
            graph.initializer.add(name=name, dims=shape, data_type=kind)
        return helper.make_model(graph)

    def _live(self, output: str) -> list[_Node]:
        """The nodes that the output depends on."""
        needed = {output}
        live = []
        for node in reversed(self._nodes.values()):
            if node.output in needed:
                live.append(node)
                needed.update(node.inputs)
        return live[::-1]

    def _folded(self, nodes: Sequence[_Node], output: str) -> list[_Node]:
        """Without the batch norms that alone read a convolution."""
        readers: dict[str, int] = {}
        for node in nodes:
            for name in node.inputs:
                readers[name] = readers.get(name, 0) + 1
        makers = {node.output: node for node in nodes}
        kept: list[_Node] = []
        for node in nodes:
            maker = makers.get(node.inputs[0]) if node.operator == "BatchNormalization" else None
            is_alone = maker is not None and readers[maker.output] == 1 and maker.output != output
            if maker is None or maker.operator != "Conv" or not is_alone:
                kept.append(node)
                continue
            kernel = next(iter(maker.weights.values()))
            name = maker.output
            maker.weights = {f"{name}_kernel": kernel, f"{name}_bias": (kernel[0],)}
            maker.inputs = [maker.inputs[0], *maker.weights]
            maker.output = node.output
        return kept


# One handler per function of PyTorch, by its name: what the exporter writes for it at opset 18.


def _conv(operator: str) -> Callable[..., None]:
    def handle(
        recorder: _Recorder,
        result: Tensor,
        source: object,
        weight: object,
        bias: object = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        if any(isinstance(value, str) for value in (*args, *kwargs.values())):
            raise NotCountable("the convolution finds its padding itself")
        weights = {"kernel": recorder.weight(weight)}
        if bias is not None:
            weights["bias"] = recorder.weight(bias)
        recorder.add(result, operator, [source], weights)

    return handle


def _linear(
    recorder: _Recorder, result: Tensor, source: Tensor, weight: object, bias: object = None
) -> None:
    if source.dim() != 2 or bias is None:
        raise NotCountable("linear is a chain of nodes here")
    weights = {"weight": recorder.weight(weight), "bias": recorder.weight(bias)}
    recorder.add(result, "Gemm", [source], weights, transB=1)


def _batch_norm(
    recorder: _Recorder,
    result: Tensor,
    source: object,
    running_mean: object,
    running_var: object,
    weight: object = None,
    bias: object = None,
    training: bool = False,
    *_: object,
    **__: object,
) -> None:
    if training or weight is None or bias is None:
        raise NotCountable("batch_norm has no weights of its own")
    names = {"scale": weight, "shift": bias, "mean": running_mean, "variance": running_var}
    weights = {name: recorder.weight(each) for name, each in names.items()}
    recorder.add(result, "BatchNormalization", [source], weights)


def _one(operator: str) -> Callable[..., None]:
    def handle(recorder: _Recorder, result: Tensor, source: object, inplace: bool = False) -> None:
        recorder.add(result, operator, [source])

    return handle


def _silu(recorder: _Recorder, result: Tensor, source: Tensor, inplace: bool = False) -> None:
    if inplace:
        raise NotCountable("silu reads what it overwrites")
    gate = torch.empty(source.shape, device=_META)
    recorder.add(gate, "Sigmoid", [source])
    recorder.add(result, "Mul", [source, gate])


def _clip(
    recorder: _Recorder,
    result: Tensor,
    source: object,
    *_: object,
    **__: object,
) -> None:
    recorder.add(result, "Clip", [source], {"low": (), "high": ()})


def _binary(operator: str) -> Callable[..., None]:
    def handle(recorder: _Recorder, result: Tensor, first: object, second: object) -> None:
        recorder.add(result, operator, [first, second])

    return handle


def _concat(recorder: _Recorder, result: Tensor, tensors: Sequence[object], dim: int = 0) -> None:
    recorder.add(result, "Concat", list(tensors), axis=int(dim))


def _resize(
    recorder: _Recorder,
    result: Tensor,
    source: Tensor,
    size: object = None,
    scale_factor: object = None,
    mode: str = "nearest",
    align_corners: object = None,
    recompute_scale_factor: object = None,
    antialias: bool = False,
) -> None:
    is_plain = size is None and not recompute_scale_factor and not antialias
    if source.dim() != 4 or not is_plain or mode not in ("nearest", "bilinear"):
        raise NotCountable("interpolate has a size that is computed")
    recorder.add(result, "Resize", [source], {"scales": (4,)})


def _global_average(
    recorder: _Recorder, result: Tensor, source: Tensor, output_size: object
) -> None:
    if source.dim() != 4 or tuple(result.shape[2:]) != (1, 1):
        raise NotCountable("adaptive_avg_pool2d has windows of several sizes")
    recorder.add(result, "GlobalAveragePool", [source])


def _max_pool(
    recorder: _Recorder, result: Tensor, source: Tensor, *args: object, **kwargs: object
) -> None:
    is_unusual = kwargs.get("return_indices") or kwargs.get("ceil_mode") or len(args) > 4
    if is_unusual or source.dim() != 4:
        raise NotCountable("max_pool2d is more than one node")
    recorder.add(result, "MaxPool", [source])


def _flatten(
    recorder: _Recorder, result: Tensor, source: Tensor, start_dim: int = 0, end_dim: int = -1
) -> None:
    if source.dim() != 4 or start_dim != 1 or end_dim not in (-1, 3):
        raise NotCountable("flatten is a Reshape here")
    recorder.add(result, "Flatten", [source], axis=1)
    recorder.alias(result, source)


def _dropout(
    recorder: _Recorder,
    result: Tensor,
    source: object,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> None:
    if training:
        raise NotCountable("dropout is active")
    recorder.passes(result, source)


_HANDLERS: Mapping[str, Callable[..., None]] = {
    "conv2d": _conv("Conv"),
    "conv_transpose2d": _conv("ConvTranspose"),
    "linear": _linear,
    "batch_norm": _batch_norm,
    "relu": _one("Relu"),
    "relu_": _one("Relu"),
    "relu6": _clip,
    "hardtanh": _clip,
    "hardswish": _one("HardSwish"),
    "sigmoid": _one("Sigmoid"),
    "tanh": _one("Tanh"),
    "silu": _silu,
    "add": _binary("Add"),
    "add_": _binary("Add"),
    "__add__": _binary("Add"),
    "__iadd__": _binary("Add"),
    "sub": _binary("Sub"),
    "__sub__": _binary("Sub"),
    "mul": _binary("Mul"),
    "__mul__": _binary("Mul"),
    "div": _binary("Div"),
    "__truediv__": _binary("Div"),
    "cat": _concat,
    "concat": _concat,
    "interpolate": _resize,
    "adaptive_avg_pool2d": _global_average,
    "max_pool2d": _max_pool,
    "flatten": _flatten,
    "dropout": _dropout,
    "dropout2d": _dropout,
}


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", "")


def _has_tensor(result: object) -> bool:
    return isinstance(result, Sequence) and any(isinstance(each, Tensor) for each in result)
