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
    explored = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as pool:
        for each in pool.map(_explored, range(len(CONFIGURATIONS))):
            explored.append(each)
            for violation in each.violations:
                print(f"{each.configuration.name}: {violation}\n", flush=True)
    rows = [_line(each) for each in explored]
    rows.append(_sum(explored, time.monotonic() - began))
    headings = ("configuration", "states", "transitions", "contents", "to the end", "violations")
    return markdown((*headings, "seconds"), rows) + "\n\n" + _planted()


def _explored(number: int) -> Explored:
    return explore(CONFIGURATIONS[number], STATES)


def _line(each: Explored) -> tuple[object, ...]:
    counts = (f"{each.states:,}", f"{each.transitions:,}", f"{each.contents:,}")
    is_whole = "yes" if each.is_whole else "no"
    name, violations = each.configuration.name, len(each.violations)
    return (name, *counts, is_whole, violations, f"{each.seconds:.1f}")


def _sum(explored: list[Explored], elapsed_s: float) -> tuple[object, ...]:
    states = sum(each.states for each in explored)
    transitions = sum(each.transitions for each in explored)
    contents = sum(each.contents for each in explored)
    violations = sum(len(each.violations) for each in explored)
    whole = sum(each.is_whole for each in explored)
    counts = (f"{states:,}", f"{transitions:,}", f"{contents:,}", f"{whole} of {len(explored)}")
    return ("together", *counts, violations, f"{elapsed_s:.0f}")


def _planted() -> str:
    rows = []
    for name, planted in PLANTED.items():
        found = explore(planted.configuration, STATES)
        violation = found.violations[0] if found.violations else None
        says = violation.message if violation else "not found"
        rows.append((name, f"{found.states:,}", len(violation.trace) if violation else "", says))
    return markdown(("planted bug", "states until found", "steps", "violation"), rows)
