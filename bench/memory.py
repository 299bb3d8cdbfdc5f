"""Peak memory and CPU time of the commands that read a whole table: 100,000 rows of 8 kB, most of
it in columns that no table shows. The portal is asked for its table, sorted, filtered and paged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx

from bench.tables import markdown
from edgeloop.store import SqliteLocation, Store, Value, open_store
from tests.portal.live import live

ROWS = 100_000
ROW_BYTES = 8_000
MOST_MB = 200
STATUS_CPU_S = 2.0
LOADED_S = 300.0  # for the portal to read every row, on a busy machine
COMMANDS = (
    ("status",),
    ("status", "--json"),
    ("status", "--csv", "-"),
    ("status", "--json", "--sort", "mean"),
    ("queue",),
)
PORTAL = ("portal",)
_PAGES = ("", "?sort=mean&descending=1", "?text=m-0&status=complete", "?page=50")
_EDGELOOP = Path(sys.executable).with_name("edgeloop")
# A small process starts the command: a child counts the memory of its parent until it runs.
_MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime)
"""


class Usage(NamedTuple):
    peak_mb: float
    cpu_s: float


def run() -> str:
    lines = []
    for are_complete in (True, False):
        with TemporaryDirectory() as folder:
            store = open_store(SqliteLocation(Path(folder) / ".edgeloop"))
            fill(store, ROWS, are_complete)
            store.close()
            for command in (*COMMANDS, PORTAL):
                is_portal = command == PORTAL
                usage = of_portal(Path(folder)) if is_portal else measured(command, Path(folder))
                cpu_goal = f"≤ {STATUS_CPU_S:g}" if command == ("status",) else ""
                lines.append(
                    (
                        f"`{' '.join(command)}`",
                        "complete" if are_complete else "new",
                        f"{usage.peak_mb:.0f}",
                        f"≤ {MOST_MB}",
                        f"{usage.cpu_s:.2f}",
                        cpu_goal,
                    )
                )
    return markdown(("command", "rows", "peak, MB", "goal, MB", "CPU, s", "goal, s"), lines)


def fill(store: Store, count: int, are_complete: bool = True) -> None:
    """An experiment `default` with this many rows, all complete or all new."""
    rows = _rows(count, are_complete)
    store.models("default").insert_many((str(row["name"]), row) for row in rows)


def measured(command: tuple[str, ...], folder: Path) -> Usage:
    """What `edgeloop` with these arguments takes, in a process of its own."""
    program = [sys.executable, "-c", _MEASURE, str(_EDGELOOP), *command]
    finished = subprocess.run(program, cwd=folder, stdout=subprocess.PIPE, check=True, text=True)
    return Usage(*map(float, finished.stdout.split()))


def of_portal(folder: Path, count: int = ROWS) -> Usage:
    """What the portal takes until it has shown every row, and some pages of the table."""
    with live(folder) as portal:
        process = Path(f"/proc/{portal.process.pid}")
        limit = time.monotonic() + LOADED_S
        while f"all {count} " not in _words(httpx.get(portal.address, timeout=60).text):
            assert time.monotonic() < limit, "the page never showed every row"
            time.sleep(0.5)
        for page in _PAGES:
            httpx.get(f"{portal.address}{page}", timeout=60).raise_for_status()
        lines = (process / "status").read_text().splitlines()
        peak_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        ticks = (process / "stat").read_text().rpartition(") ")[2].split()[11:13]
        return Usage(peak_kb / 1024, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"))


def _words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def _rows(count: int, are_complete: bool) -> Iterator[dict[str, Value]]:
    stage = {"attempts": 1, "committed": ["0f8fad5bd9cb469fa16570867728950e"], "took_s": 12.5}
    names = ("upload", "convert", "f1_onnx", "benchmark", "f1_1k") if are_complete else ("upload",)
    stages = json.dumps(dict.fromkeys(names, stage))
    measures = dict.fromkeys(("mean", "stdev", "p50", "p90", "peak_mb"), 0.0123456789)
    results = json.dumps({f"htp:snapdragon-{i} int8 256x256": measures for i in range(40)})
    for number in range(count):
        row: dict[str, Value] = {
            "name": f"m-{number:06}",
            "status": "new",
            "node": "",
            "model_date": "2026-11-16T08:00:00+00:00",
            "model_name": f"id_{number:08x}_8_12.onnx",
            "stages": stages,
        }
        if are_complete:
            share = number * 7919 % count / count
            row |= {
                "status": "complete",
                "shape": "[1, 3, 256, 256]",
                "output_shape": "[1, 19, 256, 256]",
                "quantized": True,
                "toolchain": "qnn",
                "macs": 412_000_000 + number,
                "params": 270_000,
                "mean": 0.01 + share,
                "stdev": 0.3,
                "total_inference_avg": "[0.0123, 0.0123, 0.0123]",
                "device": "htp:snapdragon-888",
                "f1_onnx": share,
                "f1_1k": share,
                "f1_10k": share,
                "completed": "2026-11-16T08:10:00+00:00",
            }
        missing = ROW_BYTES - len(json.dumps({**row, "results": results}))
        yield {**row, "results": results + " " * missing}
