"""How much exact rewrites save: `python -m bench advice [NAME…] [--jobs N] [--device NAME]`.

Twelve public networks, rebuilt without weights (bench/latency), with the normalization of the image
in the graph, as they are published. `--folder FOLDER` takes the ONNX files of a folder instead. The
largest difference of any output is a part of that output's spread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.tables import markdown
from edgeloop._util.system import available_cpus
from edgeloop.errors import EdgeloopError
from edgeloop.settings import Settings
from edgeloop.tuning.advice import Advice, AdviceOptions, advise_model

NETWORKS = (
    *("mobilenet_v2", "mobilenet_v3_large", "resnet18", "resnet50", "regnet_y_800mf"),
    *("densenet121", "googlenet", "shufflenet_v2", "squeezenet1_1", "convnext_tiny"),
    *("yolov8_det", "hrnet_pose"),
)
GOAL_PERCENT = 10
LIMIT_S = 240.0


def run(*options: str) -> str:
    parser = argparse.ArgumentParser(prog="python -m bench advice")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="htp:qcs8550")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args(options)
    began = time.monotonic()
    workers = max(1, available_cpus() // given.jobs)
    choice = AdviceOptions(workers=workers, limit_s=LIMIT_S, uses_cache=False)

    def advised(path: Path) -> tuple[str, Advice | str]:
        try:
            found: Advice | str = advise_model(path, given.device, choice, Settings.load())
        except EdgeloopError as error:
            found = str(error)
        print(f"{path.stem}: {_short(found)}", flush=True)
        return path.stem, found

    with TemporaryDirectory() as name, ThreadPoolExecutor(given.jobs) as pool:
        paths = list(_models(given, Path(name)))
        found = list(pool.map(advised, paths))
    return _report(found, given.device, time.monotonic() - began)


def _models(given: argparse.Namespace, folder: Path) -> Iterator[Path]:
    if given.folder is not None:
        yield from sorted(given.folder.glob("*.onnx"))
        return
    import onnx

    from bench.latency.catalog import SKELETONS
    from bench.latency.skeletons import read_skeleton, with_weights

    for name in given.names or NETWORKS:
        path = folder / f"{name}.onnx"
        onnx.save_model(with_weights(read_skeleton(SKELETONS, name), name), str(path))
        yield path


def _report(found: list[tuple[str, Advice | str]], device: str, seconds: float) -> str:
    rows, gains = [], []
    for name, advice in found:
        if isinstance(advice, str):
            rows.append((name, "", "", "failed", "", advice[:80]))
            continue
        gains.append(advice.gain_percent)
        rewrites = ", ".join(f"{one.name} ({len(one.layers)})" for one in advice.rewrites)
        off = max((one.difference for one in advice.rewrites), default=0.0)
        times = (f"{1000 * ms:.0f}" for ms in (advice.before_ms, advice.after_ms))
        rows.append(
            (name, *times, f"{advice.gain_percent:.1f} %", f"{off:.0e}", rewrites or "none")
        )
    mean, median = (part(gains or [0.0]) for part in (statistics.mean, statistics.median))
    table = markdown(("network", "before µs", "after µs", "gain", "difference", "rewrites"), rows)
    end = (
        f"{device}: {mean:.1f} % less on average over {len(gains)} networks "
        f"(goal: {GOAL_PERCENT} %), median {median:.1f} %, in {seconds:.0f} s"
    )
    return f"{table}\n\n{end}"


def _short(found: Advice | str) -> str:
    if isinstance(found, str):
        return found
    cut = ", cut short" if found.is_cut_short else ""
    names = ", ".join(one.name for one in found.rewrites)
    return f"{found.gain_percent:.1f} % ({names}; {found.compiles} compiles{cut})"
