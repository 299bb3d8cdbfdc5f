"""What a claim costs with 1,000 waiting models, alone and among 49,000 finished ones."""

from __future__ import annotations

import statistics
import time

from bench.places import KINDS, opened
from bench.tables import markdown
from edgeloop.models import Leases, default_plan
from edgeloop.store import Store

WAITING = 1_000
FINISHED = 49_000
CLAIMS = 200


def run() -> str:
    rows = []
    for kind in KINDS:
        with opened(kind) as store:
            few = _claim_ms(store, "few", finished=0)
            many = _claim_ms(store, "many", finished=FINISHED)
            again = _claim_ms(store, "few-again", finished=0)
            reference = min(few, again)
            rows.append(
                (kind, f"{reference:.2f}", f"{many:.2f}", f"{many / reference:.2f}", "≤ 1.5")
            )
    headings = ("store", "1,000 rows, ms", "50,000 rows, ms", "ratio", "goal")
    return markdown(headings, rows)


def _claim_ms(store: Store, experiment: str, finished: int) -> float:
    models = store.models(experiment)
    row = {"epochs": 30, "macs": 412_000_000, "params": 270_000, "mean": 0.0012, "f1_1k": 0.74}
    models.insert_many(
        (f"done-{i:05d}", {**row, "name": f"done-{i:05d}", "status": "complete"})
        for i in range(finished)
    )
    models.insert_many(
        (f"wait-{i:05d}", {"name": f"wait-{i:05d}", "status": "new"}) for i in range(WAITING)
    )
    leases = Leases(models, store.queue(experiment), default_plan())
    leases.sweep()
    return statistics.median(_timed_claim(leases) for _ in range(CLAIMS)) * 1000


def _timed_claim(leases: Leases) -> float:
    began = time.perf_counter()
    lease = leases.claim(["quantize"], "bench")
    elapsed = time.perf_counter() - began
    assert lease is not None
    return elapsed
