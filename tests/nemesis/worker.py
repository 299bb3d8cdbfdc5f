"""A worker that the nemesis torments: claims, works a little, hands in, writes down all of it."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

from edgeloop.errors import Conflict, LeaseLost, StoreError
from edgeloop.models import Lease, Leases, Outcome, default_plan, runs_of
from edgeloop.store import Value, open_store, parse_location
from tests.nemesis.history import Writer

CAPABILITIES = ("quantize", "onnx", "device", "device-accuracy", "device-float")
BENCHMARK_RUNS = 2
HAND_IN_PATIENCE_S = 20.0


def columns(lease: Lease) -> dict[str, Value]:
    """A result that can be traced to its token."""
    mark = float(int(lease.token[:12], 16))
    if lease.stage == "convert":
        mine: dict[str, Value] = {"shape": lease.token[:12], "output_shape": "[1]"}
        return {"quantized": True, "macs": 1, "params": 1, **mine}
    if lease.stage == "benchmark":
        runs = [*runs_of(lease.row.values), mark]
        return {"total_inference_avg": json.dumps(runs), "mean": 0.001, "stdev": 0.0}
    return {lease.stage: lease.token[:12]}


def hand_in(leases: Leases, lease: Lease, history: Writer) -> None:
    """Like a runner: while the store is away the same word is said again, until it is answered."""
    began = time.monotonic()
    history.add("commit", lease.model, lease.stage, lease.token, began)
    while time.monotonic() - began < HAND_IN_PATIENCE_S:
        try:
            leases.commit(lease, Outcome(columns(lease)))
        except LeaseLost:
            history.add("lost", lease.model, lease.stage, lease.token, began)
            return
        except (StoreError, Conflict):
            time.sleep(0.1)
        else:
            history.add("accepted", lease.model, lease.stage, lease.token, began)
            return
    history.add("unsure", lease.model, lease.stage, lease.token, began)


def work(leases: Leases, node: str, history: Writer, dice: random.Random, work_s: float) -> bool:
    began = time.monotonic()
    lease = leases.claim(CAPABILITIES, node)
    if lease is None:
        return False
    history.add("claimed", lease.model, lease.stage, lease.token, began)
    time.sleep(dice.expovariate(1 / work_s))
    chance = dice.random()
    if chance < 0.2:
        lease = leases.renew(lease)
    if 0.2 <= chance < 0.25:
        leases.fail(lease, "drawn by lot")
        history.add("failed", lease.model, lease.stage, lease.token, began)
    elif 0.25 <= chance < 0.3:
        leases.release(lease)
        history.add("released", lease.model, lease.stage, lease.token, began)
    else:
        hand_in(leases, lease, history)
    return True


def main(experiment: str, folder: str, seed: str, lease_s: str, work_s: str) -> None:
    dice = random.Random(int(seed))
    skew = dice.uniform(-2, 2)
    store = open_store(parse_location(os.environ["NEMESIS_STORE"]))
    leases = Leases(
        store.models(experiment),
        store.queue(experiment),
        default_plan(BENCHMARK_RUNS),
        lease_s=float(lease_s),
        margin_s=0.5,
        max_attempts=1_000_000,
        clock=lambda: time.time() + skew,
    )
    history = Writer(Path(folder) / f"{seed}.jsonl")
    while not (Path(folder) / "stop").exists():
        try:
            if not work(leases, f"worker-{seed}", history, dice, float(work_s)):
                time.sleep(0.05)
        except (StoreError, Conflict):
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
