"""Several nets at once. A small net leaves most of a GPU idle, and a CPU's cores to others.

On a GPU the nets share one process: kernels of different processes take turns, those of different
streams run together, and the images are there once for all. On a CPU each net has a process of its
own with one thread.
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
from dataclasses import dataclass
from pathlib import Path

from edgeloop.architectures import Architecture, check_torch
from edgeloop.errors import BadInput, EdgeloopError, TrainingFailed
from edgeloop.training.device import machine_for, tuned
from edgeloop.training.loop import train
from edgeloop.training.plan import TrainingPlan, TrainingResult
from edgeloop.training.sets import Shared

Outcome = TrainingResult | EdgeloopError


@dataclass(frozen=True)
class Candidate:
    """A net to train, and the folder it gets."""

    arch: Architecture
    out: Path


def train_many(
    candidates: Sequence[Candidate],
    dataset: Path,
    plan: TrainingPlan,
    *,
    at_once: int = 2,
    resume: bool = True,
    cache: Path | None = None,
    project: Path | None = None,
) -> Iterator[tuple[Candidate, Outcome]]:
    """Each as it ends, with its result or what went wrong: one that fails does not stop the others.

    A script that calls this for a CPU needs the usual `if __name__ == "__main__":`.
    """
    if at_once < 1:
        raise BadInput(reason=f"at_once must be 1 or more, not {at_once}")
    check_torch()
    machine = machine_for(plan)
    on_gpu = machine.is_gpu
    work = _Work(dataset, plan, resume, cache, project)
    call: Callable[[Candidate], Outcome] = _OnStreams(work) if on_gpu else work
    # Here too, so that threads find the process as they leave it.
    with tuned(machine, plan.threads), _pool(at_once, on_gpu) as pool:
        running = {pool.submit(call, candidate): candidate for candidate in candidates}
        for done in as_completed(running):
            yield running[done], _outcome(done, running[done])


@dataclass(frozen=True)
class _Work:
    dataset: Path
    plan: TrainingPlan
    resume: bool
    cache: Path | None
    project: Path | None

    def __call__(self, candidate: Candidate, shared: Shared | None = None) -> Outcome:
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
    """Threads of one process, each with a stream of its own, on one copy of the images."""

    def __init__(self, work: _Work) -> None:
        self._work, self._shared = work, Shared()

    def __call__(self, candidate: Candidate) -> Outcome:
        import torch

        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            return self._work(candidate, self._shared)


def _pool(at_once: int, on_gpu: bool) -> Executor:
    if on_gpu:
        return ThreadPoolExecutor(at_once, "train")
    return ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn"))


def _outcome(done: Future[Outcome], candidate: Candidate) -> Outcome:
    try:
        return done.result()
    except BrokenExecutor:
        reason = "a process that trained ended early, killed or out of memory: run it again"
        return TrainingFailed(arch=candidate.arch.id, reason=reason)
