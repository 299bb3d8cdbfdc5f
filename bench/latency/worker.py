"""One network through the compiler: `python -m bench.latency.worker ARCHIVE NETWORK FORMAT SOC…`
writes a JSON line per chip. A process of its own, since a native crash must not end the others.

No PyTorch, and none of the packages that the networks come from.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.latency.skeletons import read_skeleton, with_weights
from edgeloop.graph.check import read_graph
from edgeloop.graph.info import layout_of
from edgeloop.graph.read import shapes_of
from edgeloop.graph.rewrites.apply import apply_rewrites
from edgeloop.platforms.qnn.latency import features_of
from edgeloop.platforms.qnn.native import NativeWork
from edgeloop.platforms.qnn.quantize import deployed, events_of, quantize_with_fixed_scales

if TYPE_CHECKING:
    from onnx import ModelProto

TIMES = {
    "raw_us": "Simulated (Accelerator exec time us)",
    "low_us": "Simulated (Accelerator exec time us (lower estimate))",
    "high_us": "Simulated (Accelerator exec time us (upper estimate))",
}
COUNTS = {
    "missing_ops": "Missing Ops (Number of Ops with no Costs associated)",
    "input_fill_bytes": "Input Fill",
    "fill_bytes": "Intermediate Fill",
    "spill_bytes": "Intermediate Spill",
    "output_spill_bytes": "Output Spill",
}
_TO_CHANNEL_LAST = (0, 2, 3, 1)
_TO_CHANNEL_FIRST = (0, 3, 1, 2)


def main() -> None:
    archive, network, form, *socs = sys.argv[1:]
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    said = os.fdopen(os.dup(1), "w")  # the compiler prints
    os.dup2(2, 1)
    skeleton = read_skeleton(Path(archive).resolve(), network)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        features, work = deploy(skeleton, network, form), NativeWork()
        for soc in map(int, socs):
            row = {"soc": soc, **_compiled(work, soc, form), **features}
            print(json.dumps(row), file=said, flush=True)
        os.chdir("/")


def deploy(skeleton: ModelProto, network: str, form: str) -> dict[str, float]:
    """Writes deployed.onnx, the graph that the compiler is given; its features."""
    import onnx

    onnx.save_model(with_weights(skeleton, network), "network.onnx")
    model = read_graph(Path("network.onnx"))
    apply_rewrites(model)
    layouts = {name: layout_of(shape) for name, shape in _inputs(model).items()}
    if form == "float":
        target = _channel_last(model, layouts)
    else:
        quantize_with_fixed_scales(model, layouts, Path("fixed.onnx"), form == "w8a16")
        target = deployed(onnx.load_model("fixed.onnx"), layouts)
    onnx.save_model(target, "deployed.onnx")
    return features_of(target)


def _compiled(work: NativeWork, soc: int, form: str) -> dict[str, float]:
    profile = Path(f"profile{soc}.csv")
    options = {
        "soc_model": str(soc),
        "profiling_level": "detailed",
        "profiling_file_path": str(profile.resolve()),
    }
    if form == "float":
        options["enable_htp_fp16_precision"] = "1"
    work._session("deployed.onnx", options)
    events = events_of(profile, 1, (*TIMES.values(), *COUNTS.values()))
    times = {name: events[event] for name, event in TIMES.items()}
    return times | {name: int(events.get(event, 0)) for name, event in COUNTS.items()}


def _channel_last(model: ModelProto, layouts: dict[str, Any]) -> ModelProto:
    """The float graph as the vendor deploys it: float ends, images channel last."""
    from onnx import helper

    graph, first = model.graph, []
    for source in graph.input:
        if layouts.get(source.name) != "NCHW":
            continue
        given, kind = f"{source.name}_channel_last", source.type.tensor_type
        n, c, h, w = (dim.dim_value for dim in kind.shape.dim)
        first.append(
            helper.make_node(
                "Transpose", [given], [source.name], name=given, perm=_TO_CHANNEL_FIRST
            )
        )
        source.CopyFrom(helper.make_tensor_value_info(given, kind.elem_type, [n, h, w, c]))
    for node in reversed(first):
        graph.node.insert(0, node)
    for output in graph.output if first else ():
        kind = output.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        if len(shape) != 4:
            continue
        moved = f"{output.name}_channel_last"
        graph.node.append(
            helper.make_node("Transpose", [output.name], [moved], name=moved, perm=_TO_CHANNEL_LAST)
        )
        last = [shape[axis] for axis in _TO_CHANNEL_LAST]
        output.CopyFrom(helper.make_tensor_value_info(moved, kind.elem_type, last))
    return model


def _inputs(model: ModelProto) -> dict[str, tuple[int, ...]]:
    shapes = shapes_of(model.graph)
    return {source.name: shapes[source.name] for source in model.graph.input}


if __name__ == "__main__":
    main()
