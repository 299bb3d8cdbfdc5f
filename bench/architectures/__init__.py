"""Which public architectures get a latency, how long that takes, and what is in the way of others.

The files are made by build.py in an environment of its own, in `build/architectures` or in the
folder that BENCH_ARCHITECTURES names; `edgeloop bench` then runs once per file, as a user would run
it. `python -m bench architectures NAME…` measures some.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.tables import markdown

HERE = Path(__file__).parent
LIST = HERE / "architectures.yaml"
DEVICE = "htp:qcs8550"
LIMIT_S = 120
GOAL = 0.9


@dataclass(frozen=True)
class Result:
    """Of one architecture: its latency, or why there is none."""

    name: str
    family: str
    package: str
    seconds: float
    latency_ms: float | None = None
    reason: str = ""


def architectures() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = yaml.safe_load(LIST.read_text("utf-8"))
    return listed


def run(*names: str) -> str:
    folder = Path(os.environ.get("BENCH_ARCHITECTURES", "build/architectures"))
    chosen = [entry for entry in architectures() if not names or entry["name"] in names]
    _build(folder, [entry["name"] for entry in chosen])
    results = []
    for entry in chosen:
        results.append(measure(entry, folder))
        print(_line(results[-1]), file=sys.stderr, flush=True)
    return "\n\n".join((_families(results), _table(results)))


def _build(folder: Path, names: Sequence[str]) -> None:
    if all((folder / f"{name}.onnx").is_file() for name in names):
        return
    python = folder / "venv" / "bin" / "python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        wanted = ("--quiet", "--no-deps", "-r", HERE / "requirements.txt")
        subprocess.run([python, "-m", "pip", "install", *wanted], check=True)
    subprocess.run([python, "-W", "ignore", HERE / "build.py", folder, *names], check=True)


def measure(entry: dict[str, Any], folder: Path) -> Result:
    file = folder / f"{entry['name']}.onnx"
    known = (entry["name"], entry["family"], entry["package"])
    command = [sys.executable, "-m", "edgeloop", "bench", file, "--device", DEVICE, "--json"]
    began = time.perf_counter()
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Result(*known, LIMIT_S, reason=f"took longer than {LIMIT_S} s")
    seconds = time.perf_counter() - began
    if not ended.stdout.strip():
        return Result(*known, seconds, reason=_last(ended.stderr))
    [found] = json.loads(ended.stdout)
    return Result(*known, seconds, found["latency_ms"], found["error"])


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"


def _families(results: Sequence[Result]) -> str:
    total = Counter(result.family for result in results)
    measured = Counter(result.family for result in results if result.latency_ms is not None)
    rows = [(family, count, measured[family], "") for family, count in total.items()]
    taken = measured.total()
    share = f"{100 * taken / len(results):.0f} % (≥ {100 * GOAL:.0f} %)"
    rows.append(("all", len(results), taken, share))
    return markdown(("family", "architectures", f"latency on {DEVICE}", "share"), rows)


def _table(results: Sequence[Result]) -> str:
    rows = [
        (
            result.name,
            result.family,
            result.package,
            "" if result.latency_ms is None else f"{result.latency_ms:.2f}",
            f"{result.seconds:.0f}",
            result.reason.replace("|", "/"),
        )
        for result in results
    ]
    headings = ("architecture", "family", "package", "latency, ms", "took, s", "refused")
    return markdown(headings, rows)


def _line(result: Result) -> str:
    outcome = result.reason or f"{result.latency_ms:.2f} ms"
    return f"{result.name}: {outcome} ({result.seconds:.0f} s)"
