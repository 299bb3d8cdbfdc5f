"""Reading graphs in a process of its own: `python -m edgeloop.graph.worker FOLDER`.

A model may crash the ONNX library or fill the memory; that is then an error of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeloop.graph.advice.work import advice_base, advice_compare, advice_rewrite
from edgeloop.graph.caveats import estimate_caveats
from edgeloop.graph.check import read_graph
from edgeloop.graph.count import count_layers, graph_info, write_layers
from edgeloop.graph.describe import summarize as _summarize
from edgeloop.graph.info import Shape
from edgeloop.graph.outline import write_outline
from edgeloop.graph.reading import prepare_model
from edgeloop.graph.rewrites import ALL, FUSIONS, apply_rewrites, rewrite_notes
from edgeloop.graph.variants import (
    class_axis,
    single_sample,
    with_class_output,
    with_fixed_names,
)
from edgeloop.isolation import Answer, Work, serve


def hello(warm: bool = False) -> Answer:
    import onnx

    return {"onnx": onnx.__version__}, ()


def inspect(model: str, shapes: Mapping[str, Sequence[int]]) -> Answer:
    path = Path(model)
    graph = read_graph(path, _tuples(shapes))
    info = graph_info(path.name, graph)
    return {"info": info.to_fields(), "caveats": estimate_caveats(graph)}, ()


def summarize(model: str, shapes: Mapping[str, Sequence[int]], rewrites: bool) -> Answer:
    return _summarize(Path(model), _tuples(shapes), rewrites).to_fields(), ()


def prepare(model: str, shapes: Mapping[str, Sequence[int]], folder: str) -> Answer:
    return {"model": str(prepare_model(Path(model), _tuples(shapes), Path(folder)))}, ()


def write_variants(model: str, folder: str) -> Answer:
    """The simplified model with fixed names for inputs and outputs (model.onnx), variants that end
    in class maps where it has classes (bytes.onnx, classes.onnx), and the layer table. Operators
    that converters are not known to take are rewritten. A model that takes several samples at a
    time takes one at a time there, where that computes the same."""
    import onnx

    path, target = Path(model), Path(folder)
    graph = read_graph(path)
    info = graph_info(path.name, graph)
    apply_rewrites(graph, ALL - FUSIONS)
    write_layers(target / "model.layers.csv", count_layers(graph))
    notes = [*estimate_caveats(graph), *rewrite_notes(graph)]
    batch = info.batch
    single = single_sample(graph, info) if batch > 1 else None
    if single is not None:
        graph, batch = single, 1
    named = with_fixed_names(graph)
    onnx.save_model(named, str(target / "model.onnx"))
    axis = class_axis(info)
    if axis is not None:
        for name, in_bytes in (("bytes", True), ("classes", False)):
            classifying = with_class_output(named, axis, in_bytes)
            onnx.save_model(classifying, str(target / f"{name}.onnx"))
    return {"info": info.to_fields(), "batch": batch, "caveats": notes}, ()


def outline(model: str, target: str) -> Answer:
    write_outline(Path(model), Path(target))
    return {}, ()


def _tuples(shapes: Mapping[str, Sequence[int]]) -> dict[str, Shape]:
    return {name: tuple(shape) for name, shape in shapes.items()}


def _table() -> Mapping[str, Work]:
    return {
        "hello": hello,
        "inspect": inspect,
        "summarize": summarize,
        "prepare": prepare,
        "write_variants": write_variants,
        "outline": outline,
        "advice_base": advice_base,
        "advice_rewrite": advice_rewrite,
        "advice_compare": advice_compare,
    }


if __name__ == "__main__":
    serve(_table, what="Reading models")
