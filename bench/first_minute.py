"""`edgeloop inspect` and `edgeloop bench` of MobileNetV2 as a person waits for them: start of
Python, imports and all. The package is compiled first, as an installed one is. Processor time is
that of all processes: it says more than the clock while other work runs on the machine.

Before that, the first block of the README in an empty folder, with nothing cached: `bench`, then
the portal until it answers, and until a Chromium that is already open shows its models.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from bench.tables import markdown
from edgeloop.testing.models import save_segmentation_model
from tests.nets_torch import export, mobilenet_v2
from tests.peers.browser import Browser

REPEATS = 5
UPLOADS = 1_000
EDGELOOP = Path(sys.executable).with_name("edgeloop")
CHIPS = ("--device", "htp:qcs8550", "--device", "htp:x-elite")
README = Path(__file__).parents[1] / "README.md"


def run() -> str:
    return f"{first_block()}\n\n{commands()}"


def first_block() -> str:
    """The time a user waits after pasting it; installation is not included."""
    block = README.read_text().partition("```bash\n")[2].partition("```")[0]
    bench, portal = (line for line in block.splitlines() if line.startswith("edgeloop "))
    runs = []
    with Browser() as browser:
        for _ in range(REPEATS):
            with TemporaryDirectory() as name:
                seconds, _ = _timed(shlex.split(bench)[1:], Path(name))
                runs.append((seconds, *_seconds_to_portal(shlex.split(portal)[1:], browser, name)))
    columns = [f"{statistics.median(column):.2f}" for column in zip(*runs, strict=True)]
    slowest = [f"{max(column):.2f}" for column in zip(*runs, strict=True)]
    what = (f"`{bench}`: the table", f"`{portal}`: answers", "… and Chromium shows the models")
    rows = list(zip(what, columns, slowest, ("≤ 60", "≤ 5", "≤ 5"), strict=True))
    return markdown(("first block of the README", "median, s", "slowest, s", "goal, s"), rows)


def _seconds_to_portal(arguments: list[str], browser: Browser, folder: str) -> tuple[float, float]:
    """From the start of the command until its page answers, and until its models are seen."""
    began = time.perf_counter()
    environ = {**os.environ, "BROWSER": "true"}  # the browser that is open takes its place
    command = [str(EDGELOOP), *arguments, "--port", "0"]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None, "the portal says its address first"
            httpx.get(found[0], follow_redirects=True, timeout=30).raise_for_status()
            answered = time.perf_counter() - began
            with browser.tab(found[0]) as tab:
                tab.page.locator("main table tbody tr").first.wait_for()
                return answered, time.perf_counter() - began
        finally:
            process.send_signal(signal.SIGINT)


def commands() -> str:
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
