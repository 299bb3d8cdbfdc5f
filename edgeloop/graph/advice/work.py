"""What the process that reads graphs does for advice: rewrites a model, and checks the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop.graph.advice.catalog import RewriteStep
from edgeloop.graph.advice.checking import compare_outputs
from edgeloop.graph.advice.registry import apply_steps
from edgeloop.graph.check import read_graph, shapes_of
from edgeloop.graph.count import graph_info
from edgeloop.isolation import Answer, mapped

if TYPE_CHECKING:
    from onnx import ModelProto


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
    found = compare_outputs(first, onnx.load_model(after), _runs(first, arrays))
    return {
        "is_equal": found.is_equal,
        "difference": found.difference,
        "problem": found.problem,
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
