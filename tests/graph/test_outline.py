"""The network as a drawing needs it: what is folded away, what is kept, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from edgeloop.errors import UnusableModel
from edgeloop.graph.isolated import GraphProcess
from edgeloop.graph.outline import (
    INPUT,
    LARGEST_OUTLINE,
    MOST_LAYERS,
    OUTPUT,
    Outline,
    outline_bytes,
    outline_of,
    parse_outline,
)
from edgeloop.graph.worker import read_deployed
from tests.networks import chain, public_outline
from tests.qdq import constant, quantized

IMAGE = (1, 3, 8, 8)


def small_net() -> onnx.ModelProto:
    """A convolution, and its input added to what it makes of it."""
    tensor = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "second"),
        helper.make_node("Add", ["b", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [tensor("x", TensorProto.FLOAT, IMAGE)],
        [tensor("y", TensorProto.FLOAT, IMAGE)],
        [constant("w", (3, 3, 3, 3))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "net.onnx"
    onnx.save_model(model, str(path))
    return path


@pytest.mark.parametrize("bits", [0, 8])
def test_conversions_and_weights_are_folded_away(tmp_path: Path, bits: int) -> None:
    model = quantized(small_net(), bits) if bits else small_net()
    found = outline_of(read_deployed(saved(model, tmp_path))).layers
    assert [(layer.operator, layer.inputs) for layer in found] == [
        (INPUT, ()),
        ("Conv", (0,)),
        ("Relu", (1,)),
        ("Add", (0, 2)),
        (OUTPUT, (3,)),
    ]
    assert [layer.name for layer in found[:3]] == ["x", "first", "second"]
    assert all(layer.shape == IMAGE for layer in found)
    assert found[1].tensors[0].startswith("a")


def test_it_is_written_by_a_process_of_its_own(tmp_path: Path) -> None:
    target = tmp_path / "net.graph.json"
    process = GraphProcess()
    try:
        process.write_outline(saved(small_net(), tmp_path), target)
        outline = parse_outline(target.read_bytes())
        assert outline is not None and outline.count == 5
        (tmp_path / "bad.onnx").write_bytes(b"\x00not a model")
        with pytest.raises(UnusableModel):
            process.write_outline(tmp_path / "bad.onnx", tmp_path / "bad.graph.json")
    finally:
        process.close()
    assert not (tmp_path / "bad.graph.json").exists()


@pytest.mark.parametrize(
    ("name", "layers", "joins"),
    [("unet_segmentation", 49, 4), ("densenet121", 374, 58), ("bert_base_uncased_hf", 440, 50)],
)
def test_public_networks_keep_their_skip_connections(name: str, layers: int, joins: int) -> None:
    outline = public_outline(name)
    inner = [layer for layer in outline.layers if layer.operator not in (INPUT, OUTPUT)]
    assert len(inner) == pytest.approx(layers, abs=4)
    assert sum(1 for layer in inner if len(layer.inputs) > 1) >= joins
    content = outline_bytes(outline)
    assert parse_outline(content) == outline and len(content) < 200_000


def test_a_network_that_is_too_large_is_only_counted() -> None:
    outline = public_outline("swin_base")
    assert outline.count > MOST_LAYERS and outline.layers == ()
    assert parse_outline(outline_bytes(outline)) == outline


def test_attributes_are_kept_as_short_texts(tmp_path: Path) -> None:
    body = helper.make_graph([helper.make_node("Relu", ["q"], ["r"])], "body", [], [])
    node = helper.make_node(
        "Odd",
        ["x"],
        ["y"],
        "odd",
        axis=-1,
        alpha=0.125,
        mode="linear",
        raw=b"\xff" * 100_000,
        pads=[1, 2, 3, 4],
        many=list(range(100_000)),
        scales=[0.5, 2.0],
        names=["a", "b"],
        value=constant("w", (3, 4)),
        body=body,
        domain="odd",
    )
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "net",
        [tensor("x", TensorProto.FLOAT, IMAGE)],
        [tensor("y", TensorProto.FLOAT, IMAGE)],
    )
    outline = outline_of(helper.make_model(graph))
    texts = dict(outline.layers[1].attributes)
    assert texts["axis"] == "-1" and texts["alpha"] == "0.125" and texts["mode"] == "linear"
    assert texts["pads"] == "1, 2, 3, 4" and texts["scales"] == "0.5, 2"
    assert texts["names"] == "a, b" and texts["value"] == "tensor 3×4"
    assert texts["body"] == "a graph of 1 nodes"
    assert texts["many"].endswith("… (100000 values)")
    assert all(len(text) <= 200 for text in texts.values())
    assert parse_outline(outline_bytes(outline)) == outline


def test_attributes_are_dropped_before_layers_where_a_file_would_be_too_large() -> None:
    long = (("name", "x" * 200),) * 2
    layers = tuple(
        layer.model_copy(update={"attributes": long}) for layer in chain(MOST_LAYERS).layers
    )
    found = parse_outline(outline_bytes(Outline(count=MOST_LAYERS, layers=layers)))
    assert found == chain(MOST_LAYERS)


def test_a_file_of_an_older_version_has_no_attributes() -> None:
    outline = parse_outline(_file(_layer()))
    assert outline is not None and outline.layers[0].attributes == ()


def _file(*layers: Any, **others: Any) -> bytes:
    return json.dumps({"format": 1, "count": len(layers), "layers": layers, **others}).encode()


def _layer(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "operator": "Conv", "shape": [1], "inputs": [], **changes}


HOSTILE = {
    "nothing": b"",
    "no JSON": b"\xff\x00{",
    "another thing": b'{"format": 1}',
    "a later format": _file(_layer(), format=2),
    "a list": b"[1, 2]",
    "a cycle": _file(_layer(inputs=[1]), _layer(inputs=[0])),
    "itself": _file(_layer(inputs=[0])),
    "before the first": _file(_layer(), _layer(inputs=[-1])),
    "no number": _file(_layer(), _layer(inputs=["0"])),
    "a truth": _file(_layer(), _layer(inputs=[True])),
    "a fraction": _file(_layer(shape=[1.5])),
    "a name that is none": _file(_layer(name={"a": 1})),
    "a long name": _file(_layer(name="x" * 10_000)),
    "many sides": _file(_layer(shape=[1] * 1000)),
    "huge sides": _file(_layer(shape=[10**30])),
    "many layers": _file(*[_layer()] * (MOST_LAYERS + 1)),
    "a million layers": _file(*[_layer()] * 1_000_000),
    "many connections": _file(*[_layer()] * 100, *[_layer(inputs=list(range(100)))] * 300),
    "too large": b" " * (LARGEST_OUTLINE + 1),
    "many attributes": _file(_layer(attributes=[["a", "b"]] * 33)),
    "a long attribute": _file(_layer(attributes=[["a", "b" * 201]])),
    "an attribute that is no text": _file(_layer(attributes=[["a", 1]])),
    "half an attribute": _file(_layer(attributes=[["a"]])),
    "deep": b'{"layers":' + b"[" * 400_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_not_one_is_refused(name: str) -> None:
    assert parse_outline(HOSTILE[name]) is None


def test_what_a_later_version_adds_is_ignored() -> None:
    outline = parse_outline(_file(_layer(colour="red"), author="somebody"))
    assert outline is not None and outline.layers[0].name == "a"
    assert parse_outline(outline_bytes(chain(5))) == chain(5)
