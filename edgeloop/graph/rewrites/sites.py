"""What the exact rewrites have in common: where each applies, and how convolutions are read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeloop.graph.rewrites.editor import (
    FLOAT,
    GraphEditor,
    Replacement,
    attribute,
    rewritten,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import NodeProto

    Floats = NDArray[Any]

Applied = Callable[[GraphEditor, Collection[str] | None], list[str]]
"""Rewrites the layers with these names, or all that it can; returns the names of those it did."""

POINTWISE = frozenset(
    (
        *("Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu"),
        *("Gelu", "Abs", "Neg", "Exp", "Sqrt", "Softplus", "Mish"),
    )
)
"""Operators that compute each value from one value of their first input, with constants."""


def sites(*operators: str) -> Callable[[Callable[[GraphEditor, NodeProto], bool]], Applied]:
    """Makes a rewrite of one node a rewrite of a graph, or of some of its layers."""

    def wrap(rewrite: Callable[[GraphEditor, NodeProto], bool]) -> Applied:
        def apply(editor: GraphEditor, only: Collection[str] | None = None) -> list[str]:
            return rewritten(editor, operators, rewrite, only)

        apply.__doc__ = rewrite.__doc__
        return apply

    return wrap


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
        node,
        str(node.input[0]),
        str(node.output[0]),
        kernel.astype(np.float64),
        bias.astype(np.float64),
        tuple(attribute(node, "strides", [1, 1])),
        tuple(attribute(node, "pads", [0, 0, 0, 0])),
        tuple(attribute(node, "dilations", [1, 1])),
        int(attribute(node, "group", 1)),
    )


def add_convolution(
    editor: GraphEditor,
    new: Replacement,
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
    inputs = [source, editor.floats(f"{name}_kernel", kernel)]
    if bias is not None:
        inputs.append(editor.floats(f"{name}_bias", bias))
    settings: dict[str, Any] = {
        "kernel_shape": list(kernel.shape[2:]),
        "strides": list(like.strides),
        "pads": list(like.pads),
        "dilations": list(like.dilations),
        "group": like.group,
        **changed,
    }
    return new.add("Conv", inputs, shape, output, **settings)


def add_pointwise(
    editor: GraphEditor,
    new: Replacement,
    name: str,
    source: str,
    matrix: Floats,
    bias: Floats | None = None,
    output: str = "",
) -> str:
    """A Conv of single pixels by a matrix (outputs, inputs)."""
    shape = editor.shape(source)
    assert shape is not None
    inputs = [source, editor.floats(f"{name}_kernel", matrix.reshape(*matrix.shape, 1, 1))]
    if bias is not None:
        inputs.append(editor.floats(f"{name}_bias", bias))
    made = (shape[0], matrix.shape[0], *shape[2:])
    return new.add("Conv", inputs, made, output, kernel_shape=[1, 1])


def copied(
    editor: GraphEditor, new: Replacement, node: NodeProto, source: str, output: str = ""
) -> str:
    """The same operator on another tensor; the shape is that of its new input."""
    shape = editor.shape(source)
    assert shape is not None
    settings = {a.name: attribute(node, a.name) for a in node.attribute}
    inputs = [source, *node.input[1:]]
    return new.add(node.op_type, inputs, shape, output, domain=node.domain, **settings)
