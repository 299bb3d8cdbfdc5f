"""What a worker process does with graphs; `isolated.py` calls it from outside.

A model may crash the ONNX library or fill the memory; that is then an error of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop._util.isolation import Answer, WorkerCall, mapped
from edgeloop.errors import UnusableModel
from edgeloop.graph.check import estimate_caveats, read_graph
from edgeloop.graph.count import count_layers, graph_info, write_layers
from edgeloop.graph.info import DeclaredTensor, GraphSummary, Shape
from edgeloop.graph.outline import outline_bytes, outline_of
from edgeloop.graph.read import check_limits, load_model, shapes_of
from edgeloop.graph.rewrites.apply import (
    ALL,
    FUSIONS,
    apply_rewrites,
    apply_steps,
    planned_rewrites,
    rewrite_notes,
)
from edgeloop.graph.rewrites.checking import compare_outputs
from edgeloop.graph.rewrites.registry import RewriteStep
from edgeloop.graph.simplify import STANDARD_DOMAINS, prepare_model
from edgeloop.graph.variants import (
    class_axis,
    single_sample,
    with_class_output,
    with_fixed_names,
)

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

_LARGE_BYTES = 4096


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


def _summarize(path: Path, shapes: Mapping[str, Shape], rewrites: bool) -> GraphSummary:
    """Raises UnusableModel only where the file cannot be read as ONNX at all. Which `rewrites` the
    compiler would need takes a copy of the model to find out."""
    declared = _declared(path)
    try:
        graph = read_graph(path, shapes)
    except UnusableModel as error:
        return GraphSummary(**declared, problem=str(error.fields["reason"]))
    info = graph_info(path.name, graph)
    return GraphSummary(
        **declared,
        info=info,
        memory=info.memory,
        caveats=tuple(estimate_caveats(graph)),
        rewrites=tuple(map(str, planned_rewrites(graph))) if rewrites else (),
    )


def _declared(path: Path) -> dict[str, Any]:
    """From the file alone, without its external data."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except (DecodeError, ValueError):
        reason = "it is not an ONNX model, or it was cut off. Export or copy it again"
        raise UnusableModel(file=path.name, reason=reason) from None
    if not model.graph.node:
        reason = "it holds no ONNX graph, or it was cut off. Export or copy it again"
        raise UnusableModel(file=path.name, reason=reason)
    check_limits(path.name, model)
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    operators = Counter(node.op_type for node in graph.node)
    return {
        "file": path.name,
        "size": _size(path, model),
        "opset": next((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), 0),
        "exporter": f"{model.producer_name} {model.producer_version}".strip(),
        "operators": dict(operators.most_common()),
        "inputs": tuple(_tensor(value) for value in graph.input if value.name not in weights),
        "outputs": tuple(_tensor(value) for value in graph.output),
    }


def _size(path: Path, model: ModelProto) -> int:
    """Of the file with its external data."""
    places = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    files = [path, *(path.parent / place for place in places)]
    return sum(file.stat().st_size for file in files if file.is_file())


def _tensor(value: ValueInfoProto) -> DeclaredTensor:
    sides = value.type.tensor_type.shape.dim
    shape = tuple(side.dim_value if side.dim_value > 0 else side.dim_param or "?" for side in sides)
    return DeclaredTensor(value.name, shape, _dtype(value.type.tensor_type.elem_type))


def _dtype(kind: int) -> str:
    from onnx import helper

    try:
        return str(helper.tensor_dtype_to_np_dtype(kind).name)
    except (KeyError, ValueError, TypeError):
        return "unknown"


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
    Path(target).write_bytes(outline_bytes(outline_of(read_deployed(Path(model)))))
    return {}, ()


def read_deployed(model: Path) -> ModelProto:
    """A quantized model as it is; a float one simplified, as toolchains name its layers then."""
    from onnx import shape_inference

    deployed = load_model(model, with_weights=False)
    if not any(
        node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in deployed.graph.node
    ):
        return read_graph(model, any_operator=True)
    for tensor in deployed.graph.initializer:
        if len(tensor.raw_data) > _LARGE_BYTES:  # sizes that shapes depend on are small
            tensor.ClearField("raw_data")
    return shape_inference.infer_shapes(deployed)


def _tuples(shapes: Mapping[str, Sequence[int]]) -> dict[str, Shape]:
    return {name: tuple(shape) for name, shape in shapes.items()}


# What the process that reads graphs does for advice: rewrites a model, and checks the result.


def advice_base(model: str, target: str) -> Answer:
    """Write the simplified model: what every rewrite starts from."""
    import onnx

    path = Path(model)
    graph = read_graph(path)
    onnx.save_model(graph, target)
    return {"info": graph_info(path.name, graph).to_fields()}, ()


def advice_rewrite(base: str, steps: Sequence[Sequence[Any]], target: str) -> Answer:
    """Write the base with some rewrites, where they apply: `layers` are those of each step. Nothing
    is written where one of them does not apply."""
    import onnx

    graph = onnx.load_model(base)
    layers = apply_steps(graph, [_step(one) for one in steps])
    if all(layers):
        _checked_shapes(graph)
        onnx.save_model(graph, target)
    return {"layers": layers}, ()


def advice_compare(
    before: str, after: str, samples: Mapping[str, Mapping[str, Any]] | None = None
) -> Answer:
    """Whether two models compute the same; `samples` are arrays with what several runs take, one
    behind the other."""
    import onnx

    first = onnx.load_model(before)
    arrays = {name: mapped(described) for name, described in (samples or {}).items()}
    comparison = compare_outputs(first, onnx.load_model(after), _runs(first, arrays))
    return {
        "is_equal": comparison.is_equal,
        "difference": comparison.difference,
        "problem": comparison.problem,
    }, ()


def _runs(model: ModelProto, arrays: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arrays cut by the first side of each input: that of the batch, where there is one."""
    shapes = shapes_of(model.graph)
    sides = {name: max((1, *shapes.get(name, ())[:1])) for name in arrays}
    count = min((len(values) // sides[name] for name, values in arrays.items()), default=0)
    return [
        {name: values[i * sides[name] :][: sides[name]] for name, values in arrays.items()}
        for i in range(count)
    ]


def _step(fields: Sequence[Any]) -> RewriteStep:
    name, layers = fields
    return RewriteStep(str(name), None if layers is None else tuple(layers))


def _checked_shapes(model: ModelProto) -> None:
    """Raises where a rewrite has left a graph that does not fit together: a mistake of ours."""
    import onnx

    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, strict_mode=True))


CALLS: Mapping[str, WorkerCall] = {
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
