"""A search that takes no time: a small space, and evaluators that work out their answers."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, InMemoryStorage

from edgeloop.models.catalog import Candidates
from edgeloop.search.base import Evaluation, Evaluator
from edgeloop.search.config import SearchConfig, config_of
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.spaces import Space
from edgeloop.search.study import Study, open_storage
from edgeloop.store import SqliteLocation, open_store
from edgeloop.testing import MemoryStore

SIZE = 3 * 4 * 6  # members of the space


def toy_space() -> Space:
    from torch import nn

    def build(trial, shape, classes):
        trial.suggest_categorical("kind", ["a", "b", "c"])
        trial.suggest_int("depth", 1, 4)
        trial.suggest_categorical("width", [1, 2, 3, 5, 8, 13])
        return nn.Identity()

    return Space("toy.py:build", build)


def toy_config(**search: object) -> SearchConfig:
    """Without a pool, unless `search` asks for one."""
    usual = {"name": "toy", "space": "toy.py:build", "size": 8, "budget": 12, "pool": 0}
    return config_of(
        {
            "search": {**usual, **search},
            "objectives": {"params": {}, "val_iou": {"train": {"epochs": 1}}},
            "data": "working/none",
        },
        "toy.yaml",
    )


def cost_of(arch: Architecture) -> float:
    params = arch.params
    return float(int(params["width"]) * int(params["depth"]) + "abc".index(str(params["kind"])))


def quality_of(arch: Architecture) -> float:
    bonus = {"a": 0.0, "b": 0.1, "c": 0.05}[str(arch.params["kind"])]
    return bonus + 1.0 - 1.0 / (1.0 + cost_of(arch) ** 0.5)


class Place:
    """Where toy searches keep studies and tables: in memory or, for those that are killed, in the
    files of a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._memory = (InMemoryStorage(), MemoryStore())

    @property
    def storage(self) -> BaseStorage:
        return open_storage(SqliteLocation(self._folder)) if self._folder else self._memory[0]

    def table(self, experiment: str = "toys") -> Candidates:
        store = open_store(SqliteLocation(self._folder)) if self._folder else self._memory[1]
        return Candidates(store.models(experiment), experiment)

    def study(self, config: SearchConfig, resume: bool = True) -> Study:
        return Study.open(config, toy_space(), self.storage, resume)


class Worked(Evaluator):
    """Answers at once with what a function says; keeps a list of what it was asked."""

    def __init__(
        self,
        name: str,
        cost: int,
        function: Callable[[Architecture], float],
        asked: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.gives, self.cost, self.conditions = (name,), cost, f"toy {name}"
        self._function, self._asked = function, asked
        self._answers: list[Evaluation] = []

    def send(self, arch: Architecture, files: Mapping[str, Path] | None = None) -> None:
        self._asked(f"{self.gives[0]} {arch.id}")
        try:
            self._answers.append(Evaluation(arch.id, {self.gives[0]: self._function(arch)}))
        except ValueError as error:
            self._answers.append(Evaluation(arch.id, error=str(error), is_final=True))
        except OSError as error:
            self._answers.append(Evaluation(arch.id, error=str(error)))

    def collect(self, timeout_s: float) -> list[Evaluation]:
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Nothing runs."""


def evaluators(asked: Callable[[str], None] = lambda _: None) -> list[Worked]:
    return [Worked("params", 0, cost_of, asked), Worked("val_iou", 1, quality_of, asked)]


class Grouped(Worked):
    """Prefers four at a time; keeps the sizes of the groups that it got."""

    together = 4

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.groups: list[int] = []

    def send_all(self, several: Sequence[tuple[Architecture, Mapping[str, Path]]]) -> None:
        self.groups.append(len(several))
        super().send_all(several)


def in_a_child(act: Callable[[], object], steps: Iterable[tuple[type, str]], fatal: int = 0) -> int:
    """The exit code of a child that does this, and kills itself before or after the nth call of a
    method in `steps`; with 0, it lives."""
    child = os.fork()
    if child != 0:
        return int(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    counted = itertools.count(1)

    def deadly(method: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **named: object) -> object:
            if next(counted) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = method(*arguments, **named)
            if next(counted) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return called

    try:
        for kind, name in steps:
            setattr(kind, name, deadly(getattr(kind, name)))
        act()
        os._exit(0)
    finally:
        os._exit(1)
