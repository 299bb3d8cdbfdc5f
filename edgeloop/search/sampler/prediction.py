"""What screening would say of members that are not screened yet, learnt from those that are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import Floats
from edgeloop.search.sampler.surrogate import Kernel, Surrogate, fit_kernel
from edgeloop.search.sampler.table import BankView, MemberArrays
from edgeloop.search.sampler.trial import Value

_LEARNT_FROM = 256  # members of the bank; more cost time and change little
_FITTED_TO = 100
_GROWTH = 1.5  # the kernel is fitted again when the bank is so many times larger
_FIRST = 64
_LEAST_FEASIBILITY = 0.02
# A cheap value may be lower or higher than predicted, by so many deviations with such a weight.
_DEVIATIONS = ((-2.0, 0.06), (-1.0, 0.24), (0.0, 0.4), (1.0, 0.3))


class ScreeningModel:
    """Predicts cheap values, features, and whether a member is feasible."""

    def __init__(self, view: BankView, kernel: Kernel) -> None:
        self._view = view
        self._kernel = kernel
        encoding = view.encoding
        self._width = len(encoding.space.groups)
        known = _spread(_known(view))
        self._typical = np.median(view.arrays.values[known], axis=0)
        self._columns = self._surrogate(known, view.arrays.encoded[known, self._width :])
        self._feasibility: Surrogate | None = None
        if not view.feasible.all():
            some = _spread(np.arange(len(view.members)))
            self._feasibility = self._surrogate(some, np.where(view.feasible[some], 0.5, -0.5))

    def feasibility(self, members: Sequence[Mapping[str, Value]]) -> Floats:
        """The probability of each member to be feasible."""
        if self._feasibility is None:
            return np.ones(len(members))
        mean, _ = self._feasibility.predict(self._view.encoding.space.encode(members))
        return np.clip(mean + 0.5, _LEAST_FEASIBILITY, 1.0)

    def outcomes(self, members: Sequence[Mapping[str, Value]]) -> list[tuple[MemberArrays, float]]:
        """Ways in which screening may turn out, each with its probability."""
        encoding = self._view.encoding
        encoded = encoding.space.encode(members)
        columns, variance = self._columns.predict(encoded)
        deviation = np.sqrt(variance + self._columns.noise_variance)
        nowhere = np.zeros((len(members), self._view.arrays.barred.shape[1]), dtype=np.bool_)
        found = []
        for many, weight in _DEVIATIONS:
            shifted = columns.copy()
            values = np.repeat(self._typical[None], len(members), axis=0)
            for place, (index, scale) in enumerate(encoding.objectives):
                shifted[:, place] += many * deviation
                values[:, index] = scale.inverse(shifted[:, place])
            arrays = MemberArrays(np.hstack([encoded, shifted]), values, nowhere)
            found.append((arrays, weight))
        return found

    def _surrogate(self, places: NDArray[np.intp], targets: Floats) -> Surrogate:
        space = self._view.encoding.space
        encoded = self._view.arrays.encoded[places, : self._width]
        return Surrogate(self._kernel, space.names, space.groups, encoded, targets)


class ScreeningKernel:
    """The kernel of the first cheap objective, which serves for all that screening gives."""

    def __init__(self) -> None:
        self._kept: tuple[object, Kernel] | None = None

    def of(self, view: BankView) -> Kernel:
        places = _known(view)
        count = _FIRST
        while (following := int(count * _GROWTH)) <= len(places):
            count = following
        places = places[:count]
        chosen = np.linspace(0, len(places) - 1, min(len(places), _FITTED_TO)).astype(np.intp)
        places = places[chosen]
        identity = view.encoding, [view.keys[place] for place in places]
        if self._kept is None or self._kept[0] != identity:
            self._kept = identity, self._fitted(view, places)
        return self._kept[1]

    def _fitted(self, view: BankView, places: NDArray[np.intp]) -> Kernel:
        space = view.encoding.space
        width = len(space.groups)
        encoded = view.arrays.encoded[places]
        if encoded.shape[1] == width:  # all members have the same values
            return Kernel({})
        return fit_kernel(space.names, encoded[:, :width], space.groups, encoded[:, width])


def _known(view: BankView) -> NDArray[np.intp]:
    cheap = view.arrays.values[:, view.encoding.cheap]
    return np.flatnonzero(np.isfinite(cheap).all(axis=1))


def _spread(places: NDArray[np.intp]) -> NDArray[np.intp]:
    """A sample from the whole length of the bank, with the newest member."""
    step = max(1, len(places) // _LEARNT_FROM)
    return places[::-step][:_LEARNT_FROM]
