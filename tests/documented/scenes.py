"""What pages take for granted, made for their tests: `<!-- setup: scene NAME -->`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import TensorProto, helper

import edgeloop.demo

DEMO_MODELS = Path(edgeloop.demo.__file__).with_name("models")


def free_sizes(project: Path) -> None:
    """`net.onnx` takes an image of any size, and `tokens.onnx` two rows of any length."""
    model = onnx.load_model(str(DEMO_MODELS / "unet-w8.onnx"))
    [image] = model.graph.input
    _rename_input(model, image.name, "image")
    for side, name in zip(image.type.tensor_type.shape.dim[2:], ("height", "width"), strict=True):
        side.dim_param = name
    del model.graph.value_info[:]
    for side in model.graph.output[0].type.tensor_type.shape.dim[2:]:
        side.dim_param = "any"
    onnx.save_model(model, str(project / "net.onnx"))
    _tokens(project / "tokens.onnx", "length")


def nets(project: Path) -> None:
    """`nets/` has a classifier, and a model that no task fits."""
    (project / "nets").mkdir()
    pooled = helper.make_node("GlobalAveragePool", ["image"], ["pooled"])
    flat = helper.make_node("Flatten", ["pooled"], ["scores"])
    _save(
        project / "nets/classifier.onnx",
        [pooled, flat],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 64, 64])],
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 3]),
    )
    _tokens(project / "nets/text.onnx", 128)


def damage(project: Path) -> None:
    """A row that is not JSON, a file that is gone, and a hint that is missing."""
    with sqlite3.connect(project / ".edgeloop/store.db") as database:
        row = "space LIKE 'models%' AND key = 'brave-fox'"
        database.execute(f"UPDATE edgeloop_rows SET data = '{{' WHERE {row}")
        database.execute("DELETE FROM edgeloop_rows WHERE key LIKE '%gentle-owl|convert'")
    (project / ".edgeloop/blobs/default/calm-heron/unet-w24.onnx").unlink()


def _tokens(file: Path, length: int | str) -> None:
    ids, mask = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, length])
        for name in ("ids", "mask")
    )
    result = helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, length])
    masked = helper.make_node("Mul", ["ids", "mask"], ["masked"])
    scaled = helper.make_node("Mul", ["masked", "scale"], ["features"])
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [1], [0.5])
    _save(file, [masked, scaled], [ids, mask], result, [scale])


def _save(
    file: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    weights: list[onnx.TensorProto] | None = None,
) -> None:
    graph = helper.make_graph(nodes, file.stem, inputs, [output], weights or [])
    opset = [helper.make_opsetid("", 17)]
    onnx.save_model(helper.make_model(graph, opset_imports=opset), str(file))


def _rename_input(model: onnx.ModelProto, old: str, new: str) -> None:
    model.graph.input[0].name = new
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new


SCENES: dict[str, Callable[[Path], None]] = {
    "free-sizes": free_sizes,
    "nets": nets,
    "damage": damage,
}
