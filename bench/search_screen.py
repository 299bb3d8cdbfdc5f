"""From an architecture to its latency on a chip, or to its counts, in warm processes: seconds a
candidate.

The goal is under 1 s for nets as a search for small chips meets them. Beside the wall-clock time
stands that of the processors, which is the fair figure on a machine that has other things to do.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from bench.tables import markdown
from edgeloop.search.evaluators import Screening
from edgeloop.search.evaluators.screening import ScreeningPlan
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.spaces import find_space

GOAL_S = 1.0
ONE = {"most_hourglasses": 1, "kernels": ("conv3x3",)}
# Options, the side of an image, and how many: what a laptop searches, what a phone's chip takes,
# and all there is, up to nets that no such chip would be given.
SPACES: dict[str, tuple[dict[str, object], int, int]] = {
    "laptop": ({**ONE, "base_channels": (16, 24), "factors": (1, 1.2, 1.5)}, 96, 12),
    "phone": ({**ONE, "base_channels": (32,), "factors": (1.2, 1.5), "most_layers": 3}, 256, 12),
    "whole space": ({}, 128, 5),
}


def run() -> str:
    rows = []
    with_chip = Screening(ScreeningPlan(("params", "macs", "chip_latency_ms")))
    with_chip.warm()
    for name, (options, side, count) in SPACES.items():
        space = find_space("hourglass", options)
        archs = [space.sample(seed, (1, 3, side, side), 19) for seed in range(count)]
        rows.append(_row(f"{name}, {side} px", with_chip, archs))
    with_chip.close()
    # What a search without a value of the compiler waits for: no weights, and no file.
    counts = Screening(ScreeningPlan(("params", "macs", "memory_bytes")))
    counts.warm()
    space = find_space("hourglass", {})
    archs = [space.sample(seed, (1, 3, 256, 256), 19) for seed in range(12)]
    rows.append(_row("counts alone, whole space, 256 px", counts, archs))
    counts.close()
    return markdown(("nets", "parameters", "median s", "worst s", "median CPU s", "goal"), rows)


def _row(name: str, screening: Screening, archs: list[Architecture]) -> tuple[str, ...]:
    seconds, busy, params = [], [], []
    for arch in archs:
        began, cpu = time.perf_counter(), _cpu_s()
        screening.send(arch)
        answer = screening.collect(120)[0]
        assert not answer.error, answer.error
        seconds.append(time.perf_counter() - began)
        busy.append(_cpu_s() - cpu)
        params.append(answer.values["params"] / 1e6)
    median = statistics.median(seconds)
    return (
        name,
        f"{min(params):.2f}M to {max(params):.2f}M",
        f"{median:.2f}",
        f"{max(seconds):.2f}",
        f"{statistics.median(busy):.2f}",
        "reached" if median < GOAL_S else "missed",
    )


def _cpu_s() -> float:
    """Of this process and its living children."""
    tick, own = os.sysconf("SC_CLK_TCK"), os.getpid()
    total = time.process_time()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == own:
            total += (int(fields[11]) + int(fields[12])) / tick
    return total
