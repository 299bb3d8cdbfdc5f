"""A search that takes no time: a small space, and evaluators that work out their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeloop.architectures import Architecture, Space
from edgeloop.search.base import Evaluation, Evaluator
from edgeloop.search.config import SearchConfig, config_of

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


class Grouped(Worked):
    """Prefers four at a time; keeps the sizes of the groups that it got."""

    together = 4

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.groups: list[int] = []

    def send_all(self, several: Sequence[tuple[Architecture, Mapping[str, Path]]]) -> None:
        self.groups.append(len(several))
        super().send_all(several)
