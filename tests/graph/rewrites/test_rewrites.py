"""Every rewrite computes what was there before, and leaves alone what only looks like it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from edgeloop.graph.check import read_graph
from edgeloop.graph.rewrites import apply as module
from edgeloop.graph.rewrites import layout
from edgeloop.graph.rewrites.apply import applied_rewrites, apply_rewrites, rewrite_notes
from edgeloop.graph.rewrites.editor import GraphEditor
from edgeloop.graph.rewrites.registry import COMPILER_REWRITES, Rewrite
from tests.graph.rewrites.cases import (
    gelu,
    graph,
    group_norm,
    layer_norm,
    linear,
    node,
    norm,
    normed_gemm,
    number,
    one,
    values,
    whole,
    windows,
)

IMAGE = (1, 8, 6, 6)

# The rewrite, a graph that it is for, and operators that are left afterwards.
CASES = {
    "cast": (
        "cast",
        lambda: graph([node("Cast", "x", "a", to=1), node("Relu", "a", "y")], {"x": IMAGE}, {}),
        "Relu",
    ),
    "gelu-0": ("gelu", lambda: gelu(0), "Gelu"),
    "gelu-1": ("gelu", lambda: gelu(1), "Gelu"),
    "gelu-2": ("gelu", lambda: gelu(2), "Gelu"),
    "layer-norm": ("layer-norm", lambda: layer_norm(-1, (1, 4, 8), (8,)), "LayerNormalization"),
    "layer-norm-18": (
        "layer-norm",
        lambda: layer_norm(-1, (1, 4, 8), (8,), opset=18),
        "LayerNormalization",
    ),
    "layer-norm-reciprocal": (
        "layer-norm",
        lambda: layer_norm(-1, (1, 4, 8), (8,), "Reciprocal"),
        "LayerNormalization",
    ),
    "layer-norm-twice": (
        "layer-norm",
        lambda: layer_norm(-1, (1, 4, 8), (8,), "twice"),
        "LayerNormalization",
    ),
    "layer-norm-channels": (
        "layer-norm",
        lambda: layer_norm(1, IMAGE, (8, 1, 1)),
        "LayerNormalization Transpose",
    ),
    "layer-norm-axes": (
        "layer-norm-axes",
        lambda: one("LayerNormalization", IMAGE, values(6, 6), values(6, 6), axis=2),
        "LayerNormalization Reshape",
    ),
    "einsum-batch": (
        "einsum",
        lambda: one("Einsum", (1, 4, 2, 8), others=[(1, 6, 2, 8)], equation="bqhd,bkhd->bhqk"),
        "MatMul Transpose",
    ),
    "einsum-constant": (
        "einsum",
        lambda: one("Einsum", IMAGE, values(8, 5), equation="bchw,ck->bkhw"),
        "Gemm Reshape Transpose",
    ),
    "einsum-outer": (
        "einsum",
        lambda: one("Einsum", (1, 8), others=[(1, 6)], equation="bi, bj -> bij"),
        "MatMul Reshape Transpose",
    ),
    "einsum-sum": ("einsum", lambda: one("Einsum", (2, 4, 8), equation="bij->jb"), None),
    "einsum-three": (
        "einsum",
        lambda: one("Einsum", (2, 3), others=[(3, 4), (4, 5)], equation="ab,bc,cd->ad"),
        "MatMul Transpose",
    ),
    "einsum-implicit": (
        "einsum",
        lambda: one("Einsum", (2, 3), others=[(3, 4)], equation="ij,jk"),
        "MatMul Transpose",
    ),
    "gemm-factors": (
        "gemm",
        lambda: one("Gemm", (4, 8), values(5, 8), values(5), transB=1, alpha=0.5, beta=2.0),
        "Gemm",
    ),
    "gemm-matrix": ("gemm", lambda: one("Gemm", (4, 8), values(8, 5), values(4, 5)), "Add Gemm"),
    "gemm-computed": (
        "gemm",
        lambda: one("Gemm", (8, 4), others=[(8, 5)], transA=1, alpha=2.0),
        "MatMul Mul Transpose",
    ),
    "linear": ("linear", linear, "Gemm Relu Reshape"),
    "linear-elsewhere": ("linear", lambda: linear((6,), True), "Add Gemm Mul Reshape"),
    "matmul": (
        "matmul",
        lambda: one("MatMul", (1, 2, 2, 3, 4, 8), others=[(1, 2, 2, 3, 8, 5)]),
        "MatMul Reshape",
    ),
    "group-norm": ("group-norm", group_norm, "Add InstanceNormalization Mul Reshape"),
    "instance-norm": (
        "instance-norm",
        lambda: one("InstanceNormalization", (1, 4, 3, 4, 5), values(4), values(4)),
        "InstanceNormalization Reshape",
    ),
    "batch-norm-image": ("batch-norm", lambda: norm(IMAGE), "Conv"),
    "batch-norm-video": ("batch-norm", lambda: norm((1, 4, 3, 4, 5)), "Add Mul"),
    "batch-norm-gemm": ("batch-norm", lambda: normed_gemm(is_reshaped=False), "Gemm"),
    "batch-norm-matmul": ("batch-norm", lambda: normed_gemm(is_reshaped=True), "Gemm Reshape"),
    "l1-norm": (
        "l1-norm",
        lambda: one("LpNormalization", (1, 4, 8), axis=-1, p=1),
        "Abs Div ReduceSum",
    ),
    "reduce-l1": (
        "reductions",
        lambda: one("ReduceL1", IMAGE, whole(2, 3), opset=18, keepdims=0),
        "Abs ReduceSum",
    ),
    "reduce-squares": (
        "reductions",
        lambda: one("ReduceSumSquare", IMAGE, axes=[1]),
        "Mul ReduceSum",
    ),
    "reduce-exponentials": (
        "reductions",
        lambda: one("ReduceLogSumExp", IMAGE, axes=[1], keepdims=0),
        "Add Exp Log ReduceMax ReduceSum Reshape Sub",
    ),
    "global-lp-pool": ("reductions", lambda: one("GlobalLpPool", IMAGE), "Mul ReduceSum Sqrt"),
    "cumsum": ("cumsum", lambda: one("CumSum", IMAGE, np.int64(1)), "Gemm Reshape Transpose"),
    "cumsum-back": (
        "cumsum",
        lambda: one("CumSum", (1, 4, 8), np.int64(-1), exclusive=1, reverse=1),
        "Gemm Reshape",
    ),
    "trilu": ("trilu", lambda: one("Trilu", (1, 2, 6, 6), upper=0), "Mul"),
    "trilu-offset": ("trilu", lambda: one("Trilu", (1, 6, 8), np.int64(1)), "Mul"),
    "single-operand": ("single-operand", lambda: one("Max", IMAGE), "Reshape"),
    "power": ("power", lambda: one("Pow", IMAGE, np.int64(3)), "Mul"),
    "power-root": ("power", lambda: one("Pow", IMAGE, number(-0.5)), "Reciprocal Sqrt"),
    "softsign": ("composed", lambda: one("Softsign", IMAGE), "Abs Add Div"),
    "celu": ("composed", lambda: one("Celu", IMAGE, alpha=0.5), "Div Elu Mul"),
    "cosh": ("composed", lambda: one("Cosh", IMAGE), "Add Exp Mul Neg"),
    "acos": ("composed", lambda: one("Acos", IMAGE), "Asin Sub"),
    "copy": ("copy", lambda: one("Gather", (8,), np.arange(8).reshape(1, 8, 1)), "Reshape"),
    "gather": ("gather", lambda: one("GatherND", (2, 4), whole(0, 3, 1, 1).reshape(2, 2)), None),
    "max-pool": (
        "max-pool",
        lambda: one(
            "MaxPool", (1, 4, 6, 7, 7), kernel_shape=[3, 2, 2], strides=[2, 2, 2], pads=[1, 0] * 3
        ),
        "MaxPool Reshape",
    ),
    "kernel": (
        "kernel",
        lambda: one("ConvTranspose", IMAGE, values(8, 4, 3, 3), dilations=[2, 1], strides=[2, 2]),
        "ConvTranspose",
    ),
    "average-pool": (
        "average-pool",
        lambda: one("AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        "AveragePool",
    ),
    "log-softmax": ("softmax", lambda: one("LogSoftmax", (1, 2, 3, 4, 5), axis=2), None),
    "transpose": (
        "transpose",
        lambda: one("Transpose", (1, 4, 3, 2, 5), perm=[2, 0, 3, 4, 1]),
        None,
    ),
    "slice": (
        "slice",
        lambda: one("Slice", (2, 4, 3, 2, 5), whole(7), whole(0), whole(1), whole(-2)),
        "Reshape Slice",
    ),
    "slice-gather": (
        "slice",
        lambda: one("Gather", (3, 1, 2, 4, 5), np.int64(-1), axis=0),
        "Gather Reshape",
    ),
    "slice-last": (
        "slice",
        lambda: one("Gather", (2, 1, 2, 4, 5), whole(3, 0).reshape(1, 2), axis=-1),
        "Gather Reshape",
    ),
    "windows": ("rank", lambda: windows((2, 3, 4, 5, 7, 1), [0, 1, 3, 2, 4, 5]), None),
    "shuffled": ("rank", lambda: windows((2, 3, 4, 5, 7, 1), [5, 3, 1, 4, 2, 0]), None),
}

# Graphs that no rewrite may touch.
LEFT_ALONE = {
    "another root than √2": lambda: graph(
        [node("Div", "x", "two", "a"), node("Erf", "a", "e"), node("Add", "e", "unit", "y")],
        {"x": (1, 4, 8)},
        {"two": number(2), "unit": number(1)},
    ),
    "a step that something else reads": lambda: layer_norm(
        -1, (1, 4, 8), (8,), opset=18, is_read_elsewhere=True
    ),
    "a diagonal": lambda: one("Einsum", (1, 4, 4), equation="bii->bi"),
    "an order of its own": lambda: one("Gather", (1, 8), whole(1, 0, 2, 3, 4, 5, 6, 7), axis=1),
    "a transpose of four sides": lambda: one("Transpose", IMAGE, perm=[0, 2, 3, 1]),
    "heads of a transformer": lambda: one("Transpose", (1, 4, 3, 2, 8), perm=[2, 0, 3, 1, 4]),
    "a plain gemm": lambda: one("Gemm", (4, 8), values(8, 5), values(5)),
    "any power": lambda: one("Pow", IMAGE, number(1.5)),
    "a pool of windows that do not fit": lambda: one(
        "AveragePool", (1, 3, 5, 5), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1
    ),
}


def outputs(model) -> np.ndarray:
    """On random inputs, not those of the check itself."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    dice = np.random.default_rng(7)
    feeds = {i.name: dice.random(i.shape).astype(np.float32) for i in session.get_inputs()}
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("name", CASES)
def test_a_rewrite_is_exact(name):
    rewrite, build, kinds = CASES[name]
    model = build()
    wanted = outputs(model)
    applied = apply_rewrites(model)
    assert rewrite in {item.name for item in applied}
    left = [item.op_type for item in model.graph.node]
    assert kinds is None or set(left) == set(kinds.split())
    np.testing.assert_allclose(outputs(model), wanted, rtol=1e-4, atol=1e-5)
    assert apply_rewrites(model) == []


@pytest.mark.parametrize("name", CASES)
def test_the_shapes_of_new_tensors_are_right(name):
    """They are given by hand; ONNX infers the same."""
    model = CASES[name][1]()
    apply_rewrites(model)
    given = {value.name: sides(value) for value in model.graph.value_info}
    del model.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model)
    assert {v.name: sides(v) for v in inferred.graph.value_info if v.name in given}.items() <= (
        given.items()
    )
    assert max((len(shape) for shape in given.values()), default=0) <= 5


def sides(value) -> list[int]:
    return [side.dim_value for side in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_only_looks_like_it_is_left_alone(name):
    model = LEFT_ALONE[name]()
    before = [item.SerializeToString() for item in model.graph.node]
    ignored = {"power"} if "step" in name else set()
    assert {item.name for item in apply_rewrites(model)} <= ignored
    assert ignored or [item.SerializeToString() for item in model.graph.node] == before


def test_every_rewrite_has_a_case():
    assert {case[0] for case in CASES.values()} == {rewrite.name for rewrite in COMPILER_REWRITES}


def test_a_rewrite_that_changes_the_outputs_is_not_used(monkeypatch):
    """The others still are."""

    def wrong(editor: GraphEditor) -> list[str]:
        relu = next((item for item in editor.nodes if item.op_type == "Relu"), None)
        if relu is None:
            return []
        new = editor.replacement([relu])
        new.add("Neg", [relu.input[0]], editor.shape(relu.input[0]), relu.output[0])
        return [new.done()]

    monkeypatch.setattr(layout, "wrong", wrong, raising=False)
    bad = Rewrite("wrong", "Relu → Neg", "layout.wrong")
    monkeypatch.setattr(module, "COMPILER_REWRITES", (bad, *COMPILER_REWRITES))
    model = linear()
    applied = apply_rewrites(model, {"wrong", "linear"})
    assert [item.name for item in applied] == ["linear"]
    assert "Relu" in {item.op_type for item in model.graph.node}


def test_a_model_carries_what_was_done_to_it():
    model = linear()
    applied = apply_rewrites(model)
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    assert applied_rewrites(copy) == applied
    assert str(applied[0]) == "MatMul with a constant matrix, Add → Gemm (m)"
    assert rewrite_notes(copy) == ["rewritten exactly for the compiler: linear (1×)."]
    assert rewrite_notes(one("Relu", IMAGE)) == []


def test_a_rewrite_that_cannot_be_checked_is_not_used(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    assert apply_rewrites(linear()) == []


def test_group_normalization_is_read_and_rewritten(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save_model(group_norm(), path)
    model = read_graph(path)
    assert [item.name for item in apply_rewrites(model)] == ["group-norm"]
