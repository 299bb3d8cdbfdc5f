"""The 15,625 cells of NAS-Bench-201, which of them are the same, and their networks as ONNX.

A cell has four nodes; the first is its input and the last its output. Each of the six edges applies
one of five operations, and a node is the sum of its edges. A cell is named by six digits, the
operation of each edge in the order of `EDGES`, as in the tables of the benchmark.

Many cells compute the same: an edge `none` is absent, an edge `skip_connect` is its source, and
what does not reach the output is never run. `canonical` gives all of them one expression, and a
network is built from the expression, so that each is measured once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
CELLS = ["".join(cell) for cell in product("01234", repeat=len(EDGES))]
_CHANNELS = (16, 32, 64)
_CLASSES = 100
_SIDE = 32
REPEATS = 5  # cells of a stage
_OPSET = 17

Term = tuple[str, int]  # an operation, and the node it is applied to; 0 is the cell's input
Nodes = tuple[tuple[Term, ...], ...]  # the sum that each node after the input is; output last


@cache
def canonical(cell: str) -> Nodes:
    """What a cell computes, in one form for all cells that compute the same; () if that is zero."""
    terms: dict[int, list[Term]] = {}  # of the nodes that are not zero
    alias = {0: 0}  # the node that a node equals
    for node in range(1, 4):
        edges = zip(EDGES, map(int, cell), strict=True)
        into = [(source, OPERATIONS[one]) for (source, target), one in edges if target == node]
        kept = [(one, alias[source]) for source, one in into if one != "none" and source in alias]
        if len(kept) == 1 and kept[0][0] == "skip_connect":
            alias[node] = kept[0][1]
        elif kept:
            alias[node], terms[node] = node, kept
    if 3 not in alias:
        return ()
    if alias[3] == 0:
        return ((("skip_connect", 0),),)
    return min(_orders(_merged(alias[3], terms)))


def _merged(last: int, terms: dict[int, list[Term]]) -> list[list[Term]]:
    """The nodes that the last one needs; a sum that is only added to another becomes part of it."""
    needed, todo = set(), [last]
    while todo:
        node = todo.pop()
        if node and node not in needed:
            needed.add(node)
            todo += [source for _, source in terms[node]]
    kept = {node: list(terms[node]) for node in sorted(needed)}
    for node in list(kept):
        uses = [
            (other, term) for other, all_of in kept.items() for term in all_of if term[1] == node
        ]
        if len(uses) == 1 and uses[0][1][0] == "skip_connect":
            user, term = uses[0]
            kept[user].remove(term)
            kept[user] += kept.pop(node)
    numbers = {0: 0, **{node: index for index, node in enumerate(kept, start=1)}}
    return [[(one, numbers[source]) for one, source in kept[node]] for node in kept]


def _orders(nodes: list[list[Term]]) -> list[Nodes]:
    """The nodes as they are, and with the two inner ones swapped where that is allowed."""
    found = [tuple(tuple(sorted(terms)) for terms in nodes)]
    if len(nodes) == 3 and all(source != 1 for _, source in nodes[1]):
        swap = (0, 2, 1)
        swapped = [nodes[1], nodes[0], [(one, swap[source]) for one, source in nodes[2]]]
        found.append(tuple(tuple(sorted(terms)) for terms in swapped))
    return found


@cache
def representatives() -> dict[str, str]:
    """For every cell the first one that computes the same."""
    first: dict[Nodes, str] = {}
    return {cell: first.setdefault(canonical(cell), cell) for cell in CELLS}


@cache
def _counts(cell: str) -> dict[str, float]:
    made = {"params": 0, "macs": 0}
    convolutions = [operation for terms in canonical(cell) for operation, _ in terms]
    taps = convolutions.count("nor_conv_1x1") + 9 * convolutions.count("nor_conv_3x3")
    for stage, channels in enumerate(_CHANNELS):
        weights = REPEATS * taps * channels**2
        if stage:
            before = _CHANNELS[stage - 1]
            weights += 9 * (before + channels) * channels + before * channels
        made["params"] += weights
        made["macs"] += weights * (_SIDE >> stage) ** 2
    made["params"] += 27 * _CHANNELS[0] + _CHANNELS[-1] * _CLASSES
    made["macs"] += 27 * _CHANNELS[0] * _SIDE**2 + _CHANNELS[-1] * _CLASSES
    return {name: float(count) for name, count in made.items()}


def counts(cell: str) -> dict[str, float]:
    """Weights and multiply-accumulates of the network that is deployed, without biases."""
    return dict(_counts(representatives()[cell]))


def network(cell: str, repeats: int = REPEATS) -> ModelProto:
    """The benchmark's network: a stem, three stages of `repeats` cells with 16, 32 and 64 channels,
    a residual block of stride two between stages, and a linear classifier. Batch norms are folded
    into their convolutions. A cell without a path to its output multiplies its input by zero, as in
    the benchmark's own code. Weights are random, the same each time."""
    from onnx import TensorProto, checker, helper

    made = _Network()
    here = made.conv("image", 3, _CHANNELS[0], 3)
    for stage, channels in enumerate(_CHANNELS):
        if stage:
            here = made.reduction(here, _CHANNELS[stage - 1], channels)
        for _ in range(repeats):
            here = made.cell(canonical(cell), here, channels)
    here = made.node("GlobalAveragePool", [made.node("Relu", [here])])
    here = made.node("Flatten", [here])
    weights = [made.weight(_CHANNELS[-1], _CLASSES), made.weight(_CLASSES)]
    made.node("Gemm", [here, *weights], output="logits")
    graph = helper.make_graph(
        made.nodes,
        f"nasbench201-{cell}",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, _SIDE, _SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, _CLASSES])],
        made.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    checker.check_model(model)
    return model


@dataclass
class _Network:
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def node(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        import numpy as np
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        rng = np.random.default_rng(len(self.weights))
        fan_in = max(1, int(np.prod(shape[1:])))
        values = rng.standard_normal(shape).astype(np.float32) * (2 / fan_in) ** 0.5
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def constant(self, value: float) -> str:
        import numpy as np
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.full(1, value, np.float32), name))
        return name

    def conv(self, source: str, taken: int, given: int, kernel: int, stride: int = 1) -> str:
        inputs = [source, self.weight(given, taken, kernel, kernel), self.weight(given)]
        sides = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
        return self.node("Conv", inputs, **sides)

    def reduction(self, source: str, taken: int, given: int) -> str:
        first = self.conv(self.node("Relu", [source]), taken, given, 3, stride=2)
        second = self.conv(self.node("Relu", [first]), given, given, 3)
        smaller = self.node("AveragePool", [source], kernel_shape=[2, 2], strides=[2, 2])
        return self.node("Add", [self.conv(smaller, taken, given, 1), second])

    def cell(self, nodes: Nodes, source: str, channels: int) -> str:
        """Operations of one node share its activation, as compilers have it."""
        if not nodes:
            return self.node("Mul", [source, self.constant(0.0)])
        sums, active = [source], {}
        for terms in nodes:
            parts = []
            for operation, index in terms:
                here = sums[index]
                if operation == "avg_pool_3x3":
                    sides = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1]}
                    here = self.node("AveragePool", [here], **sides)
                elif operation != "skip_connect":
                    if index not in active:
                        active[index] = self.node("Relu", [here])
                    kernel = 1 if operation == "nor_conv_1x1" else 3
                    here = self.conv(active[index], channels, channels, kernel)
                parts.append(here)
            total = parts[0]
            for part in parts[1:]:
                total = self.node("Add", [total, part])
            sums.append(total)
        return sums[-1]
