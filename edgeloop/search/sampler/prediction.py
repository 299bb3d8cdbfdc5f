"""What screening would say of members that are not screened yet, learnt from those that are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import Floats
from edgeloop.search.sampler.surrogate import Kernel, Surrogate
from edgeloop.search.sampler.table import BankView, MemberArrays
from edgeloop.search.sampler.trial import Value

_LEARNT_FROM = 256  # members of the bank; more cost time and change little
_LEAST_FEASIBILITY = 0.02
_KERNEL = Kernel({}, noise=float(np.log(0.01)))


class ScreeningModel:
    """Predicts cheap values, features, and whether a member is feasible."""

    def __init__(self, view: BankView) -> None:
        self._view = view
        encoding = view.encoding
        self._width = encoding.space.groups.size
        cheap = view.arrays.values[:, encoding.cheap]
        known = _spread(np.flatnonzero(np.isfinite(cheap).all(axis=1)))
        self._typical = np.median(view.arrays.values[known], axis=0)
        self._columns = self._surrogate(known, view.arrays.encoded[known, self._width :])
        self._feasibility: Surrogate | None = None
        if not view.feasible.all():
            some = _spread(np.arange(len(view.members)))
            self._feasibility = self._surrogate(some, np.where(view.feasible[some], 0.5, -0.5))

    def predict(self, members: Sequence[Mapping[str, Value]]) -> tuple[MemberArrays, Floats]:
        """As if they had been screened, and the probability that each is feasible."""
        encoding = self._view.encoding
        encoded = encoding.space.encode(members)
        columns, _ = self._columns.predict(encoded)
        values = np.repeat(self._typical[None], len(members), axis=0)
        for place, (index, scale) in enumerate(encoding.objectives):
            values[:, index] = scale.inverse(columns[:, place])
        predicted = MemberArrays(np.hstack([encoded, columns]), values)
        if self._feasibility is None:
            return predicted, np.ones(len(members))
        mean, _ = self._feasibility.predict(encoded)
        return predicted, np.clip(mean + 0.5, _LEAST_FEASIBILITY, 1.0)

    def _surrogate(self, places: NDArray[np.intp], targets: Floats) -> Surrogate:
        space = self._view.encoding.space
        encoded = self._view.arrays.encoded[places, : self._width]
        return Surrogate(_KERNEL, space.names, space.groups, encoded, targets)


def _spread(places: NDArray[np.intp]) -> NDArray[np.intp]:
    """A sample from the whole length of the bank, with the newest member."""
    step = max(1, len(places) // _LEARNT_FROM)
    return places[::-step][:_LEARNT_FROM]
