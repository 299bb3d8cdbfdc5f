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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edgeloop._util.system import available_cpus, safe_path
from edgeloop.architectures import Architecture, check_torch
from edgeloop.errors import BadInput, EdgeloopError, TrainingFailed
from edgeloop.training.device import machine_for
from edgeloop.training.loop import train
from edgeloop.training.plan import TrainingPlan, TrainingResult
from edgeloop.training.sharing import MOST_AT_ONCE, SharedTraining

Outcome = TrainingResult | EdgeloopError


@dataclass(frozen=True)
class TrainingItem:
    """An architecture to train, its output folder, and where its training pauses, instead of where
    the plan says so."""

    arch: Architecture
    out: Path
    until: int | None = None


def train_many(
    candidates: Sequence[TrainingItem],
    dataset: Path,
    plan: TrainingPlan,
    *,
    at_once: int | None = 2,
    resume: bool = True,
    cache: Path | None = None,
    project: Path | None = None,
) -> Iterator[tuple[TrainingItem, Outcome]]:
    """Yields each training as it ends, with its result or error; a failure does not stop others.
    `at_once` None: as many as the device has room for.

    A script that calls this for a CPU needs the usual `if __name__ == "__main__":`.
    """
    if at_once is not None and at_once < 1:
        raise BadInput(reason=f"at_once must be 1 or more, not {at_once}")
    check_torch()
    work = _TrainingCall(dataset, plan, resume, cache, project)
    with ExitStack() as opened:
        if machine_for(plan).is_gpu:
            device = opened.enter_context(SharedTraining(plan, at_once).opened())
            pool: Executor = ThreadPoolExecutor(at_once or MOST_AT_ONCE, "train")
            call: Callable[[TrainingItem], Outcome] = partial(work, one=device.train)
        else:
            spawn = multiprocessing.get_context("spawn")
            pool, call = ProcessPoolExecutor(at_once or available_cpus(), spawn), work
        opened.enter_context(pool)
        with safe_path():
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

    def __call__(
        self, candidate: TrainingItem, one: Callable[..., TrainingResult] = train
    ) -> Outcome:
        try:
            return one(
                candidate.arch,
                self.dataset,
                replace(self.plan, until=candidate.until or self.plan.until),
                candidate.out,
                resume=self.resume,
                cache=self.cache,
                project=self.project,
            )
        except EdgeloopError as error:
            return error


def _outcome(done: Future[Outcome], candidate: TrainingItem) -> Outcome:
    try:
        return done.result()
    except BrokenExecutor:
        reason = "its process was killed or ran out of memory: run it again"
        return TrainingFailed(arch=candidate.arch.id, reason=reason)
