"""Members of a space with what is known of them without training, as columns for a surrogate.

Beside its parameters a member may have features: parameters and MACs counted, latencies compiled,
proxies computed. The values of cheap objectives are features too. A feature that varies by factors
is taken by its logarithm, and all are put on the scale of a first sample of the bank, which stays
the same while the bank grows. A member without a feature is taken to be average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeloop.pareto import Floats
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.surrogate import Groups, SpaceEncoding

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
    features: tuple[FeatureScale, ...]
    cheap: tuple[int, ...]  # objectives whose values are known before a training

    @classmethod
    def of(
        cls, space: SpaceEncoding, bank: Sequence[ScreenedMember], cheap: tuple[int, ...]
    ) -> MemberEncoding:
        sample = [member for member in bank if member.features or member.feasible][:_SAMPLE]
        names = dict.fromkeys(name for member in sample for name in member.features)
        table = {objective_name(i): objective_values(sample, i) for i in cheap}
        table |= {name: feature_values(sample, name) for name in names}
        scales = [FeatureScale.of(name, table[name]) for name in table]
        kept: list[FeatureScale] = []
        columns: list[Floats] = []
        for scale in scales:
            if scale is None:
                continue
            column = scale.column(table[scale.name])
            if not any(_are_alike(column, other) for other in columns):
                kept.append(scale)
                columns.append(column)
        return cls(space, tuple(kept), cheap)

    @property
    def names(self) -> list[str]:
        return [*self.space.names, *(f"feature {scale.name}" for scale in self.features)]

    @property
    def groups(self) -> Groups:
        first = self.space.groups
        count = len(self.space.names)
        return np.concatenate([first, np.arange(count, count + len(self.features))])

    def encode(self, members: Sequence[Member]) -> Floats:
        columns = self.space.encode([member.params for member in members])
        return np.hstack([columns, self.feature_columns(members)])

    def feature_columns(self, members: Sequence[Member]) -> Floats:
        found = [scale.column(self._raw(members, scale.name)) for scale in self.features]
        return np.stack(found, axis=1) if found else np.zeros((len(members), 0))

    def _raw(self, members: Sequence[Member], name: str) -> Floats:
        for index in self.cheap:
            if name == objective_name(index):
                return objective_values(members, index)
        return feature_values(members, name)


def objective_name(index: int) -> str:
    return f"objective {index}"


def feature_values(members: Sequence[Member], name: str) -> Floats:
    return np.array([member.features.get(name, np.nan) for member in members], dtype=np.float64)


def objective_values(members: Sequence[Member], index: int) -> Floats:
    """NaN where a member has no such value."""
    rows = [member.values for member in members]
    found = [np.nan if row is None or row[index] is None else row[index] for row in rows]
    return np.array(found, dtype=np.float64)


def cheap_objectives(bank: Sequence[ScreenedMember]) -> tuple[int, ...]:
    """The objectives that screening gives."""
    known: dict[int, None] = {}
    for member in bank:
        if member.feasible:
            known |= dict.fromkeys(i for i, value in enumerate(member.values) if value is not None)
    return tuple(sorted(known))


def all_values(members: Sequence[Member], count: int) -> Floats:
    """One row per member and one column per objective."""
    columns = [objective_values(members, index) for index in range(count)]
    return np.stack(columns, axis=1) if columns else np.zeros((len(members), 0))


def _are_alike(column: Floats, other: Floats) -> bool:
    if np.std(column) == 0 or np.std(other) == 0:
        return False
    return abs(float(np.corrcoef(column, other)[0, 1])) > _ALIKE
