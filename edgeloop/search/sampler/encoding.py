"""Members of a space as vectors whose squared distance says how different two members are.

A word that differs, or a parameter that only one of the two has, is at distance 1; a number is
at the square of its distance on its (logarithmic) range; a choice among numbers is half of each.
The columns of a parameter form a group, so that a model can weigh parameters against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeloop.search.sampler.trial import Choice, Distribution, Number, Value

Floats = NDArray[np.float64]
Groups = NDArray[np.intp]

_UNIT = 0.5**0.5  # two different one-hot vectors of this length are at squared distance 1


@dataclass(frozen=True)
class Features:
    """How the parameters of one space become columns."""

    distributions: Mapping[str, Distribution]

    @classmethod
    def of(cls, asked: Iterable[Mapping[str, Distribution]]) -> Features:
        """All parameters that any member has, each with the widest range it was asked in."""
        merged: dict[str, Distribution] = {}
        for distributions in asked:
            for name, distribution in distributions.items():
                known = merged.get(name)
                if known is None:
                    merged[name] = distribution
                elif known != distribution:
                    merged[name] = _widened(known, distribution)
        return cls(merged)

    @property
    def names(self) -> list[str]:
        return sorted(self.distributions)

    @property
    def groups(self) -> Groups:
        """For each column the index of its parameter among the names."""
        widths = [_width(self.distributions[name]) for name in self.names]
        return np.repeat(np.arange(len(widths)), widths)

    def encode(self, members: Sequence[Mapping[str, Value]]) -> Floats:
        columns = [_columns(name, self.distributions[name], members) for name in self.names]
        return np.hstack(columns) if columns else np.zeros((len(members), 0))


def _columns(
    name: str, distribution: Distribution, members: Sequence[Mapping[str, Value]]
) -> Floats:
    """The row of a value is made once: a parameter has few values, and a pool has many members."""
    absent = _row(distribution, None, here=False)
    made: dict[tuple[type, Value], list[float]] = {}
    rows = []
    for member in members:
        if name not in member:
            rows.append(absent)
            continue
        value = member[name]
        code = (type(value), value)
        if code not in made:
            made[code] = _row(distribution, value, here=distribution.contains(value))
        rows.append(made[code])
    return np.array(rows, dtype=np.float64).reshape(len(members), len(absent))


def _width(distribution: Distribution) -> int:
    if isinstance(distribution, Choice):
        return distribution.size + 1 + distribution.ordered
    return 2


def _row(distribution: Distribution, value: Value, *, here: bool) -> list[float]:
    row = [0.0] * _width(distribution)
    place = distribution.fraction(value) if here and distribution.ordered else 0.5
    if isinstance(distribution, Number):
        return [0.0 if here else 1.0, place]
    row[distribution.choices.index(value) if here else distribution.size] = _UNIT
    if distribution.ordered:
        row = [_UNIT * cell for cell in row]
        row[-1] = _UNIT * place
    return row


def _widened(known: Distribution, other: Distribution) -> Distribution:
    """A space may ask for the same parameter in another range in another branch."""
    if isinstance(known, Number) and isinstance(other, Number):
        return replace(known, low=min(known.low, other.low), high=max(known.high, other.high))
    if isinstance(known, Choice) and isinstance(other, Choice):
        added = (choice for choice in other.choices if not known.contains(choice))
        return Choice((*known.choices, *added))
    return known
