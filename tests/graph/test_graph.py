"""What is wrong with a model is said in words, before any compiler is asked."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

from edgeloop.errors import BadModel, LocalFileError
from edgeloop.graph.check import DENSE, SHUFFLE, estimate_caveats, read_graph
from edgeloop.graph.count import graph_info
from edgeloop.graph.read import shapes_of
from tests.graph import odd_models
from tests.nets_torch import SmallUNet


def refusal(path) -> str:
    with pytest.raises(BadModel) as caught:
        read_graph(path)
    assert path.name in str(caught.value)
    return str(caught.value)


def test_operators_of_others_are_refused_with_their_domain(tmp_path):
    said = refusal(odd_models.one_node(tmp_path / "m.onnx", "Magic", domain="com.acme"))
    assert "com.acme" in said
    assert "Magic" in said


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path, bad):
    weight = odd_models.weights()
    weight[0, 0, 0, :2] = bad
    assert "2 of the 108 weights 'w'" in refusal(
        odd_models.one_conv(tmp_path / "m.onnx", weight=weight)
    )


def test_six_dimensions_are_too_many_where_no_rewrite_helps(tmp_path):
    read_graph(odd_models.rank_six(tmp_path / "m.onnx"))
    assert "does not take Reshape (layer 'fold'): use" in refusal(
        odd_models.rank_six(tmp_path / "m.onnx", is_output=True)
    )


def test_a_refused_operator_is_named_with_its_layer_and_what_to_use(tmp_path):
    said = refusal(odd_models.one_node(tmp_path / "m.onnx", "Erf"))
    assert said.endswith("does not take Erf (layer 'odd'): use Gelu or Tanh instead")


def test_shapes_that_do_not_fit_are_refused(tmp_path):
    path = odd_models.one_conv(tmp_path / "m.onnx", weight=odd_models.weights(4, 5))
    assert "do not fit together" in refusal(path)


def test_files_that_are_no_models_are_refused(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model at all")
    assert "not an ONNX model" in refusal(path)
    with pytest.raises(LocalFileError):
        read_graph(tmp_path / "missing.onnx")


def test_what_exporters_leave_behind_is_tidied_up(tmp_path):
    model = read_graph(odd_models.untidy(tmp_path / "m.onnx"))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == ["Conv", "Relu", "Conv", "Resize", "ArgMax", "Cast"]
    convs = [node for node in model.graph.node if node.op_type == "Conv"]
    assert convs[0].input[2] != convs[1].input[2], "two convolutions share no bias"
    assert [value.name for value in model.graph.input] == ["x"]
    assert len({node.name for node in model.graph.node}) == len(kinds)
    assert shapes_of(model.graph)["y"] == (1, 32, 32)
    onnx.checker.check_model(model)


def test_a_batch_norm_becomes_part_of_its_convolution(tmp_path):
    path = odd_models.with_batch_norm(tmp_path / "m.onnx")
    model = read_graph(path)
    assert [node.op_type for node in model.graph.node] == ["Conv"]
    feed = {"x": np.random.default_rng(0).random((1, 3, 8, 8), np.float32)}
    outputs = [
        onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feed)[0]
        for data in (str(path), model.SerializeToString())
    ]
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


def test_a_quantized_model_is_not_quantized_again(tmp_path):
    scale, zero = np.array(0.1, np.float32), np.array(0, np.uint8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    shape = [1, 3, 8, 8]
    ends = [odd_models.info("x", shape)], [odd_models.info("y", shape)]
    path = odd_models.save(tmp_path / "m.onnx", nodes, *ends, {"s": scale, "z": zero})
    assert "quantized already" in refusal(path)


def test_graphs_whose_estimate_is_known_to_be_off_are_recognised(tmp_path):
    class Shuffle(torch.nn.Module):
        def forward(self, x):
            x = torch.cat([x, x], 1)
            x = x.view(1, 2, 3, 16, 16).transpose(1, 2).reshape(1, 6, 16, 16)
            return torch.relu(x)

    class Dense(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(
                torch.nn.Conv2d(3 + 4 * i, 4, 3, padding=1) for i in range(6)
            )

        def forward(self, x):
            for layer in self.layers:
                x = torch.cat([x, torch.relu(layer(x))], 1)
            return x

    for net, expected in ((Shuffle(), [SHUFFLE]), (Dense(), [DENSE]), (SmallUNet(), [])):
        path = tmp_path / "m.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                net.eval(), (torch.rand(1, 3, 16, 16),), str(path), dynamo=False, opset_version=18
            )
        assert estimate_caveats(read_graph(path)) == expected


def test_the_layout_is_read_from_the_shape(tmp_path):
    path = odd_models.channel_last(tmp_path / "m.onnx")
    found = graph_info(path.name, read_graph(path))
    assert (found.layout, found.height, found.width) == ("NHWC", 16, 16)
    path = odd_models.one_conv(tmp_path / "n.onnx", (1, 3, 24, 40))
    found = graph_info(path.name, read_graph(path))
    assert (found.layout, found.height, found.width) == ("NCHW", 24, 40)


def test_an_old_opset_is_brought_up(tmp_path):
    path = odd_models.one_conv(tmp_path / "m.onnx")
    model = onnx.load_model(str(path))
    model.opset_import[0].version = 9
    onnx.save_model(model, str(path))
    assert read_graph(path).opset_import[0].version >= 13
