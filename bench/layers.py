"""Cost per layer without a board: what it takes on two cores, whether it adds up, and whether
layers that can be taken out of a network save what was said of them.

`python -m bench layers [FOLDER]`: the ONNX files of a folder, or twelve public networks with random
weights. Every network has two cores to itself; as many run at once as there are cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench.tables import markdown

if TYPE_CHECKING:
    from onnx import ModelProto

ARCHIVE = Path(__file__).with_name("latency") / "skeletons.zip"
NETWORKS = (
    *("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "squeezenet1_1", "googlenet"),
    *("regnet_y_800mf", "shufflenet_v2", "densenet121", "mediapipe_selfie", "face_det_lite"),
    "sesr_m5",
)
CHIP = "htp:qcs8550"
LIMIT_S = 60.0
CORES = 2
MANY_LAYERS = 80
TAKEN_OUT = 5  # layers of a network


def run(folder: str = "") -> str:
    with TemporaryDirectory() as name:
        files = sorted(Path(folder).glob("*.onnx")) if folder else _networks(Path(name))
        found = _measured(files)
    rows = [_row(one) for one in found]
    sums = [abs(one["sum_us"] / one["total_us"] - 1) for one in found if "total_us" in one]
    times = [one["seconds"] for one in found if "seconds" in one]
    usual = [one["seconds"] for one in found if one.get("layers", MANY_LAYERS) < MANY_LAYERS]
    errors = [error for one in found for error in one.get("errors", ())]
    text = markdown(
        (
            *("network", "layers", "entries", "latency, µs", "sum − whole, %", "not attributed, %"),
            *("compiles", "time, s", "taken out − said, % of whole"),
        ),
        rows,
    )
    goals = [
        ("largest difference of sum and whole, %", _percent(max(sums, default=0.0)), "5"),
        (f"longest time below {MANY_LAYERS} layers, s", f"{max(usual, default=0.0):.0f}", "60"),
        ("longest time of all, s", f"{max(times, default=0.0):.0f}", ""),
        ("networks", str(len(times)), "12"),
        ("median error against layers taken out, % of whole", _percent(_median(errors)), ""),
    ]
    return f"{text}\n\n{markdown(('all networks', 'found', 'goal'), goals)}"


def _networks(folder: Path) -> list[Path]:
    import onnx

    from bench.latency.skeletons import read_skeleton, with_weights

    files = []
    for name in NETWORKS:
        files.append(folder / f"{name}.onnx")
        onnx.save_model(with_weights(read_skeleton(ARCHIVE, name), name), str(files[-1]))
    return files


def _measured(files: list[Path]) -> list[dict[str, Any]]:
    """Each in a process of its own that is bound to two cores."""
    cores = sorted(os.sched_getaffinity(0))
    pairs: SimpleQueue[list[int]] = SimpleQueue()
    jobs = max(1, len(cores) // CORES)
    for number in range(jobs):
        pairs.put(cores[CORES * number : CORES * (number + 1)])

    def one(file: Path) -> dict[str, Any]:
        pair = pairs.get()
        try:
            command = [sys.executable, "-m", "bench.layers", str(file), ",".join(map(str, pair))]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            pairs.put(pair)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            return {"network": file.stem, "problem": lines[-1] if lines else "no answer"}
        line = done.stdout.splitlines()[-1]
        print(line, file=sys.stderr, flush=True)
        found: dict[str, Any] = json.loads(line)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, files))


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    if "problem" in found:
        return (found["network"], found["problem"], *[""] * 7)
    total = found["total_us"]
    return (
        found["network"],
        str(found["layers"]),
        str(found["entries"]),
        f"{total:.0f}",
        _percent(found["sum_us"] / total - 1),
        _percent(found["unattributed_us"] / total),
        str(found["compiles"]),
        f"{found['seconds']:.0f}",
        ", ".join(f"{100 * error:+.1f}" for error in found["errors"]),
    )


def measure(file: Path) -> dict[str, Any]:
    """What `edgeloop layers` finds, and how long it takes from nothing."""
    from edgeloop.platforms.qnn import QnnPlatform
    from edgeloop.settings import Settings

    device = QnnPlatform().open_device(CHIP, Settings.load(), CORES)
    try:
        begin = time.monotonic()
        costs = device.attribute(file, limit_s=LIMIT_S)
        seconds = time.monotonic() - begin
        alone = [cost for cost in costs.layers if len(cost.members) == 1 and cost.share > 0.005]
        alone.sort(key=lambda cost: -cost.share)
        errors = _errors(file, {cost.name: cost.share for cost in alone})
    finally:
        device.close()
    return {
        "network": file.stem,
        "layers": sum(len(cost.members) for cost in costs.layers),
        "entries": len(costs.layers),
        "total_us": costs.total_us,
        "sum_us": sum(cost.time_us for cost in costs.layers),
        "unattributed_us": costs.unattributed_us,
        "compiles": costs.compiles,
        "seconds": seconds,
        "errors": errors,
        "notes": costs.notes,
    }


def _errors(file: Path, shares: dict[str, float]) -> list[float]:
    """What the whole saves without a layer, less what was said of it, as shares of the whole."""
    import onnx

    import edgeloop.platforms.qnn.toolchain  # noqa: F401 - registers the calls
    from edgeloop._util.isolation import WorkerProcess
    from edgeloop.errors import EdgeloopError

    found: list[float] = []
    with TemporaryDirectory() as name, WorkerProcess() as process:
        deployed, cut = Path(name, "deployed.onnx"), Path(name, "cut.onnx")
        fields = {"quantized": str(Path(name, "quantized.onnx")), "deployed_as": str(deployed)}
        process.call("qnn.layers", model=str(file.resolve()), **fields)

        def cycles(model: Path) -> float:
            ask = {"names": [], "soc": 77, "count": 0, "copies": 1}
            return float(process.call("qnn.prefix", model=str(model), **ask)[0]["cycles"])

        whole = cycles(deployed)
        for layer, share in shares.items():
            model = onnx.load_model(str(deployed))
            if len(found) == TAKEN_OUT or not taken_out(model, layer):
                continue
            onnx.save_model(model, str(cut))
            try:
                found.append((whole - cycles(cut)) / whole - share)
            except EdgeloopError:
                continue
    return found


def taken_out(model: ModelProto, layer: str) -> bool:
    """Whether `model` could go without it: one tensor in, and one of the same shape out. Then who
    read its output reads its input."""
    from edgeloop.platforms.qnn.layers import shapes_with_quantized

    graph = model.graph
    shapes = shapes_with_quantized(model)
    makers = {name: node for node in graph.node for name in node.output}
    node = next((node for node in graph.node if node.name == layer), None)
    if node is None or len(node.output) != 1:
        return False
    constants = {tensor.name for tensor in graph.initializer}

    def is_constant(name: str) -> bool:
        maker = makers.get(name)
        return not name or name in constants or (maker is not None and maker.input[0] in constants)

    sources = [name for name in node.input if not is_constant(name)]
    if len(sources) != 1 or sources[0] not in makers:
        return False
    source = sources[0]
    if shapes.get(source) is None or shapes.get(source) != shapes.get(node.output[0]):
        return False
    made = {node.output[0]}
    for other in graph.node:
        if other.op_type in ("QuantizeLinear", "DequantizeLinear") and other.input[0] in made:
            made.update(other.output)
    if made & {output.name for output in graph.output}:
        return False
    for other in graph.node:
        if other.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            for place, name in enumerate(other.input):
                if name in made:
                    other.input[place] = source
    needed = {output.name for output in graph.output}
    kept = []
    for other in reversed(graph.node):
        if needed.intersection(other.output):
            kept.append(other)
            needed.update(other.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    return True


def _median(values: list[float]) -> float:
    return statistics.median(map(abs, values)) if values else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(core) for core in sys.argv[2].split(",")})
    print(json.dumps(measure(Path(sys.argv[1]))))
