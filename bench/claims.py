"""What a claim costs with 1,000 waiting models, alone and among 49,000 finished ones."""

from __future__ import annotations

import statistics
import time

from bench.places import KINDS, opened
from bench.tables import markdown
from edgeloop.models.leases import Leases
from edgeloop.models.plan import default_plan
from edgeloop.store import Store, Table

WAITING = 1_000
FINISHED = 49_000
CLAIMS = 200


def run() -> str:
    rows = []
    for kind in KINDS:
        (few, few_bare), (many, many_bare) = _measured(kind, 0), _measured(kind, FINISHED)
        ratio, bare = f"{many / few:.2f}", f"{many_bare / few_bare:.2f}"
        rows.append((kind, f"{few:.2f}", f"{many:.2f}", ratio, "≤ 1.3", bare))
    sizes = ("1,000 rows, ms", "50,000 rows, ms")
    return markdown(("store", *sizes, "ratio", "goal", "bare get + update, ratio"), rows)


def _measured(kind: str, finished: int) -> tuple[float, float]:
    """A claim, and beside it the least that any claim must do: read one row and change it."""
    with opened(kind) as store:
        claim_ms = _claim_ms(store, "claims", finished)
        models = store.models("claims")
        return claim_ms, statistics.median(_timed_change(models, i) for i in range(CLAIMS)) * 1000


def _timed_change(models: Table, number: int) -> float:
    began = time.perf_counter()
    row = models.get(f"wait-{WAITING - 1 - number:05d}")
    assert row is not None
    models.update(row, {"note": "x"})
    return time.perf_counter() - began


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
