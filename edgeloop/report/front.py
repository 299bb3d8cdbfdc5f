"""The Pareto front of a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgeloop.errors import BadInput
from edgeloop.pareto import Floats, hypervolume, non_dominated
from edgeloop.report.measures import ColumnObjective, Row


@dataclass(frozen=True)
class Pareto:
    """`rows` are those with a number in every objective, `values` these numbers as shown, and
    `missing` is the number of other rows."""

    objectives: tuple[ColumnObjective, ...]
    rows: tuple[Row, ...]
    values: Floats
    missing: int

    @cached_property
    def is_front(self) -> list[bool]:
        return [bool(kept) for kept in non_dominated(self._minimised)]

    @cached_property
    def front(self) -> list[Row]:
        """Best first in the first objective, then in the next; equal rows by name."""
        return [self.rows[index] for index in self.order if self.is_front[index]]

    @cached_property
    def order(self) -> list[int]:
        keys = self._minimised.tolist()
        names = [str(row.get("name", "")) for row in self.rows]
        return sorted(range(len(self.rows)), key=lambda index: (keys[index], names[index]))

    @cached_property
    def share(self) -> float:
        """The hypervolume between 0 and 1, relative to the box from the best to the worst value of
        each objective. An objective in which all rows are equal does not count."""
        points = self._minimised
        if not len(points):
            return 0.0
        points = points / 2  # so that the span of the largest floats is finite
        best, worst = points.min(axis=0), points.max(axis=0)
        differs = worst > best
        if not differs.any():
            return 1.0
        scaled = (points[:, differs] - best[differs]) / (worst - best)[differs]
        return hypervolume(scaled, np.ones(int(differs.sum())))

    @property
    def _minimised(self) -> Floats:
        signs = [1.0 if item.goal == "min" else -1.0 for item in self.objectives]
        return np.asarray(self.values * np.array(signs))


def pareto_of(rows: Iterable[Row], objectives: Sequence[ColumnObjective]) -> Pareto:
    """For two or more different objectives. A row without a finite number in one of them (empty,
    `n/a`, NaN, infinity) is left out: it cannot be compared."""
    columns = [item.column for item in objectives]
    if len(columns) < 2:
        raise BadInput(reason="a front needs at least two objectives")
    if len(set(columns)) < len(columns):
        raise BadInput(reason=f"an objective was named twice: {', '.join(columns)}")
    every = list(rows)
    numbers = [[item.of(row) for item in objectives] for row in every]
    complete = [index for index, line in enumerate(numbers) if not any(map(math.isnan, line))]
    values = np.array([numbers[index] for index in complete], dtype=np.float64)
    return Pareto(
        tuple(objectives),
        tuple(every[index] for index in complete),
        values.reshape(len(complete), len(columns)),
        len(every) - len(complete),
    )
