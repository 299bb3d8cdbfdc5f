"""Several evaluators of the same kind as one, so that several architectures are evaluated at a
time, each in processes of its own."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from edgeloop.architectures import Architecture
from edgeloop.search.base import Evaluation, Evaluator
from edgeloop.search.evaluators.threads import ThreadedEvaluator

_AHEAD = 2  # architectures that each has, so that it never waits for the next one


class EvaluatorGroup(Evaluator):
    """Each of `several` gets another architecture when it is done with one: a slow one holds up
    none but its own. The first ones are preferred: those that are never needed start nothing."""

    def __init__(self, several: Sequence[ThreadedEvaluator]) -> None:
        first = several[0]
        self.gives, self.beside, self.cost = first.gives, first.beside, first.cost
        self.conditions, self.label = first.conditions, first.label
        self._several = list(several)
        self._queue: deque[tuple[Architecture, Mapping[str, Path]]] = deque()
        self._owner: dict[str, int] = {}  # by the id of an architecture that is being evaluated
        self._answers: SimpleQueue[Evaluation] = SimpleQueue()
        for evaluator in several:
            evaluator.answer_to(self._answers)

    def send(self, arch: Architecture, files: Mapping[str, Path] | None = None) -> None:
        if arch.id not in self._owner and all(arch.id != other.id for other, _ in self._queue):
            self._queue.append((arch, files or {}))
        self._distribute()

    def collect(self, timeout_s: float) -> list[Evaluation]:
        found: list[Evaluation] = []
        with contextlib.suppress(Empty):
            found.append(self._answers.get(timeout=max(0.0, timeout_s)))
            while True:
                found.append(self._answers.get_nowait())
        for evaluation in found:
            self._owner.pop(evaluation.arch_id, None)
        self._distribute()
        return found

    def close(self) -> None:
        self._queue.clear()
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

    def _distribute(self) -> None:
        """To whoever has least to do."""
        while self._queue:
            owners = list(self._owner.values())
            loads = [owners.count(place) for place in range(len(self._several))]
            place = loads.index(min(loads))
            if loads[place] >= _AHEAD:
                return
            arch, files = self._queue.popleft()
            self._owner[arch.id] = place
            self._several[place].send(arch, files)
