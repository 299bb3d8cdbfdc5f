"""`edgeloop inspect` and `edgeloop bench` of MobileNetV2 as a person waits for them: start of
Python, imports and all. The package is compiled first, as an installed one is. Processor time is
that of all processes: it says more than the clock while other work runs on the machine.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.tables import markdown
from edgeloop.testing.models import save_segmentation_model
from tests.nets_torch import export, mobilenet_v2

REPEATS = 5
UPLOADS = 1_000
EDGELOOP = Path(sys.executable).with_name("edgeloop")
CHIPS = ("--device", "htp:qcs8550", "--device", "htp:x-elite")


def run() -> str:
    with TemporaryDirectory() as name:
        folder = Path(name)
        export(mobilenet_v2(), folder / "net.onnx", 224)
        commands = [
            ("inspect net.onnx", "≤ 2"),
            (f"bench net.onnx {' '.join(CHIPS)}", "≤ 10"),
            ("bench net.onnx", "≤ 10"),
        ]
        rows = [(f"`edgeloop {c}`", *_seconds(c.split(), folder), goal) for c, goal in commands]
        (folder / "nets").mkdir()
        for seed in range(UPLOADS):
            save_segmentation_model(folder / f"nets/{seed}.onnx", 64, seed=seed)
        for more in ((), ("--no-check",)):
            wall, processor = _timed(["upload", "nets", "-e", f"run{len(more)}", *more], folder)
            title = f"`{' '.join(('edgeloop upload nets', *more))}`, {UPLOADS:,} small models"
            rows.append((title, f"{wall:.2f}", f"{processor:.2f}", ""))
    return markdown(("MobileNetV2, 224²", "median, s", "processor, s", "goal, s"), rows)


def _seconds(arguments: list[str], folder: Path) -> tuple[str, str]:
    _timed(arguments, folder)
    runs = [_timed(arguments, folder) for _ in range(REPEATS)]
    wall, processor = zip(*runs, strict=True)
    return f"{statistics.median(wall):.2f}", f"{min(processor):.2f}"


def _timed(arguments: list[str], folder: Path) -> tuple[float, float]:
    environ = {**os.environ, "EDGELOOP_CACHE": str(folder / "cache")}
    began, used = time.perf_counter(), _processor_seconds()
    command = [str(EDGELOOP), *arguments]
    subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began, _processor_seconds() - used


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
