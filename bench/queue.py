"""What it costs to know how much work waits, with 100,000 models of which a tenth is finished: the
estimate from hints that a fleet makes every second, the exact numbers, and a scrape of the portal.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.places import opened
from bench.tables import markdown
from edgeloop.operate.fleet.demand import quick_demand, read_waiting_work
from edgeloop.settings import Settings
from edgeloop.store import Store
from edgeloop.view.portal.api import metrics
from edgeloop.view.portal.app import create_app
from edgeloop.workspace import Workspace

MODELS = 100_000
HELD = 1_000
CHIPS = ("htp:snapdragon-888", "htp:snapdragon-8-gen-2", "snapdragon-888", "qcs8550")
TIMES = 20


def run() -> str:
    rows = [cells for kind in ("sqlite", "postgresql") for cells in _measured(kind)]
    return markdown(("store", "what", "median, ms", "own CPU time, ms"), rows)


def _measured(kind: str) -> Iterator[tuple[str, str, str, str]]:
    with opened(kind) as store:
        workspace = Workspace(Settings.load(experiment="queue"), store)
        _fill(store)
        workspace.leases().sweep()
        looks: dict[str, tuple[Callable[[], object], int]] = {
            "from hints, up to 16 runners": (lambda: quick_demand(workspace, 16), TIMES),
            "from hints, up to 1,000": (lambda: quick_demand(workspace, 1_000), TIMES),
            "exact": (lambda: read_waiting_work(workspace, []), 3),
        }
        for what, (look, times) in looks.items():
            yield kind, what, *_timed(look, times)
        portal = create_app(workspace).state.portal
        portal.rows()
        while not portal.feed().snapshot.is_loaded:
            time.sleep(0.1)
        yield kind, "scrape of the portal", *_timed(lambda: metrics(portal), 5)
        portal.close()


def _fill(store: Store) -> None:
    converted = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
    converted |= {"toolchain": "qnn", "status": "waiting", "since": "2026-11-16T08:00:00+00:00"}
    held = {"token": "t", "owner": "n", "expires": time.time() + 3_600, "attempts": 1}

    def row(number: int) -> dict[str, Any]:
        if number < HELD:
            stages = json.dumps({"convert": held})
            return {"status": "running convert", "node": "n", "stages": stages}
        if number % 10 < 5:
            return {"status": "new", "since": "2026-11-16T08:00:00+00:00"}
        if number % 10 == 9:
            return {**converted, "status": "complete", "device": CHIPS[0]}
        pin = {"device": CHIPS[number % 4]} if number % 10 > 6 else {}
        return {**converted, **pin}

    models = store.models("queue")
    models.insert_many((f"m-{number:06}", row(number)) for number in range(MODELS))


def _timed(look: Callable[[], object], times: int) -> tuple[str, str]:
    """How long it takes, and how much of that is work of this process: the rest is the server's, or
    that of others on a busy machine."""
    wall, own = [], []
    for _ in range(times):
        began, began_cpu = time.perf_counter(), time.thread_time()
        look()
        own.append(1000 * (time.thread_time() - began_cpu))
        wall.append(1000 * (time.perf_counter() - began))
    return f"{statistics.median(wall):,.0f}", f"{statistics.median(own):,.0f}"
