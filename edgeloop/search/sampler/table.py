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
from edgeloop.search.sampler.members import Drafts
from edgeloop.search.sampler.surrogate import Groups, SpaceEncoding
from edgeloop.search.sampler.trial import key_of

# What is known of members without training, as columns for a surrogate.
#
# Beside its parameters a member may have features: parameters and MACs counted, latencies compiled,
# proxies computed. The values of cheap objectives are features too. A feature that varies by
# factors is taken by its logarithm, and all are put on the scale of a first sample of the bank,
# which stays the same while the bank grows. A member without a feature is taken to be average.


_SAMPLE = 128  # members of the bank that give features their scale
_SHARE = 0.5  # two members are at a mean squared distance of ½, as with numbers in a range
_FARTHEST = 6.0  # beyond so many times the spread, how far does not matter
_ALIKE = 1 - 1e-9  # correlation of two features that say the same thing

Member = Observation | ScreenedMember


@dataclass(frozen=True)
class FeatureScale:
    """Where the values of one feature lie."""

    name: str
    centre: float
    spread: float
    is_log: bool

    @classmethod
    def of(cls, name: str, values: Floats) -> FeatureScale | None:
        """None if the values say nothing: there are none, or they are all the same."""
        known = values[np.isfinite(values)]
        if len(known) < 2:
            return None
        is_log = bool(known.min() > 0)
        plain = np.log(known) if is_log else known
        low, centre, high = np.quantile(plain, [0.16, 0.5, 0.84])
        spread = float(high - low) / 2 or float(np.std(plain))
        if spread <= 1e-9 * max(1.0, abs(float(centre))):
            return None
        return cls(name, float(centre), spread, is_log)

    def column(self, values: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            plain = np.log(values) if self.is_log else values
            scaled = (plain - self.centre) / self.spread
        bounded = np.clip(np.nan_to_num(scaled, nan=0.0), -_FARTHEST, _FARTHEST)
        return np.asarray(_SHARE * bounded)

    def inverse(self, column: Floats) -> Floats:
        plain = self.centre + self.spread * column / _SHARE
        return np.asarray(np.exp(np.minimum(plain, 700.0)) if self.is_log else plain)


@dataclass(frozen=True)
class MemberEncoding:
    """Parameters and features as columns, each with a weight of its own in a kernel."""

    space: SpaceEncoding
    names_of_raw: tuple[str, ...]
    objectives: tuple[tuple[int, FeatureScale], ...]
    features: tuple[tuple[int, FeatureScale], ...]  # by the index of the raw feature
    cheap: tuple[int, ...]  # objectives whose values are known before a training

    @classmethod
    def of(
        cls,
        space: SpaceEncoding,
        names: tuple[str, ...],
        raw: Floats,
        values: Floats,
        cheap: tuple[int, ...],
    ) -> MemberEncoding:
        """From the raw features and the values of a bank."""
        known = np.isfinite(np.hstack([values[:, cheap], raw])).any(axis=1)
        sample = np.flatnonzero(known)[:_SAMPLE]
        columns: list[Floats] = []
        kept: list[list[tuple[int, FeatureScale]]] = [[], []]
        sources = [(0, index, f"objective {index}", values[sample, index]) for index in cheap]
        sources += [(1, index, name, raw[sample, index]) for index, name in enumerate(names)]
        for kind, index, name, numbers in sources:
            scale = FeatureScale.of(name, numbers)
            if scale is None:
                continue
            column = scale.column(numbers)
            if not any(_are_alike(column, other) for other in columns):
                kept[kind].append((index, scale))
                columns.append(column)
        return cls(space, names, tuple(kept[0]), tuple(kept[1]), cheap)

    @property
    def names(self) -> list[str]:
        scales = (scale for _, scale in (*self.objectives, *self.features))
        return [*self.space.names, *(f"feature {scale.name}" for scale in scales)]

    @property
    def groups(self) -> Groups:
        count, more = len(self.space.names), len(self.objectives) + len(self.features)
        return np.concatenate([self.space.groups, np.arange(count, count + more)])

    def encode(self, members: Sequence[Member]) -> Floats:
        columns = self.space.encode([member.params for member in members])
        raw = raw_features(members, self.names_of_raw)
        count = 1 + max(self.cheap, default=-1)
        return np.hstack([columns, self.feature_columns(raw, all_values(members, count))])

    def feature_columns(self, raw: Floats, values: Floats) -> Floats:
        columns = [scale.column(values[:, index]) for index, scale in self.objectives]
        columns += [scale.column(raw[:, index]) for index, scale in self.features]
        return np.stack(columns, axis=1) if columns else np.zeros((len(raw), 0))


def raw_features(members: Sequence[Member], names: Sequence[str]) -> Floats:
    """One row per member; NaN where it lacks a feature."""
    rows = [[member.features.get(name, np.nan) for name in names] for member in members]
    return np.array(rows, dtype=np.float64).reshape(len(members), len(names))


def all_values(members: Sequence[Member], count: int) -> Floats:
    """One row per member and one column per objective; NaN where a member has no such value."""
    nothing = (np.nan,) * count
    rows = [nothing if member.values is None else member.values[:count] for member in members]
    return np.array(rows, dtype=np.float64).reshape(len(members), count)


def barred_fronts(members: Sequence[Member], count: int) -> Mask:
    """One row per member and one column per front: whether it may not be on it."""
    rows = [[place in member.barred for place in range(count)] for member in members]
    return np.array(rows, dtype=np.bool_).reshape(len(members), count)


def _are_alike(column: Floats, other: Floats) -> bool:
    if np.std(column) == 0 or np.std(other) == 0:
        return False
    return abs(float(np.corrcoef(column, other)[0, 1])) > _ALIKE


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
