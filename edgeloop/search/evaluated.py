"""A result, as the sampler sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.search.trial import Value


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
