"""Reading graphs in a process of its own: `python -m edgeloop.graph.worker FOLDER`.

A model may crash the ONNX library or fill the memory; that is then an error of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeloop.graph.caveats import estimate_caveats
from edgeloop.graph.check import read_graph
from edgeloop.graph.count import count_layers, graph_info, write_layers
from edgeloop.graph.outputs import class_axis, with_class_output, with_fixed_names
from edgeloop.isolation import Answer, serve


def hello(warm: bool = False) -> Answer:
    import onnx

    return {"onnx": onnx.__version__}, ()


def inspect(model: str, shapes: Mapping[str, Sequence[int]]) -> Answer:
    path = Path(model)
    graph = read_graph(path, {name: tuple(shape) for name, shape in shapes.items()})
    info = graph_info(path.name, graph)
    return {"info": info.to_fields(), "caveats": estimate_caveats(graph)}, ()


def write_variants(model: str, folder: str) -> Answer:
    """The simplified model with fixed names for input and output (model.onnx), variants that end in
    class maps where it has classes (bytes.onnx, classes.onnx), and the layer table."""
    import onnx

    path, target = Path(model), Path(folder)
    graph = read_graph(path)
    info = graph_info(path.name, graph)
    write_layers(target / "model.layers.csv", count_layers(graph))
    named = with_fixed_names(graph)
    onnx.save_model(named, str(target / "model.onnx"))
    axis = class_axis(info)
    if axis is not None:
        for name, in_bytes in (("bytes", True), ("classes", False)):
            classifying = with_class_output(named, axis, in_bytes)
            onnx.save_model(classifying, str(target / f"{name}.onnx"))
    return {"info": info.to_fields(), "caveats": estimate_caveats(graph)}, ()


if __name__ == "__main__":
    serve(lambda: {"hello": hello, "inspect": inspect, "write_variants": write_variants})
