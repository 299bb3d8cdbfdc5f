"""The seam between a search and whatever can say something about an architecture.

An evaluator is asynchronous: `send` hands it an architecture and returns at once, `collect` gives
the answers that have come since. It may answer in any order, and in parts. A search asks the cheap
ones first and throws away what breaks a constraint before anything dear is asked.

Values have names; `chip_latency_ms` is one. What was measured under which conditions is the
evaluator's own affair: its `conditions` name them, and a result is reused by another search only
where they agree.

A result, as the sampler sees it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeloop.architectures import Architecture
from edgeloop.errors import BadInput
from edgeloop.search.sampler.trial import Value


@dataclass(frozen=True)
class Answer:
    """What came of one architecture. With an `error` there are no values.

    `is_final` says that asking again would give the same: a net that diverges, a graph that cannot
    be compiled. Anything else (a node that died, a store that was away) may be tried again.
    `files` are worth keeping, by name: `model.onnx`, `metrics.json`.
    """

    arch_id: str
    values: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    is_final: bool = False


class Evaluator(ABC):
    """`gives` are the values it answers with; `cost` orders evaluators, cheap ones first: 0 for
    what takes a moment, 1 for what takes long, 2 for what needs the trained model of those before.
    """

    gives: tuple[str, ...]
    cost: int
    conditions: str  # what a result depends on beside the architecture, as one line

    @abstractmethod
    def send(self, arch: Architecture, files: Mapping[str, Path] | None = None) -> None:
        """Take an architecture; `files` are those that earlier evaluators made of it."""

    @abstractmethod
    def collect(self, timeout_s: float) -> list[Answer]:
        """Answers that are there; waits up to this long for the first of them."""

    @abstractmethod
    def close(self) -> None:
        """End what runs; nothing is left behind that costs anything."""

    @property
    def capacity(self) -> int | None:
        """How many it works on at once, where that is known: more would only wait."""
        return None


def expected(evaluators: Sequence[Evaluator]) -> tuple[str, ...]:
    """All values that these give, in their order."""
    return tuple(dict.fromkeys(name for evaluator in evaluators for name in evaluator.gives))


@dataclass(frozen=True)
class Evaluated:
    """Values are all minimised, in whatever unit; a candidate that failed has none.

    A candidate that breaks a constraint is not feasible; its values still teach, if it has any.
    """

    params: Mapping[str, Value]
    values: tuple[float, ...] | None
    feasible: bool = True

    @property
    def measured(self) -> bool:
        return self.values is not None and all(math.isfinite(value) for value in self.values)

    @property
    def eligible(self) -> bool:
        """Whether it may stand on a front or have children."""
        return self.feasible and self.measured


def values_of(results: Sequence[Evaluated]) -> NDArray[np.float64]:
    """One row a result; all of them measured."""
    rows = [result.values for result in results if result.values is not None]
    if len({len(row) for row in rows}) > 1:
        raise BadInput(reason="Results have different numbers of objectives; give each the same.")
    return np.array(rows, dtype=np.float64)
