"""Virtual time inside the product: the names that its modules import are replaced, nothing else."""

from __future__ import annotations

import contextlib
import random
import secrets
import uuid
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from unittest import mock

from bench.fleet_sim.kernel import Kernel
from bench.fleet_sim.machines import Statistics, Workload
from bench.fleet_sim.threads import (
    VirtualExecutor,
    virtual_datetime,
    virtual_threading,
    virtual_time,
)
from edgeloop.errors import LeaseLost
from edgeloop.models import columns, leases, queue
from edgeloop.models.leases import Lease, Leases
from edgeloop.operate.fleet import demand
from edgeloop.platforms.snpe import run
from edgeloop.runner import coordinator, presence, worker
from edgeloop.runner.stages.base import Result
from edgeloop.workspace import Workspace

MODULES = (columns, leases, queue, run, coordinator, presence, worker, demand)


@contextlib.contextmanager
def virtual_product(
    kernel: Kernel, workload: Workload, seen: Statistics, seed: int, tick_s: float
) -> Iterator[None]:
    """For the length of a simulation. Random choices and tokens come from the seed."""
    state = random.getstate()
    random.seed(seed)
    tokens = Random(seed + 1)
    replaced: list[tuple[Any, str, object]] = [
        (presence, "TICK_S", tick_s),
        (secrets, "token_hex", lambda size=8: f"{tokens.getrandbits(8 * size):0{2 * size}x}"),
        (uuid, "uuid4", lambda: uuid.UUID(int=tokens.getrandbits(128), version=4)),
        (worker, "ThreadPoolExecutor", lambda *args: VirtualExecutor(kernel, *args)),
        (worker, "datetime", virtual_datetime(kernel)),
        (worker, "perform", workload.perform),
        (worker, "store_and_commit", _watched(worker.store_and_commit, kernel, workload, seen)),
    ]
    threads, clock = virtual_threading(kernel), virtual_time(kernel)
    for module in MODULES:
        for name, value in (("threading", threads), ("time", clock)):
            if hasattr(module, name):
                replaced.append((module, name, value))
    with contextlib.ExitStack() as patched:
        defaults = Leases.__init__.__kwdefaults__ or {}
        patched.enter_context(mock.patch.dict(defaults, clock=clock.time))
        for target, name, value in replaced:
            patched.enter_context(mock.patch.object(target, name, value))
        try:
            yield
        finally:
            random.setstate(state)


def _watched(
    real: Callable[..., None], kernel: Kernel, workload: Workload, seen: Statistics
) -> Callable[..., None]:
    """The real hand-in; the ledger hears how it ended."""

    def store_and_commit(workspace: Workspace, held: Leases, lease: Lease, result: Result) -> None:
        kind = "linux" if lease.stage in ("convert", "f1_onnx") else "boards"
        seen.handing_in[kind] += 1
        try:
            real(workspace, held, lease, result)
        except LeaseLost:
            workload.ledger.refuse(lease.stage)
            raise
        finally:
            seen.handing_in[kind] -= 1
        workload.ledger.accept(lease.model, lease.stage, int(result.summary))

    return store_and_commit
