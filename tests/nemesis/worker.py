"""A runner's worker that the nemesis torments: Edgeloop's own, with stages that take no tools.

Everything but the stages is the real thing: claims, claims ahead, heartbeats, fetched files,
backoff, hand-in and publication. Leases and stages write down what they do.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from edgeloop.errors import EdgeloopError, LeaseLost, ModelFailed, WorkerFailed
from edgeloop.models.columns import runs_of
from edgeloop.models.leases import Lease, Leases, Outcome
from edgeloop.models.plan import Plan, Stage, records_of
from edgeloop.models.queue import Queue
from edgeloop.runner import coordinator, worker
from edgeloop.runner.coordinator import Coordinator
from edgeloop.runner.presence import RunnerEvent
from edgeloop.runner.resources import CpuPool, WorkFolder
from edgeloop.runner.stages.base import Assignment, Equipment, Result
from edgeloop.runner.worker import RunnerContext, Worker
from edgeloop.settings import Settings
from edgeloop.store import Record, Table, Value, Values
from edgeloop.workspace import Workspace
from tests.nemesis.history import Clock, Writer

CAPABILITIES = ("quantize", "onnx", "device", "device-accuracy", "device-float")
LONGEST_DELAY_S = 0.5  # rounds are short
MODEL_FAULTS, MACHINE_FAULTS = 0.03, 0.03
RESULT_BYTES = 2_000
GAVE_UP_STARTING = 3  # exit code
DRAWN = "drawn by lot"


def rank_number(rank: str) -> float:
    return float(rank.partition("+")[0])


def ready_stages(values: Values, name: str, plan: Plan, queue: Queue) -> dict[str, list[object]]:
    """Stages of a row that nobody holds and that may be claimed now, each with its rank and whether
    that is the row's own."""
    found: dict[str, list[object]] = {}
    for stage in plan.for_model(values):
        if queue.ready_at(values, stage) == 0.0:
            rank = queue.key(name, values, stage).split("|", 2)[1]
            found[stage.name] = [rank_number(rank), "+" in rank]
    return found


class WitnessedLeases(Leases):
    """Leases that write down what is done with them."""

    def __init__(
        self, models: Table, hints: Table, plan: Plan, history: Writer, clock: Clock, **limits: Any
    ) -> None:
        super().__init__(models, hints, plan, clock=clock, **limits)
        self._history, self._wrong_clock = history, clock
        self._is_urgent_unknown = False
        self._chose_at = time.monotonic()

    def claim(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        only: Callable[[str], bool] = lambda model: True,
    ) -> Lease | None:
        began = time.monotonic()
        lease = super().claim(capabilities, node, only=only)
        self._claimed("claimed", lease, began)
        return lease

    def claim_ahead(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        only: Callable[[str], bool] = lambda model: True,
        after: str = "",
    ) -> Lease | None:
        began = time.monotonic()
        lease = super().claim_ahead(capabilities, node, only=only, after=after)
        self._claimed("ahead", lease, began)
        return lease

    def claim_urgent(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        than: str,
        only: Callable[[str], bool] = lambda model: True,
    ) -> Lease | None:
        began, self._is_urgent_unknown = time.monotonic(), True
        self._chose_at = began
        lease = super().claim_urgent(capabilities, node, than=than, only=only)
        self._claimed("urgent", lease, began)
        self._is_urgent_unknown = False
        return lease

    def begin(self, lease: Lease) -> Lease:
        """What goes first was chosen when urgent work was looked for."""
        began = self._chose_at
        begun = super().begin(lease)
        detail = {**self._seen(begun), "unknown": self._is_urgent_unknown or self._is_resting}
        self._history.add("begun", lease.model, lease.stage, lease.token, began, **detail)
        return begun

    def commit(self, lease: Lease, outcome: Outcome) -> Record:
        commit = super().commit
        return self._told("commit", "accepted", lease, lambda: commit(lease, outcome))

    def fail(self, lease: Lease, reason: str, is_final: bool = False) -> Record:
        fail = super().fail
        return self._told("fail", "failed", lease, lambda: fail(lease, reason, is_final), reason)

    def release(self, lease: Lease, delay_s: float = 0.0) -> Record:
        release = super().release
        return self._told("release", "released", lease, lambda: release(lease, delay_s))

    def _told(
        self, verb: str, answer: str, lease: Lease, action: Callable[[], Record], reason: str = ""
    ) -> Record:
        telling = self._history.intend(verb, lease.model, lease.stage, lease.token)
        try:
            row = action()
        except LeaseLost:
            telling.ended("lost", of=verb)
            raise
        except EdgeloopError as error:
            telling.ended("unsure", of=verb, why=str(error))
            raise
        telling.ended(answer, ready=self._ready(row), reason=reason)
        return row

    def _claimed(self, kind: str, lease: Lease | None, began: float) -> None:
        if lease is None:
            return
        held = records_of(lease.row.values)[lease.stage]
        detail = {"failures": held.attempts - 1, "silent": held.silent, **self._seen(lease)}
        self._history.add(kind, lease.model, lease.stage, lease.token, began, **detail)

    def _seen(self, lease: Lease) -> dict[str, object]:
        return {
            "rank": rank_number(lease.rank),
            "content": lease.row.values.get("content"),
            "offset_s": self._wrong_clock.offset_s,
            "resting": self._is_resting,
        }

    @property
    def _is_resting(self) -> bool:
        """Whether the last look for edited priorities took so long that they are not looked for."""
        return time.monotonic() < self._queue._look_again_at

    def _ready(self, row: Record) -> dict[str, list[object]]:
        return ready_stages(row.values, row.key, self._plan, self._queue)

    def _acquire(
        self, row: Record, stage: Stage, node: str, queued: bool = False, taken_from: str = ""
    ) -> Lease | None:
        trying = self._history.intend("try", row.key, stage.name)
        try:
            lease = super()._acquire(row, stage, node, queued, taken_from)
        except EdgeloopError:
            trying.ended("unsure")
            raise
        trying.ended("tried", won=lease is not None)
        return lease

    def _give_up(self, row: Record, stage: Stage) -> None:
        record = records_of(row.values)[stage.name]
        giving_up = self._history.intend("giveup", row.key, stage.name)
        super()._give_up(row, stage)
        giving_up.ended("gave up", failures=record.attempts, silent=record.silent)


class WitnessedWorkspace(Workspace):
    def __init__(self, settings: Settings, history: Writer, clock: Clock) -> None:
        super().__init__(settings)
        self._history, self._clock = history, clock

    def leases(self) -> Leases:
        return WitnessedLeases(
            self.store.models(self.experiment),
            self.store.queue(self.experiment),
            self.plan,
            self._history,
            self._clock,
            lease_s=self.settings.lease_seconds,
            margin_s=self.settings.clock_margin_seconds,
            max_attempts=self.settings.max_attempts,
        )


class Stages:
    """Stands in for `perform`: results and files that can be traced to their token."""

    def __init__(self, history: Writer, dice: random.Random, work_s: float) -> None:
        self._history, self._dice, self._work_s = history, dice, work_s

    def perform(self, work: Assignment, equipment: Equipment) -> Result:
        token = records_of(work.row)[work.stage].token
        time.sleep(min(self._dice.expovariate(1 / self._work_s), 10 * self._work_s))
        chance = self._dice.random()
        if chance < MODEL_FAULTS:
            raise ModelFailed(reason=DRAWN)
        if chance < MODEL_FAULTS + MACHINE_FAULTS:
            raise WorkerFailed(reason=DRAWN)
        file = work.folder / result_name(work)
        file.write_bytes(token.encode().ljust(RESULT_BYTES, b"."))
        self._history.add("worked", work.model, work.stage, token, **_inputs(work))
        return Result(columns(work, token), {file.name: file}, "done")


class OwnCpus(CpuPool):
    """Each worker stands for a machine: it waits for no other one's conversions."""

    def turn(self, stopping: threading.Event) -> AbstractContextManager[None]:
        return nullcontext()


def result_name(work: Assignment) -> str:
    return f"{work.stage}-{len(runs_of(work.row)) if work.stage == 'benchmark' else 0}.bin"


def columns(work: Assignment, token: str) -> dict[str, Value]:
    if work.stage == "convert":
        mine: dict[str, Value] = {"shape": token[:12], "output_shape": "[1]"}
        return {"quantized": True, "macs": 1, "params": 1, **mine}
    if work.stage == "benchmark":
        runs = [*runs_of(work.row), float(int(token[:12], 16))]
        return {"total_inference_avg": json.dumps(runs), "mean": 0.001, "stdev": 0.0}
    return {work.stage: token[:12]}


def _inputs(work: Assignment) -> dict[str, object]:
    """What a stage read: the model, and what the conversion made of it."""
    converted = work.files.get("convert-0.bin")
    found: dict[str, object] = {
        "content": work.row.get("content"),
        "file": hashlib.sha256(work.uploaded.read_bytes()).hexdigest(),
        "row_converted": work.row.get("shape"),
    }
    if converted is not None and work.stage != "convert":
        found["converted"] = converted.read_bytes()[:12].decode()
    return found


def main(folder: str, slot: str, seed: str, work_s: str) -> None:
    """The project in the current folder says which store, and how long a lease lasts."""
    name = f"worker-{slot}-{seed}"
    clock = Clock(Path(folder) / f"clock-{slot}")
    settings = replace(Settings.load(), node=name)
    history = Writer(Path(folder) / f"{name}.jsonl")
    coordinator.LONGEST_DELAY_S = LONGEST_DELAY_S
    worker.perform = Stages(history, random.Random(int(seed)), float(work_s)).perform
    workspace = WitnessedWorkspace(settings, history, clock)
    device = SimpleNamespace(name="host")
    try:
        work_folder = WorkFolder(Path(os.environ["NEMESIS_WORK"]))
    except EdgeloopError:  # its disk is full
        sys.exit(GAVE_UP_STARTING)
    context = RunnerContext(
        workspace,
        work_folder,
        threading.Event(),
        lambda event: _say(history, event),
        cpus=OwnCpus(),
    )
    runner = Worker(context, cast("Equipment", SimpleNamespace(device=device)), CAPABILITIES)
    (Path(folder) / f"up-{slot}-{seed}").touch()
    runner.run(Coordinator(1), drain=False)


def _say(history: Writer, event: RunnerEvent) -> None:
    if event.state == "note":
        history.add("note", event.model, event.stage, text=event.text)


if __name__ == "__main__":
    main(*sys.argv[1:])
