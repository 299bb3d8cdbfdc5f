"""Several evaluators of the same kind as one, so that several architectures are evaluated at a
time, each in processes of its own."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from edgeloop.architectures import Architecture
from edgeloop.search.base import Evaluation, Evaluator
from edgeloop.search.evaluators.threads import ThreadedEvaluator

_AHEAD = 2  # architectures that each has, so that it never waits for the next one


class EvaluatorGroup(Evaluator):
    """Each of `several` gets another architecture when it is done with one: a slow one holds up
    none but its own. The first ones are preferred: those that are never needed start nothing.

    One that lacked memory is tried once more, alone, while all the memory is its own: as long as
    that takes, `whole_memory` is entered.
    """

    def __init__(
        self,
        several: Sequence[ThreadedEvaluator],
        whole_memory: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        first = several[0]
        self.gives, self.beside, self.cost = first.gives, first.beside, first.cost
        self.conditions, self.label = first.conditions, first.label
        self._several = list(several)
        self._queue: deque[tuple[Architecture, Mapping[str, Path]]] = deque()
        self._owner: dict[str, int] = {}  # by the id of an architecture that is being evaluated
        self._answers: SimpleQueue[Evaluation] = SimpleQueue()
        self._whole_memory = whole_memory
        self._sent: dict[str, tuple[Architecture, Mapping[str, Path]]] = {}  # and not answered
        self._hungry: deque[str] = deque()  # those that lacked memory
        self._alone: contextlib.ExitStack | None = None  # open while one is tried alone
        for evaluator in several:
            evaluator.answer_to(self._answers)

    def send(self, arch: Architecture, files: Mapping[str, Path] | None = None) -> None:
        if arch.id not in self._sent and all(arch.id != other.id for other, _ in self._queue):
            self._queue.append((arch, files or {}))
        self._distribute()

    def collect(self, timeout_s: float) -> list[Evaluation]:
        found: list[Evaluation] = []
        with contextlib.suppress(Empty):
            found.append(self._answers.get(timeout=max(0.0, timeout_s)))
            while True:
                found.append(self._answers.get_nowait())
        settled = [evaluation for one in found if (evaluation := self._settled(one)) is not None]
        self._distribute()
        return settled

    def close(self) -> None:
        self._queue.clear()
        self._hungry.clear()
        self._end_alone()
        for evaluator in self._several:
            evaluator.close()

    def depends_on(self, name: str) -> str:
        return self._several[0].depends_on(name)

    def known(self, results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        return self._several[0].known(results)

    def stored(self, values: Mapping[str, float]) -> Mapping[str, Mapping[str, float]]:
        return self._several[0].stored(values)

    @property
    def capacity(self) -> int:
        return len(self._several)

    def _settled(self, evaluation: Evaluation) -> Evaluation | None:
        """None for one that is tried again."""
        arch_id, is_alone = evaluation.arch_id, self._alone is not None
        self._owner.pop(arch_id, None)
        self._end_alone()
        if evaluation.lacks_memory and not is_alone and arch_id in self._sent:
            self._hungry.append(arch_id)
            return None
        self._sent.pop(arch_id, None)
        return replace(evaluation, is_final=True) if evaluation.lacks_memory else evaluation

    def _end_alone(self) -> None:
        if self._alone is not None:
            self._alone.close()
            self._alone = None

    def _distribute(self) -> None:
        """To whoever has least to do; nothing new as long as one waits to be alone."""
        if self._hungry:
            if not self._owner:
                arch, files = self._sent[self._hungry.popleft()]
                self._alone = contextlib.ExitStack()
                self._alone.enter_context(self._whole_memory())
                self._owner[arch.id] = 0
                self._several[0].send(arch, files)
            return
        while self._queue and self._alone is None:
            owners = list(self._owner.values())
            loads = [owners.count(place) for place in range(len(self._several))]
            place = loads.index(min(loads))
            if loads[place] >= _AHEAD:
                return
            arch, files = self._queue.popleft()
            self._owner[arch.id] = place
            self._sent[arch.id] = (arch, files)
            self._several[place].send(arch, files)
