"""Several trainings at once: a small model leaves most of a GPU idle.

On a GPU the trainings share one process: kernels of different processes take turns, those of
different streams run concurrently, and the images are loaded once. On a CPU each training has a
process with one thread.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edgeloop._util.system import safe_path
from edgeloop.architectures import Architecture, check_torch
from edgeloop.errors import BadInput, EdgeloopError, TrainingFailed
from edgeloop.training.data import SharedData
from edgeloop.training.device import machine_for, tuned
from edgeloop.training.loop import train
from edgeloop.training.plan import TrainingPlan, TrainingResult

Outcome = TrainingResult | EdgeloopError


@dataclass(frozen=True)
class TrainingItem:
    """An architecture to train, and its output folder."""

    arch: Architecture
    out: Path


def train_many(
    candidates: Sequence[TrainingItem],
    dataset: Path,
    plan: TrainingPlan,
    *,
    at_once: int = 2,
    resume: bool = True,
    cache: Path | None = None,
    project: Path | None = None,
) -> Iterator[tuple[TrainingItem, Outcome]]:
    """Yields each training as it ends, with its result or error; a failure does not stop others.

    A script that calls this for a CPU needs the usual `if __name__ == "__main__":`.
    """
    if at_once < 1:
        raise BadInput(reason=f"at_once must be 1 or more, not {at_once}")
    check_torch()
    machine = machine_for(plan)
    on_gpu = machine.is_gpu
    work = _TrainingCall(dataset, plan, resume, cache, project)
    call: Callable[[TrainingItem], Outcome] = _OnStreams(work) if on_gpu else work
    # Here too, so that threads leave the settings as they found them.
    with tuned(machine, plan.threads), ExitStack() as opened:
        with safe_path():
            pool: Executor = (
                ThreadPoolExecutor(at_once, "train")
                if on_gpu
                else ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn"))
            )
            opened.enter_context(pool)
            running = {pool.submit(call, candidate): candidate for candidate in candidates}
        for done in as_completed(running):
            yield running[done], _outcome(done, running[done])


@dataclass(frozen=True)
class _TrainingCall:
    dataset: Path
    plan: TrainingPlan
    resume: bool
    cache: Path | None
    project: Path | None

    def __call__(self, candidate: TrainingItem, shared: SharedData | None = None) -> Outcome:
        try:
            return train(
                candidate.arch,
                self.dataset,
                self.plan,
                candidate.out,
                resume=self.resume,
                cache=self.cache,
                project=self.project,
                shared=shared,
            )
        except EdgeloopError as error:
            return error


class _OnStreams:
    """Threads of one process, each with its own stream, sharing one copy of the images."""

    def __init__(self, work: _TrainingCall) -> None:
        self._work, self._shared = work, SharedData()

    def __call__(self, candidate: TrainingItem) -> Outcome:
        import torch

        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            return self._work(candidate, self._shared)


def _outcome(done: Future[Outcome], candidate: TrainingItem) -> Outcome:
    try:
        return done.result()
    except BrokenExecutor:
        reason = "its process was killed or ran out of memory: run it again"
        return TrainingFailed(arch=candidate.arch.id, reason=reason)
