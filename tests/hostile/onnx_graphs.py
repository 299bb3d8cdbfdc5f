"""Graphs that are valid ONNX and grow when they are read: constants, subgraphs, functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.hostile.onnx_files import HUGE, Builder, tensor, tiny, whole

BIG = 10**10


def _computed(
    nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto], kind: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """`y = x + reduced(big)`, where `nodes` make `big` of constants alone."""
    nodes = [
        *nodes,
        helper.make_node("Cast", ["big"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["floats"], ["one"], keepdims=0),
        helper.make_node("Add", ["x", "one"], ["y"]),
    ]
    return tiny(nodes, initializers)


def _node(op: str, *inputs: str, out: str = "big", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [out], **attributes)


def _floats(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def _doubled(times: int, side: int = 2) -> onnx.ModelProto:
    """Each Concat is twice as long as the one before."""
    names = ["c0", *(f"c{number}" for number in range(1, times)), "big"]
    nodes = [_node("Concat", a, a, out=b, axis=0) for a, b in pairwise(names)]
    return _computed(nodes, [_floats("c0", side)])


def _many_large(count: int) -> onnx.ModelProto:
    """Each constant is small enough to be computed, all of them together are not."""
    shape = whole("shape", 1 << 22)
    nodes = [_node("ConstantOfShape", "shape", out=f"c{n}") for n in range(count)]
    nodes.append(_node("Sum", *(f"c{n}" for n in range(count))))
    return _computed(nodes, [shape])


def _loop(trips: int, width: int = 1) -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("Concat", ["state", "state"], ["next"], axis=0)
            if width > 1
            else helper.make_node("Add", ["state", "state"], ["next"]),
        ],
        "body",
        [
            tensor("turn", (), TensorProto.INT64),
            tensor("going", (), TensorProto.BOOL),
            tensor("state", ("n",)),
        ],
        [tensor("still", (), TensorProto.BOOL), tensor("next", ("n",))],
    )
    trip = numpy_helper.from_array(np.array(trips, np.int64), "trips")
    nodes = [helper.make_node("Loop", ["trips", "", "state0"], ["big"], body=body)]
    return _computed(nodes, [trip, _floats("state0", width)])


def _nested_if(depth: int) -> onnx.ModelProto:
    def branch(level: int, name: str) -> onnx.GraphProto:
        if level == 0:
            nodes = [helper.make_node("Relu", ["x"], [name])]
        else:
            nodes = [
                helper.make_node(
                    "If",
                    ["yes"],
                    [name],
                    then_branch=branch(level - 1, f"{name}t"),
                    else_branch=branch(0, f"{name}e"),
                )
            ]
        return helper.make_graph(nodes, name, [], [tensor(name)])

    yes = numpy_helper.from_array(np.array(True), "yes")
    outer = branch(depth, "y")
    return tiny(list(outer.node), [yes])


def _if_without_branches() -> onnx.ModelProto:
    yes = numpy_helper.from_array(np.array(True), "yes")
    return tiny([helper.make_node("If", ["yes"], ["y"])], [yes])


def _function(name: str, *calls: str) -> onnx.FunctionProto:
    """Calls the others one after the other."""
    ends = ["a", *(f"t{n}" for n in range(len(calls) - 1)), "b"]
    nodes = [
        helper.make_node(call, [ends[n]], [ends[n + 1]], domain="" if call == "Relu" else "own")
        for n, call in enumerate(calls)
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, opsets)


def _functions(*functions: onnx.FunctionProto, call: str = "f0") -> onnx.ModelProto:
    model = tiny(
        [helper.make_node(call, ["x"], ["y"], domain="own")],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
    )
    model.functions.extend(functions)
    return model


def _explosion(levels: int) -> onnx.ModelProto:
    """2 ** levels nodes from a few lines."""
    found = [_function(f"f{n}", f"f{n + 1}", f"f{n + 1}") for n in range(levels)]
    return _functions(*found, _function(f"f{levels}", "Relu"))


def _conv(image: int, kernel: int) -> onnx.ModelProto:
    nodes = [_node("Conv", "image", "kernel")]
    return _computed(
        nodes, [_floats("image", 1, 1, image, image), _floats("kernel", 1, 1, kernel, kernel)]
    )


def _reshape(*shape: int) -> onnx.ModelProto:
    return tiny([_node("Reshape", "x", "shape", out="y")], [whole("shape", *shape)])


def _pool(**attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("MaxPool", ["x"], ["y"], **attributes)
    return tiny([node], inputs=[tensor("x", (1, 3, 8, 8))], outputs=[tensor("y", (1, 3, "h", "w"))])


def _resized(scale: float) -> onnx.ModelProto:
    scales = numpy_helper.from_array(np.array([1, 1, scale, scale], np.float32), "scales")
    return tiny(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"])],
        [scales],
        inputs=[tensor("x", (1, 3, 8, 8))],
        outputs=[tensor("y", (1, 3, "h", "w"))],
    )


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "ConstantOfShape": lambda: _computed([_node("ConstantOfShape", "s")], [whole("s", BIG)]),
    "ConstantOfShape, negative": lambda: _computed(
        [_node("ConstantOfShape", "s")], [whole("s", -1)]
    ),
    "ConstantOfShape, many sides": lambda: _computed(
        [_node("ConstantOfShape", "s")], [whole("s", *([2**31] * 64))]
    ),
    "ConstantOfShape, 4 GB at once": lambda: _many_large(64),
    "Range": lambda: _computed(
        [_node("Range", "zero", "end", "step")],
        [
            numpy_helper.from_array(np.array(v, np.int64), n)
            for n, v in (("zero", 0), ("end", BIG), ("step", 1))
        ],
    ),
    "Range, step 0": lambda: _computed(
        [_node("Range", "zero", "end", "step")],
        [
            numpy_helper.from_array(np.array(v, np.int64), n)
            for n, v in (("zero", 0), ("end", BIG), ("step", 0))
        ],
    ),
    "Range, tiny step": lambda: _computed(
        [_node("Range", "zero", "end", "step")],
        [
            numpy_helper.from_array(np.array(v, np.float32), n)
            for n, v in (("zero", 0), ("end", 1), ("step", 1e-30))
        ],
    ),
    "Expand": lambda: _computed([_node("Expand", "c", "s")], [_floats("c", 1), whole("s", BIG)]),
    "Tile": lambda: _computed([_node("Tile", "c", "s")], [_floats("c", 1), whole("s", BIG)]),
    "Tile of 2**62": lambda: _computed(
        [_node("Tile", "c", "s")], [_floats("c", 4), whole("s", HUGE)]
    ),
    "Pad": lambda: _computed([_node("Pad", "c", "s")], [_floats("c", 1), whole("s", BIG, BIG)]),
    "Pad, negative": lambda: _computed(
        [_node("Pad", "c", "s")], [_floats("c", 1), whole("s", -9, 0)]
    ),
    "OneHot": lambda: _computed(
        [_node("OneHot", "places", "depth", "values")],
        [whole("places", *range(100)), whole("depth", BIG), whole("values", 0, 1)],
    ),
    "EyeLike": lambda: _computed(
        [_node("ConstantOfShape", "s", out="c"), _node("EyeLike", "c")],
        [whole("s", 10**6, 10**6)],
    ),
    "Resize of a constant": lambda: _computed(
        [_node("Resize", "c", "", "s")],
        [
            _floats("c", 1, 1, 4, 4),
            numpy_helper.from_array(np.array([1, 1, 500, 500], np.float32), "s"),
        ],
    ),
    "Upsampling by a million": lambda: _resized(1e6),
    "Upsampling by infinity": lambda: _resized(float("inf")),
    "Upsampling by NaN": lambda: _resized(float("nan")),
    "doubled 20 times": lambda: _doubled(20),
    "doubled 50 times": lambda: _doubled(50),
    "Conv of constants": lambda: _conv(2_000, 500),
    "Pow": lambda: _computed(
        [_node("Pow", "a", "b")], [whole("a", *([9] * 100)), whole("b", *([HUGE] * 100))]
    ),
    "division by 0": lambda: _computed([_node("Div", "a", "b")], [whole("a", 1), whole("b", 0)]),
    "Gather outside": lambda: _computed(
        [_node("Gather", "a", "b")], [whole("a", 1), whole("b", HUGE)]
    ),
    "Split into 2**40": lambda: tiny(
        [helper.make_node("Split", ["x", "s"], ["y"])], [whole("s", 2**40)]
    ),
    "Reshape to 2**62": lambda: _reshape(HUGE),
    "Reshape to -9": lambda: _reshape(-9, 4),
    "Reshape to 10,000 sides": lambda: _reshape(*([1] * 10_000)),
    "pool of 2**62": lambda: _pool(kernel_shape=[HUGE, HUGE]),
    "pool with pads of 2**40": lambda: _pool(kernel_shape=[2, 2], pads=[2**40] * 4),
    "pool with stride 0": lambda: _pool(kernel_shape=[2, 2], strides=[0, 0]),
    "pool with one side": lambda: _pool(kernel_shape=[2]),
    "Loop of 10**9 turns": lambda: _loop(10**9),
    "Loop that doubles": lambda: _loop(40, 2),
    "If without branches": _if_without_branches,
    "If 20 deep": lambda: _nested_if(20),
    "function that calls itself": lambda: _functions(_function("f0", "f0")),
    "functions that call each other": lambda: _functions(
        _function("f0", "f1"), _function("f1", "f0")
    ),
    "function explosion, 2**8": lambda: _explosion(8),
    "function explosion, 2**30": lambda: _explosion(30),
    "function chain of 2,000": lambda: _functions(
        *(_function(f"f{n}", f"f{n + 1}") for n in range(2_000)), _function("f2000", "Relu")
    ),
    "function that is not there": lambda: _functions(_function("f1", "Relu")),
    "function twice": lambda: _functions(_function("f0", "Relu"), _function("f0", "Relu")),
    "function without nodes": lambda: _functions(
        helper.make_function("own", "f0", ["a"], ["b"], [], [helper.make_opsetid("", 17)])
    ),
}


def _of_model(make: Callable[[], onnx.ModelProto]) -> Builder:
    def build(folder: Path) -> None:
        (folder / "net.onnx").write_bytes(make().SerializeToString())

    return build


INPUTS: Mapping[str, Builder] = {name: _of_model(make) for name, make in MODELS.items()}
