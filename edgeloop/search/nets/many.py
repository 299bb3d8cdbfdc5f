"""Several trainings at once: a small model leaves most of a GPU idle.

On a GPU the trainings share one process: kernels of different processes take turns, those of
different streams run concurrently, and the images are loaded once. On a CPU each training has a
process with one thread.
"""

from __future__ import annotations

import contextlib
import gc
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
from threading import Condition

from edgeloop._util.system import available_cpus, safe_path
from edgeloop.errors import BadInput, EdgeloopError, OutOfMemory, TrainingFailed
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.data import SharedData
from edgeloop.search.nets.device import Machine, machine_for, tuned
from edgeloop.search.nets.plan import ProgressReport, TrainingPlan, TrainingProgress, TrainingResult
from edgeloop.search.nets.spaces import check_torch
from edgeloop.search.nets.train import train

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


# Trainings that share a device in one process, and how many of them do at a time.
#
# Each runs in a thread with a stream of its own; the images are loaded once. A training that runs
# out of memory beside others is not to blame: it continues from its checkpoint when fewer run, and
# the number is lowered at once. Only what does not fit alone does not fit.
#
# Unless the number is given, it follows from the device: up to four at a time, as soon as the
# memory that one needs is known and there is room for another; up to eight while four leave a GPU
# idle.


USUAL_AT_ONCE = 4  # more gained nothing on a GPU that these kept busy
MOST_AT_ONCE = 8
_MARGIN = 1.25  # of the memory that a training needed so far
_IS_IDLE = 0.8  # utilisation below which more trainings are worth a try
_LOOK_S = 1.0
_GOOD_ENDS = 2  # trainings per place that must end well before the number is raised again


@dataclass(eq=False)
class _Place:
    """A training that runs, or that waits for its turn."""

    is_settled: bool = False  # it has made steps: its memory is allocated
    met_others: bool = False
    is_retried: bool = False
    must_be_alone: bool = False


class SharedTraining:
    """Trainings on one device; `train` is called by one thread per training and waits for its turn.

    `at_once` is how many run at a time; None: as many as the device has room for.
    """

    def __init__(self, plan: TrainingPlan, at_once: int | None = None) -> None:
        if at_once is not None and at_once < 1:
            raise BadInput(reason=f"at_once must be 1 or more, not {at_once}")
        self._machine = machine_for(plan)
        self._threads = plan.threads
        self.shared = SharedData()
        self._is_given = at_once is not None
        self._most = at_once or (MOST_AT_ONCE if self._machine.is_gpu else available_cpus())
        self._limit = at_once or min(USUAL_AT_ONCE, self._most)
        self._usual = self._limit
        self._changed = Condition()
        self._waiting: list[_Place] = []
        self._running: list[_Place] = []
        self._settled_together = 1
        self._need_bytes = 0.0
        self._good_ends = 0

    @property
    def limit(self) -> int:
        """How many may run at a time now."""
        return self._limit

    @contextlib.contextmanager
    def opened(self) -> Iterator[SharedTraining]:
        """With the settings of PyTorch that all trainings want, so that none of them restores
        others while the rest still runs."""
        with tuned(self._machine, self._threads):
            yield self

    def train(
        self,
        arch: Architecture,
        dataset: Path,
        plan: TrainingPlan,
        out: Path,
        *,
        resume: bool = True,
        cache: Path | None = None,
        project: Path | None = None,
        progress: ProgressReport | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> TrainingResult:
        """Like `train`; `begun` is called when it is its turn."""
        place = _Place()
        while True:
            with self._turn(place):
                begun()
                try:
                    with _own_stream(self._machine):
                        result = train(
                            arch,
                            dataset,
                            plan,
                            out,
                            resume=resume,
                            cache=cache,
                            project=project,
                            shared=self.shared,
                            progress=self._settling(place, progress),
                        )
                    self._ended_well()
                    return result
                except OutOfMemory as error:
                    if not self._may_try_again(place):
                        raise
                    _forget_frames(error)
                self._free_memory()
            resume = True

    # Whose turn it is

    @contextlib.contextmanager
    def _turn(self, place: _Place) -> Iterator[None]:
        with self._changed:
            # One that has run already continues before others begin.
            self._waiting.insert(0 if place.is_retried else len(self._waiting), place)
            while not (self._waiting[0] is place and self._has_room(place)):
                self._changed.wait(_LOOK_S)
            self._waiting.remove(place)
            self._running.append(place)
            place.met_others = place.is_settled = False
            self._note_company()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(place)
                self._changed.notify_all()

    def _has_room(self, place: _Place) -> bool:
        running = len(self._running)
        if not running:
            return True
        if place.must_be_alone or any(other.must_be_alone for other in self._running):
            return False
        self._consider_more()
        if running >= self._limit:
            return False
        if self._is_given or not self._machine.is_gpu or running < self._settled_together:
            return True
        return self._is_settled() and self._free_bytes() > _MARGIN * self._need_bytes

    def _note_company(self) -> None:
        for place in self._running:
            place.met_others |= len(self._running) > 1

    def _consider_more(self) -> None:
        """Beyond the usual number only while the device is known to be idle."""
        is_full = len(self._running) == self._limit and self._usual <= self._limit < self._most
        if self._is_given or not is_full or not self._is_settled():
            return
        usage = self.shared.usage.recent()
        if usage is not None and usage < _IS_IDLE:
            self._limit += 1
            self.shared.usage.forget_recent()

    # What a training needs

    def _settling(self, place: _Place, progress: ProgressReport | None) -> ProgressReport:
        def report(seen: TrainingProgress) -> None:
            if not place.is_settled:
                with self._changed:
                    place.is_settled = True
                    self._note_need()
                    self._changed.notify_all()
            if progress is not None:
                progress(seen)

        return report

    def _is_settled(self) -> bool:
        return all(place.is_settled for place in self._running)

    def _note_need(self) -> None:
        if not self._is_settled():
            return
        self._settled_together = max(self._settled_together, len(self._running))
        if self._machine.is_gpu:
            import torch

            used = torch.cuda.memory_reserved(self._machine.device) - self.shared.image_bytes
            self._need_bytes = max(self._need_bytes, used / len(self._running))

    def _free_bytes(self) -> float:
        import torch

        return float(torch.cuda.mem_get_info(self._machine.device)[0])

    # When memory runs out

    def _may_try_again(self, place: _Place) -> bool:
        """Fewer from now on; a training that fails a second time is tried alone."""
        with self._changed:
            if not place.met_others:
                return False
            self._limit = max(1, min(self._limit, len(self._running)) - 1)
            self._settled_together = min(self._settled_together, self._limit)
            self._good_ends = 0
            place.must_be_alone = self._limit == 1 or place.is_retried
            place.is_retried = True
            return True

    def _ended_well(self) -> None:
        """A number that one large model has lowered is raised again, step by step."""
        with self._changed:
            self._good_ends += 1
            if self._limit < self._usual and self._good_ends >= _GOOD_ENDS * self._limit:
                self._limit, self._good_ends = self._limit + 1, 0

    def _free_memory(self) -> None:
        gc.collect()
        if self._machine.is_gpu:
            import torch

            with self.shared.gate.together():  # not while a graph is captured
                torch.cuda.empty_cache()


@contextlib.contextmanager
def _own_stream(machine: Machine) -> Iterator[None]:
    if not machine.is_gpu:
        yield
        return
    import torch

    stream = torch.cuda.Stream(machine.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield


def _forget_frames(error: BaseException | None) -> None:
    """The frames of an error hold on to the tensors of the training that failed."""
    while error is not None:
        error.__traceback__ = None
        cause, error.__cause__, error.__context__ = error.__cause__, None, None
        error = cause
