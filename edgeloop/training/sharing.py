"""Trainings that share a device in one process, and how many of them do at a time.

Each runs in a thread with a stream of its own; the images are loaded once. A training that runs out
of memory beside others is not to blame: it continues from its checkpoint when fewer run, and the
number is lowered at once. Only what does not fit alone does not fit.

Unless the number is given, it follows from the device: up to four at a time, as soon as the memory
that one needs is known and there is room for another; up to eight while four leave a GPU idle.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Condition

from edgeloop._util.system import available_cpus
from edgeloop.architectures import Architecture
from edgeloop.errors import BadInput, OutOfMemory
from edgeloop.training.data import SharedData
from edgeloop.training.device import Machine, machine_for, tuned
from edgeloop.training.loop import train
from edgeloop.training.plan import ProgressReport, TrainingPlan, TrainingProgress, TrainingResult

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
