"""MACs and parameters: by hand, and beside PyTorch's own counter."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from onnx import helper
from torch.utils.flop_counter import FlopCounterMode

from edgeloop.graph.check import read_graph
from edgeloop.graph.count import COLUMNS, count_layers, graph_info, with_times, write_layers
from tests.graph import odd_models
from tests.graph.odd_models import info
from tests.nets_torch import SmallUNet, export, mobilenet_v2, resnet18, resnet50


def counted(path):
    found = graph_info(path.name, read_graph(path))
    return found.macs, found.params


def test_a_convolution_by_hand(tmp_path):
    path = odd_models.one_conv(tmp_path / "m.onnx", (1, 3, 24, 40))
    assert counted(path) == (24 * 40 * 4 * 3 * 9, 4 * 3 * 9)


def test_a_depthwise_convolution_by_hand(tmp_path):
    weight = odd_models.weights(6, 1)
    path = odd_models.one_conv(tmp_path / "m.onnx", weight=weight, group=3)
    assert counted(path) == (32 * 32 * 6 * 9, 6 * 9)


def test_transposed_convolution_gemm_and_matmul_by_hand(tmp_path):
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["up"], strides=[2, 2], name="up"),
        helper.make_node("GlobalAveragePool", ["up"], ["pool"], name="pool"),
        helper.make_node("Flatten", ["pool"], ["flat"], name="flat"),
        helper.make_node("Gemm", ["flat", "g", "gb"], ["wide"], transB=1, name="gemm"),
        helper.make_node("MatMul", ["wide", "m"], ["y"], name="matmul"),
    ]
    numbers = {
        "w": np.ones((3, 5, 2, 2), np.float32),
        "b": np.ones(5, np.float32),
        "g": np.ones((7, 5), np.float32),
        "gb": np.ones(7, np.float32),
        "m": np.ones((7, 2), np.float32),
    }
    ends = [info("x", [1, 3, 8, 8])], [info("y", [1, 2])]
    path = odd_models.save(tmp_path / "m.onnx", nodes, *ends, numbers)
    macs = 8 * 8 * 3 * 5 * 4 + 5 * 7 + 7 * 2
    assert counted(path) == (macs, 60 + 5 + 35 + 7 + 14)


def test_shared_weights_count_once_and_settings_not_at_all(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4, name="first"),
        helper.make_node("Clip", ["a", "low", "high"], ["b"], name="clip"),
        helper.make_node("Conv", ["b", "w"], ["y"], pads=[1] * 4, name="second"),
    ]
    numbers = {
        "w": odd_models.weights(3, 3),
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
    }
    ends = [info("x", [1, 3, 8, 8])], [info("y", [1, 3, 8, 8])]
    path = odd_models.save(tmp_path / "m.onnx", nodes, *ends, numbers)
    assert counted(path) == (2 * 64 * 3 * 3 * 9, 81)


@pytest.mark.parametrize(
    ("equation", "shapes", "macs"),
    [
        ("bhqd,bhkd->bhqk", [(1, 2, 5, 4), (1, 2, 7, 4)], 2 * 5 * 7 * 4),
        ("...ij,jk->...ik", [(1, 3, 5, 4), (4, 6)], 3 * 5 * 4 * 6),
        ("b i j -> b j i", [(1, 5, 4)], 0),
    ],
)
def test_macs_of_an_einsum_are_those_counted_by_hand(equation, shapes, macs):
    names = [f"x{index}" for index in range(len(shapes))]
    node = helper.make_node("Einsum", names, ["y"], equation=equation, name="e")
    inputs = [info(name, list(shape)) for name, shape in zip(names, shapes, strict=True)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, [info("y", None)]))
    assert [layer.macs for layer in count_layers(model)] == [macs]


def test_a_recurrent_layer_multiplies_its_weights_at_every_step():
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=5, name="lstm")
    shapes = {"x": [7, 2, 3], "w": [1, 20, 3], "r": [1, 20, 5]}
    inputs = [info(name, shape) for name, shape in shapes.items()]
    model = helper.make_model(helper.make_graph([node], "g", inputs, [info("y", None)]))
    assert [layer.macs for layer in count_layers(model)] == [7 * 2 * 20 * (3 + 5)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (resnet18, 64),
        (SmallUNet, 64),
        pytest.param(mobilenet_v2, 96, marks=pytest.mark.soak),
        pytest.param(resnet50, 64, marks=pytest.mark.soak),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_known_architectures_agree_with_pytorchs_counter(tmp_path, make, size):
    net = make()
    path = export(net, tmp_path / "m.onnx", size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(torch.rand(1, 3, size, size))
    macs, params = counted(path)
    assert macs == counter.get_total_flops() // 2
    kernels = sum(p.numel() for p in net.parameters() if p.dim() > 1)
    biases = sum(
        m.weight.shape[0] for m in net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)
    )
    assert params == kernels + biases, "batch norms are folded into kernels and biases"


def test_the_layer_table_has_a_row_a_layer(tmp_path):
    layers = count_layers(read_graph(odd_models.one_conv(tmp_path / "m.onnx")))
    write_layers(tmp_path / "layers.csv", with_times(layers, {"conv": 12.5}))
    with (tmp_path / "layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    values = ("conv", "Conv", "1x3x32x32", "1x4x32x32", "108", "110592", "12.500", "", "", "")
    assert tuple(rows[0].values()) == values
