"""Exact rewrites for advice: equal outputs on odd shapes, and hands off where they would differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from edgeloop._util.isolation import as_file
from edgeloop.graph.rewrites.apply import apply_steps
from edgeloop.graph.rewrites.checking import compare_outputs
from edgeloop.graph.rewrites.registry import SPEED_REWRITES, RewriteStep
from edgeloop.graph.worker import advice_compare
from tests.graph.rewrites.cases import graph, node, number, values, whole

X = (1, 3, 17, 22)
MEAN, STD = values(3, 1, 1), np.abs(values(3, 1, 1)) + 0.5


def conv(source="x", target="y", kernel="k", bias="", **settings):
    names = [source, kernel, *([bias] if bias else []), target]
    return node("Conv", *names, **settings)


def normalized(shape=X, kernel=(7, 3, 3, 5), **attributes):
    nodes = [node("Sub", "x", "mean", "a"), node("Div", "a", "std", "b")]
    nodes.append(conv("b", bias="bias", **attributes))
    weights = {"mean": MEAN, "std": STD, "k": values(*kernel), "bias": values(kernel[0])}
    return graph(nodes, {"x": shape}, weights)


def channel_last():
    nodes = [
        node("Mul", "x", "std", "a"),
        node("Add", "a", "mean", "b"),
        node("Transpose", "b", "c", perm=[0, 3, 1, 2]),
        conv("c", pads=[1, 1, 1, 1]),
    ]
    weights = {"std": STD.reshape(3), "mean": MEAN.reshape(3), "k": values(4, 3, 3, 3)}
    return graph(nodes, {"x": (1, 9, 8, 3)}, weights)


def behind(factor=None, **attributes):
    nodes = [conv(target="a", bias="bias", **attributes), node("Mul", "a", "f", "y")]
    weights = {"k": values(6, 1, 3, 3), "bias": values(6), "f": values(6, 1, 1)}
    return graph(nodes, {"x": (1, 6, 7, 5)}, weights | ({} if factor is None else {"f": factor}))


def focus(order=((0, 0), (1, 0), (0, 1), (1, 1)), **attributes):
    names = [f"s{row}{column}" for row, column in order]
    nodes, weights = [], {"axes": whole(2, 3), "steps": whole(2, 2), "k": values(5, 12, 3, 3)}
    for name, (row, column) in zip(names, order, strict=True):
        weights |= {f"{name}_from": whole(row, column), f"{name}_to": whole(10**6, 10**6)}
        nodes.append(node("Slice", "x", f"{name}_from", f"{name}_to", "axes", "steps", name))
    nodes += [node("Concat", *names, "j", axis=1), conv("j", **attributes)]
    return graph(nodes, {"x": (1, 3, 16, 22)}, weights)


def unshuffled(size=2):
    shapes = {"to6": whole(1, 3, 8, size, 11, size), "to4": whole(1, 3 * size**2, 8, 11)}
    nodes = [
        node("Reshape", "x", "to6", "a"),
        node("Transpose", "a", "b", perm=[0, 1, 3, 5, 2, 4]),
        node("Reshape", "b", "to4", "c"),
        conv("c", strides=[2, 1], pads=[1, 0, 0, 1]),
    ]
    weights = {**shapes, "k": values(4, 3 * size**2, 2, 3)}
    return graph(nodes, {"x": (1, 3, 8 * size, 11 * size)}, weights)


def space_to_depth(**attributes):
    nodes = [node("SpaceToDepth", "x", "a", blocksize=2), conv("a", **attributes)]
    return graph(nodes, {"x": (1, 3, 8, 12)}, {"k": values(4, 12, 3, 3)})


def shuffled(*end, channels=6, groups=2, **weights):
    rest = channels // groups
    nodes = [
        node("Relu", "x", "r"),
        node("Reshape", "r", "to5", "a"),
        node("Transpose", "a", "b", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "b", "to4", "c"),
    ]
    shapes = {"to5": whole(1, groups, rest, 5, 7), "to4": whole(1, channels, 5, 7)}
    return graph([*nodes, *end], {"x": (1, channels, 5, 7)}, {**shapes, **weights})


def resized(size=(1, 4, 11, 21), kernel=(2, 4, 1, 1), middle=(), **settings):
    settings = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", **settings}
    nodes = [node("Resize", "x", "", "", "size", "a", **settings), *middle]
    nodes += [conv("b" if middle else "a", target="c", bias="bias"), node("Relu", "c", "y")]
    weights = {"size": whole(*size), "k": values(*kernel), "bias": values(kernel[0])}
    return graph(nodes, {"x": (1, 4, 5, 6)}, weights)


def joined_and_resized(axis=1):
    nodes = [
        node("Resize", "x", "", "s2", "a", mode="linear"),
        node("Resize", "z", "", "s4", "b", mode="nearest"),
        node("Concat", "a", "w", "b", "j", axis=axis),
        conv("j", bias="bias"),
    ]
    shapes = {"x": (1, 2, 6, 8), "z": (1, 3, 3, 4), "w": (1, 1, 12, 16)}
    factors = [np.array([1, 1, scale, scale], np.float32) for scale in (2, 4)]
    weights = {"s2": factors[0], "s4": factors[1], "k": values(5, 6, 1, 1), "bias": values(5)}
    return graph(nodes, shapes, weights)


def pooled(**settings):
    nodes = [conv(target="a", bias="bias"), node("AveragePool", "a", "y", **settings)]
    weights = {"k": values(6, 3, 1, 1), "bias": values(6)}
    return graph(nodes, {"x": (1, 3, 9, 7)}, weights)


def hard_swish(form: str, three=3.0):
    nodes = [node("Add", "x", "three", "a"), node("Clip", "a", "zero", "six", "b")]
    if form == "late":
        nodes += [node("Mul", "x", "b", "c"), node("Div", "c", "six", "y")]
    elif form == "early":
        nodes += [node("Mul", "b", "sixth", "c"), node("Mul", "c", "x", "y")]
    else:
        nodes = [node("HardSigmoid", "x", "a", alpha=1 / 6, beta=0.5), node("Mul", "a", "x", "y")]
    weights = {"three": number(three), "zero": number(0), "six": number(6), "sixth": number(1 / 6)}
    return graph(nodes, {"x": (1, 4, 5, 7)}, weights)


def parallel(second: dict[str, Any] | None = None, end="Relu"):
    nodes = [
        conv(target="a", kernel="k", bias="bias", pads=[1, 0, 1, 2]),
        conv(target="b", kernel="l", **(second or {"pads": [1, 0, 1, 2]})),
        node("Relu", "a", "c"),
        node(end, "b", "d"),
        node("Concat", "c", "d", "y", axis=1),
    ]
    weights = {"k": values(4, 3, 3, 3), "l": values(2, 3, 3, 3), "bias": values(4)}
    return graph(nodes, {"x": X}, weights)


def added(stride=1, image=True, pads=(1, 1, 1, 1), small=(0, 0, 0, 0)):
    steps = {"strides": [stride, stride]}
    nodes = [
        conv(target="a", kernel="k", bias="bias", pads=list(pads), **steps),
        conv(target="b", kernel="l", bias="bias", pads=list(small), **steps),
        node("Add", "a", "b", "c"),
    ]
    nodes.append(node("Add", "c", "x", "y") if image else node("Relu", "c", "y"))
    weights = {"k": values(3, 3, 3, 3), "l": values(3, 3, 1, 1), "bias": values(3)}
    return graph(nodes, {"x": X}, weights)


def consecutive(first=(4, 3, 1, 1), second=(5, 4, 3, 3), bias=False, one=None, two=None):
    name = "bias" if bias else ""
    nodes = [conv(target="a", kernel="k", bias=name, **(one or {}))]
    nodes.append(conv("a", kernel="l", bias="last", **(two or {})))
    weights = {"k": values(*first), "l": values(*second), "last": values(second[0])}
    return graph(nodes, {"x": X}, weights | ({"bias": values(first[0])} if bias else {}))


def narrow(end=True, between="Relu"):
    nodes = [
        conv(target="a", kernel="k", bias="bias", pads=[1, 1, 1, 1]),
        node(between, "a", "b"),
        conv("b", target="c", kernel="d", group=10, pads=[1, 1, 1, 1]),
        node("Add", "c", "b", "e"),
        *([conv("e", kernel="l", bias="last")] if end else [node("Relu", "e", "y")]),
    ]
    kernels = {"k": values(10, 3, 3, 3), "d": values(10, 1, 3, 3), "l": values(6, 10, 1, 1)}
    return graph(nodes, {"x": X}, {**kernels, "bias": values(10), "last": values(6)})


def scores(end="Softmax", **settings):
    nodes = [conv(target="a", pads=[1, 1, 1, 1]), node(end, "a", "y", **settings)]
    return graph(nodes, {"x": X}, {"k": values(5, 3, 3, 3)})


EXACT = {
    "fold-scaling": [
        normalized(),
        normalized(pads=[0, 0, 0, 0], strides=[2, 3]),
    ],
    "fold-scaling-border": [
        normalized(pads=[1, 2, 1, 2]),
        normalized(pads=[2, 0, 1, 3], strides=[2, 1]),
        normalized(pads=[4, 4, 4, 4], dilations=[2, 2], strides=[2, 2]),
        channel_last(),
    ],
    "normalize-by-conv": [normalized(pads=[1, 0, 2, 1]), normalized()],
    "fold-scaling-behind": [behind(group=6, pads=[1, 1, 1, 1]), behind(number(0.3), group=6)],
    "plain-operands": [normalized(pads=[1, 1, 1, 1])],
    "stride-over-blocks": [
        focus(pads=[1, 1, 1, 1]),
        focus(((1, 1), (0, 0), (1, 0), (0, 1)), pads=[2, 0, 1, 1], strides=[2, 1]),
        unshuffled(),
        unshuffled(3),
        space_to_depth(pads=[1, 1, 1, 1]),
    ],
    "reorder-kernel": [
        shuffled(conv("c", pads=[1, 0, 0, 1]), k=values(4, 6, 3, 3)),
        shuffled(conv("c", strides=[2, 2]), groups=3, k=values(4, 6, 1, 1)),
    ],
    "shuffle-by-conv": [
        shuffled(node("Relu", "c", "y")),
        shuffled(node("Relu", "c", "y"), groups=3),
    ],
    "select-by-conv": [
        shuffled(
            node("Slice", "c", "from", "to", "axes", "y"),
            **{"from": whole(1), "to": whole(4)},
            axes=whole(1),
        )
    ],
    "conv-before-resize": [
        resized(),
        resized(coordinate_transformation_mode="align_corners"),
        resized(mode="nearest", coordinate_transformation_mode="asymmetric"),
        resized(kernel=(6, 4, 1, 1)),
    ],
    "parts-before-resize": [joined_and_resized()],
    "pool-before-conv": [pooled(kernel_shape=[2, 3], strides=[2, 1])],
    "hard-swish": [hard_swish("late"), hard_swish("early"), hard_swish("sigmoid")],
    "merge-joined": [parallel()],
    "merge-added": [added(), added(stride=2, image=False), added(image=False)],
    "merge-consecutive": [
        consecutive(two={"pads": [1, 2, 0, 1]}),
        consecutive(bias=True),
        consecutive((4, 3, 3, 2), (5, 4, 1, 1), bias=True, one={"pads": [1, 1, 1, 1]}),
        consecutive((3, 1, 3, 3), (5, 3, 1, 1), one={"group": 3, "strides": [2, 1]}),
    ],
    "pad-channels": [narrow(), narrow(between="Sigmoid")],
    "end-in-classes": [scores(axis=1), scores(axis=2), scores("Sigmoid"), scores("Relu")],
}

INEXACT = {
    "fold-scaling": [
        # another reader of the normalized image, and a factor for every row
        graph(
            [
                node("Sub", "x", "mean", "b"),
                conv("b", target="c"),
                node("ReduceSum", "b", "d"),
                node("Add", "c", "d", "y"),
            ],
            {"x": X},
            {"mean": MEAN, "k": values(2, 3, 1, 1)},
        ),
        graph(
            [node("Mul", "x", "rows", "b"), conv("b")],
            {"x": X},
            {"rows": values(1, 1, 17, 1), "k": values(2, 3, 1, 1)},
        ),
    ],
    "fold-scaling-border": [normalized()],
    "normalize-by-conv": [channel_last()],
    "fold-scaling-behind": [behind(values(1, 1, 1, 3), group=6)],
    "plain-operands": [
        graph([node("Div", "x", "c", "y")], {"x": X}, {"c": np.zeros((3, 1, 1), np.float32)})
    ],
    "stride-over-blocks": [
        focus(dilations=[2, 2]),
        space_to_depth(dilations=[2, 2]),
    ],
    "reorder-kernel": [shuffled(conv("c", group=2), k=values(4, 3, 1, 1))],
    "shuffle-by-conv": [
        # rows are turned, too
        graph(
            [
                node("Relu", "x", "r"),
                node("Reshape", "r", "to", "a"),
                node("Transpose", "a", "b", perm=[0, 2, 1, 3]),
                node("Relu", "b", "y"),
            ],
            {"x": (1, 4, 4, 6)},
            {"to": whole(1, 4, 4, 6)},
        )
    ],
    "select-by-conv": [
        graph(
            [
                node("Relu", "x", "r"),
                node("Slice", "r", "from", "to", "axes", "a"),
                node("Relu", "a", "y"),
            ],
            {"x": X},
            {"from": whole(1), "to": whole(3), "axes": whole(1)},
        )
    ],
    "conv-before-resize": [
        resized(kernel=(2, 4, 3, 3)),
        resized(middle=[node("Relu", "a", "b")]),
        resized(size=(1, 4, 3, 3)),
        resized(mode="cubic"),
    ],
    "parts-before-resize": [
        graph(
            [
                node("Resize", "x", "", "s", "a", mode="linear"),
                node("Relu", "a", "b"),
                node("Concat", "b", "w", "j", axis=1),
                conv("j"),
            ],
            {"x": (1, 2, 6, 8), "w": (1, 1, 12, 16)},
            {"s": np.array([1, 1, 2, 2], np.float32), "k": values(5, 3, 1, 1)},
        )
    ],
    "pool-before-conv": [pooled(kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
    "hard-swish": [hard_swish("late", 2.5), hard_swish("early", 2.0)],
    "merge-joined": [parallel({"pads": [1, 2, 1, 0]}), parallel(end="Sigmoid")],
    "merge-added": [
        # images with different channels, two images, and kernels that do not lie over each other
        graph(
            [
                conv(target="a", pads=[1, 1, 1, 1]),
                conv("w", target="b", kernel="l"),
                node("Add", "a", "b", "y"),
            ],
            {"x": X, "w": (1, 5, 17, 22)},
            {"k": values(3, 3, 3, 3), "l": values(3, 5, 1, 1)},
        ),
        graph(
            [
                conv(target="a", pads=[1, 1, 1, 1]),
                conv("w", target="b", kernel="l"),
                node("Add", "a", "b", "y"),
            ],
            {"x": X, "w": X},
            {"k": values(3, 3, 3, 3), "l": values(3, 3, 1, 1)},
        ),
        graph(
            [
                conv(target="a", pads=[0, 1, 0, 1]),
                conv(target="b", kernel="l", pads=[1, 0, 1, 0]),
                node("Add", "a", "b", "y"),
            ],
            {"x": X},
            {"k": values(3, 3, 1, 3), "l": values(3, 3, 3, 1)},
        ),
    ],
    "merge-consecutive": [consecutive(bias=True, two={"pads": [1, 1, 1, 1]})],
    "pad-channels": [narrow(end=False)],
    "end-in-classes": [
        graph([conv(target="y", pads=[1, 1, 1, 1])], {"x": X}, {"k": values(1, 3, 3, 3)})
    ],
}


def cases(table):
    return [
        pytest.param(name, model, id=f"{name}-{number}")
        for name, models in table.items()
        for number, model in enumerate(models)
    ]


def test_every_rewrite_has_a_function_and_both_kinds_of_tests():
    names = {rewrite.name for rewrite in SPEED_REWRITES}
    assert names == set(EXACT) == set(INEXACT)
    assert all(callable(rewrite.function) for rewrite in SPEED_REWRITES)


@pytest.mark.parametrize(("name", "model"), cases(EXACT))
def test_a_rewrite_changes_the_graph_and_no_output(name, model):
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    (layers,) = apply_steps(rewritten, [RewriteStep(name)])
    assert layers and rewritten.graph.node != model.graph.node
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(rewritten, strict_mode=True))
    found = compare_outputs(model, rewritten)
    assert found.is_equal and found.difference < 1e-5, found
    known = {value.name for value in rewritten.graph.value_info}
    ends = {value.name for value in rewritten.graph.output}
    assert {name for one in rewritten.graph.node for name in one.output} <= known | ends


@pytest.mark.parametrize(("name", "model"), cases(INEXACT))
def test_a_rewrite_that_would_change_outputs_is_not_done(name, model):
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    assert apply_steps(rewritten, [RewriteStep(name)]) == [[]]
    assert rewritten == model


def test_advice_may_be_about_some_layers_only():
    model = graph([node("Sub", "x", "c", "a"), node("Sub", "a", "c", "y")], {"x": X}, {"c": MEAN})
    assert apply_steps(model, [RewriteStep("plain-operands", ("y",))]) == [["y"]]
    assert [one.op_type for one in model.graph.node] == ["Sub", "Add"]


def test_a_mistake_at_the_border_is_found_even_where_outputs_hardly_vary():
    """The naive way to fold an offset, which forgets that the padding has none."""
    exact = normalized(pads=[1, 1, 1, 1])
    big = np.full(7, 1e4, np.float32)
    for tensor in exact.graph.initializer:
        if tensor.name == "bias":
            tensor.CopyFrom(onnx.numpy_helper.from_array(big, "bias"))
    naive = onnx.ModelProto()
    naive.CopyFrom(exact)
    apply_steps(naive, [RewriteStep("fold-scaling-border")])
    for tensor in naive.graph.initializer:
        if "border" in tensor.name:
            nothing = np.zeros(tuple(tensor.dims), np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(nothing, tensor.name))
    assert not compare_outputs(exact, naive).is_equal


def test_a_mistake_is_found_even_where_the_model_forgets_its_input():
    """As untrained models do: what comes behind the changed place hardly passes anything on."""
    exact = normalized(pads=[1, 1, 1, 1])
    exact.graph.node[-1].name = exact.graph.node[-1].output[0] = "inner"
    exact.graph.value_info.append(onnx.helper.make_tensor_value_info("inner", 1, [1, 7, 17, 20]))
    exact.graph.node.extend([node("Mul", "inner", "tiny", "t"), node("Add", "t", "big", "y")])
    for name, value in (("tiny", 1e-9), ("big", 5.0)):
        exact.graph.initializer.append(onnx.numpy_helper.from_array(number(value), name))
    exact = onnx.shape_inference.infer_shapes(exact, strict_mode=True)
    wrong = onnx.ModelProto()
    wrong.CopyFrom(exact)
    apply_steps(wrong, [RewriteStep("fold-scaling-border")])
    assert compare_outputs(exact, wrong).is_equal
    for tensor in wrong.graph.initializer:
        if "border" in tensor.name:
            nothing = np.zeros(tuple(tensor.dims), np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(nothing, tensor.name))
    assert not compare_outputs(exact, wrong).is_equal


def test_samples_are_cut_by_the_batch_of_the_model(tmp_path):
    made = graph([node("Relu", "x", "y")], {"x": (2, 3, 8, 8)}, {})
    onnx.save_model(made, str(tmp_path / "m.onnx"))
    given = {"x": as_file(values(6, 3, 8, 8), tmp_path)}
    path = str(tmp_path / "m.onnx")
    answer, _ = advice_compare(path, path, given)
    assert answer["is_equal"] and answer["problem"] == ""
