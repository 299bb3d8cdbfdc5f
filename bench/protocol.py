"""The lease protocol explored state by state: how many states, and whether one breaks a rule."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from bench.tables import markdown
from tests.protocol.broken import PLANTED
from tests.protocol.configurations import LARGE, SMALL
from tests.protocol.explore import Explored, explore

STATES = int(os.environ.get("BENCH_PROTOCOL_STATES", "150000"))  # at most, of one configuration
CONFIGURATIONS = (*SMALL, *LARGE)


def run() -> str:
    began = time.monotonic()
    workers = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
    with ProcessPoolExecutor(workers, get_context("fork"), max_tasks_per_child=None) as pool:
        explored = list(pool.map(_explored, range(len(CONFIGURATIONS))))
    elapsed_s = time.monotonic() - began
    for each in explored:
        for violation in each.violations:
            print(f"{each.configuration.name}: {violation}\n")
    headings = (
        "configuration",
        "states",
        "transitions",
        "contents",
        "all of it",
        "violations",
        "s",
    )
    rows = [_line(each) for each in explored]
    states, transitions = (
        sum(getattr(e, name) for e in explored) for name in ("states", "transitions")
    )
    contents, broken = sum(e.contents for e in explored), sum(len(e.violations) for e in explored)
    rows.append(
        (
            "together",
            f"{states:,}",
            f"{transitions:,}",
            f"{contents:,}",
            "",
            broken,
            f"{elapsed_s:.0f}",
        )
    )
    return markdown(headings, rows) + "\n\n" + _planted()


def _explored(number: int) -> Explored:
    return explore(CONFIGURATIONS[number], STATES)


def _line(each: Explored) -> tuple[object, ...]:
    counts = (f"{each.states:,}", f"{each.transitions:,}", f"{each.contents:,}")
    whole = "yes" if each.is_whole else "no"
    return (each.configuration.name, *counts, whole, len(each.violations), f"{each.seconds:.1f}")


def _planted() -> str:
    rows = []
    for name, planted in PLANTED.items():
        found = explore(planted.configuration, STATES)
        violation = found.violations[0] if found.violations else None
        says = violation.message if violation else "not found"
        rows.append((name, f"{found.states:,}", len(violation.trace) if violation else "", says))
    return markdown(("planted bug", "states until found", "steps", "violation"), rows)
