"""A bank of screened members as arrays.

A bank has thousands of members and grows by a few for every choice, so that what is computed of a
member is kept with it. Members are recognised by identity; whoever hands over equal ones made anew
gets the same answer, later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import Floats, Mask
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.features import (
    MemberEncoding,
    all_values,
    barred_fronts,
    raw_features,
)
from edgeloop.search.sampler.members import Drafts
from edgeloop.search.sampler.surrogate import SpaceEncoding
from edgeloop.search.sampler.trial import key_of

_FORGOTTEN = 4  # the memory is cleared when it holds so many times more members than the bank


@dataclass(frozen=True)
class MemberArrays:
    """Members as columns for a surrogate, their values, NaN where only a training can tell, and
    the fronts that they may not be on."""

    encoded: Floats
    values: Floats
    barred: Mask  # (members, fronts)

    def of(self, chosen: Mask | NDArray[np.intp]) -> MemberArrays:
        return MemberArrays(self.encoded[chosen], self.values[chosen], self.barred[chosen])

    def __len__(self) -> int:
        return len(self.encoded)


@dataclass(frozen=True)
class BankView:
    """All members of a bank, in its order."""

    members: Sequence[ScreenedMember]
    keys: Sequence[str]
    feasible: Mask
    encoding: MemberEncoding
    arrays: MemberArrays

    @property
    def objectives(self) -> int:
        return int(self.arrays.values.shape[1])


class BankTable:
    """The memory behind views of a bank."""

    def __init__(self, drafts: Drafts, fronts: int) -> None:
        self._drafts = drafts
        self._fronts = fronts
        self._clear()

    def view(self, bank: Sequence[ScreenedMember], history: Sequence[Observation]) -> BankView:
        if len(self._members) > _FORGOTTEN * (len(bank) + 100):
            self._clear()
        self._remember([member for member in bank if id(member) not in self._rows])
        rows = np.fromiter(map(self._rows.__getitem__, map(id, bank)), np.intp, len(bank))
        self._encode(self._space_encoding(rows, history))
        values, raw = self._values[rows], self._raw[rows]
        feasible = self._feasible[rows]
        known = ~np.isnan(values[feasible])
        cheap = tuple(int(index) for index in np.flatnonzero(known.any(axis=0)))
        encoding = MemberEncoding.of(self._space, self._names, raw, values, cheap)
        columns = encoding.feature_columns(raw, values)
        encoded = np.hstack([self._encoded[rows], columns])
        arrays = MemberArrays(encoded, values, self._barred[rows])
        keys = list(map(self._keys.__getitem__, rows.tolist()))
        return BankView(bank, keys, feasible, encoding, arrays)

    def _clear(self) -> None:
        self._members: list[ScreenedMember] = []  # held, so that an id means one of them
        self._rows: dict[int, int] = {}
        self._keys: list[str] = []
        self._shapes: dict[frozenset[str], int] = {}
        self._shape_of = np.zeros(0, dtype=np.intp)
        self._feasible = np.zeros(0, dtype=np.bool_)
        self._barred: Mask = np.zeros((0, self._fronts), dtype=np.bool_)
        self._names: tuple[str, ...] = ()
        self._space = SpaceEncoding({})
        self._values = np.zeros((0, 0))
        self._raw = np.zeros((0, 0))
        self._encoded = np.zeros((0, 0))

    def _remember(self, members: Sequence[ScreenedMember]) -> None:
        if not members:
            return
        for member in members:
            self._rows[id(member)] = len(self._members)
            self._members.append(member)
            self._keys.append(key_of(member.params))
        shapes = [self._shape(member) for member in members]
        self._shape_of = np.append(self._shape_of, np.array(shapes, dtype=np.intp))
        self._feasible = np.append(self._feasible, [member.feasible for member in members])
        self._barred = np.vstack([self._barred, barred_fronts(members, self._fronts)])
        names = dict.fromkeys(self._names)
        names |= dict.fromkeys(name for member in members for name in member.features)
        if len(names) > len(self._names):
            self._names, self._raw = tuple(names), np.zeros((0, len(names)))
        self._values = _grown(
            self._values, all_values(self._members[len(self._values) :], len(members[0].values))
        )
        rest = self._members[len(self._raw) :]
        self._raw = _grown(self._raw, raw_features(rest, self._names))

    def _space_encoding(
        self, rows: NDArray[np.intp], history: Sequence[Observation]
    ) -> SpaceEncoding:
        """One member of each shape is asked for its distributions, the first of the bank."""
        _, first = np.unique(self._shape_of[rows], return_index=True)
        members = [self._members[row].params for row in rows[np.sort(first)]]
        known = [*members, *(result.params for result in history)]
        return self._drafts.encoding(known, totals=True)

    def _shape(self, member: ScreenedMember) -> int:
        return self._shapes.setdefault(frozenset(member.params), len(self._shapes))

    def _encode(self, space: SpaceEncoding) -> None:
        if space != self._space or not len(self._encoded):
            self._space, self._encoded = space, space.encode([])
        rest = self._members[len(self._encoded) :]
        if rest:
            added = self._space.encode([member.params for member in rest])
            self._encoded = _grown(self._encoded, added)


def _grown(rows: Floats, more: Floats) -> Floats:
    return np.vstack([rows, more]) if len(rows) else more
