"""Choosing from a bank of screened members, and which members to screen next.

A member is chosen for training by its acquisition, with its cheap values exact (see `screened`).
Those to screen next are ranked by the same acquisition, with their cheap values predicted from the
bank: a latency is easy to predict roughly, and only those that seem worth it are compiled. Some are
random, so that every branch of a space stays in play.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import Floats
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.acquisition import Scale
from edgeloop.search.sampler.features import MemberEncoding, all_values
from edgeloop.search.sampler.fitting import KernelCache, fitted_results
from edgeloop.search.sampler.members import (
    Drafts,
    NewMembers,
    children_of,
    knows_enough,
    parents_of,
)
from edgeloop.search.sampler.mutation import Draft, at_corner, at_random, mutated, replayed
from edgeloop.search.sampler.prediction import ScreeningKernel, ScreeningModel
from edgeloop.search.sampler.screened import DearKernels, ScreenedAcquisition, doubts, outcomes
from edgeloop.search.sampler.surrogate import Kernel, fit_kernel
from edgeloop.search.sampler.table import BankTable, BankView, MemberArrays
from edgeloop.search.sampler.trial import Params, Policy, Space, Value, key_of

_RANDOM_SHARE = 8  # one in so many members to screen is random
_LEADERS = 10  # members of the bank whose neighbours are looked at, too
_CHILDREN = 20  # of each of them
# In a space of many parameters the best children have children, too; in a small one, children
# reach everything that is near, and the variety of what is screened is worth more.
_ROUNDS, _GRANDCHILDREN, _PARAMETERS = 2, 100, 20
_CORNERS = 5
_TRIES = 20


class BankSampler:
    """Both questions, with what is remembered between them."""

    def __init__(
        self, space: Space, drafts: Drafts, start: int, fronts: Sequence[tuple[int, ...]]
    ) -> None:
        self._space = space
        self._drafts = drafts
        self._start = start
        self._fronts = tuple(tuple(front) for front in fronts)
        self._kernels = KernelCache()
        self._screening = ScreeningKernel()
        self._table = BankTable(drafts, max(1, len(self._fronts)))

    def choose(
        self,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        rng: Random,
    ) -> Params | None:
        if not bank:
            return None
        view = self._table.view(bank, history)
        taken = {key_of(params) for params in (*(r.params for r in history), *pending)}
        is_open = view.feasible & np.array([key not in taken for key in view.keys])
        if not is_open.any():
            return None
        is_complete = ~np.isnan(view.arrays.values[:, view.encoding.cheap]).any(axis=1)
        if (is_open & is_complete).any():
            is_open &= is_complete
        places = np.flatnonzero(is_open)
        members = view.arrays.of(places)
        if knows_enough(history, pending, self._start):
            scores = self._acquisition(view, history, pending, rng).of(members)
        else:
            scores = _distances(members, view, history, pending)
        return dict(bank[places[int(scores.argmax())]].params)

    def batch(
        self,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        count: int,
        rng: Random,
    ) -> list[Params]:
        view = self._table.view(bank, history) if bank else None
        taken = {key_of(params) for params in (*(r.params for r in history), *pending)}
        fresh = NewMembers(self._space, keys=taken.union(view.keys if view else ()))
        members: list[Draft] = []
        if view and view.encoding.cheap and knows_enough(history, pending, self._start):
            ranked = self._ranked(fresh, view, history, pending, rng)
            wanted = count - count // _RANDOM_SHARE
            members = fresh.taken_from(_replays(ranked, rng), wanted)
        elif not bank:
            corners = (at_corner(index / (_CORNERS - 1)) for index in range(_CORNERS))
            members = fresh.taken_from(corners, count)
        tries = _TRIES * count
        members += fresh.taken_from((at_random(rng) for _ in range(tries)), count - len(members))
        members += fresh.everyone(rng, count - len(members))
        return [member.params for member in members]

    def _ranked(
        self,
        fresh: NewMembers,
        view: BankView,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        rng: Random,
    ) -> list[Draft]:
        """Children of the front and of the most promising members of the bank, the best first."""
        acquisition = self._acquisition(view, history, pending, rng)
        parents = [self._drafts.of(result.params) for result in parents_of(history)]
        feasible = np.flatnonzero(view.feasible)
        scores = acquisition.of(view.arrays.of(feasible))
        leaders = feasible[np.argsort(-scores, kind="stable")[:_LEADERS]]
        turns = [self._drafts.of(view.members[place].params) for place in leaders] * _CHILDREN
        drafts = fresh.unseen(children_of(parents, 1.0, rng))
        drafts += fresh.unseen(mutated(leader, 1, rng) for leader in turns)
        if not drafts:
            return []
        model = ScreeningModel(view, self._screening.of(view))
        scores = _expected(model, acquisition, drafts)
        is_large = max(len(draft.params) for draft in drafts) > _PARAMETERS
        for _ in range(_ROUNDS if is_large else 0):
            best = [drafts[i] for i in np.argsort(-scores, kind="stable")[:_LEADERS]]
            turns = [best[i % len(best)] for i in range(_GRANDCHILDREN)]
            children = fresh.unseen(mutated(leader, 1, rng) for leader in turns)
            drafts += children
            scores = np.append(scores, _expected(model, acquisition, children))
        return [drafts[index] for index in np.argsort(-scores, kind="stable")]

    def _acquisition(
        self,
        view: BankView,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        rng: Random,
    ) -> ScreenedAcquisition:
        fronts = self._fronts or (tuple(range(view.objectives)),)
        kernels = self._fitted(view.encoding, history, view.objectives)
        waiting = view.arrays.of(_places(view, pending))
        seed = rng.getrandbits(32)
        return ScreenedAcquisition(view.encoding, kernels, history, waiting, fronts, seed)

    def _fitted(
        self, encoding: MemberEncoding, history: Sequence[Observation], objectives: int
    ) -> DearKernels:
        values = all_values(history, objectives)
        kernels = {}
        for index in range(objectives):
            if index in encoding.cheap:
                continue
            known = np.flatnonzero(np.isfinite(values[:, index])).tolist()
            used = fitted_results([history[place] for place in known], self._start)
            column = all_values(used, objectives)[:, index]
            scaled = Scale.of(column).forward(column)
            kernels[index] = self._fit(f"objective {index}", encoding, used, scaled)
        if (outcomes(history) > 0).all():
            return DearKernels(kernels, None)
        used = fitted_results(history, self._start)
        return DearKernels(kernels, self._fit("feasibility", encoding, used, outcomes(used)))

    def _fit(
        self, what: str, encoding: MemberEncoding, used: Sequence[Observation], targets: Floats
    ) -> Kernel:
        def fit() -> Sequence[Kernel]:
            encoded = encoding.encode(used)
            names, groups = encoding.names, encoding.groups
            return [fit_kernel(names, encoded, groups, targets, doubts(used))]

        (kernel,) = self._kernels.get(what, used, encoding, fit)
        return kernel


def _expected(
    model: ScreeningModel, acquisition: ScreenedAcquisition, drafts: Sequence[Draft]
) -> Floats:
    """The mean acquisition over the ways in which screening may turn out."""
    if not drafts:
        return np.zeros(0)
    params = [draft.params for draft in drafts]
    outcomes = ((weight, acquisition.of(arrays)) for arrays, weight in model.outcomes(params))
    scores: Floats = np.sum([weight * scores for weight, scores in outcomes], axis=0)
    return scores * model.feasibility(params)


def _distances(
    members: MemberArrays,
    view: BankView,
    history: Sequence[Observation],
    pending: Sequence[Mapping[str, Value]],
) -> Floats:
    """How far members are from all that was chosen: in their parameters, and in what is known of
    them."""
    waiting = view.arrays.encoded[_places(view, pending)]
    chosen = np.vstack([view.encoding.encode(history), waiting])
    if not len(chosen):
        centre = np.median(members.encoded, axis=0)
        return np.asarray(-((members.encoded - centre) ** 2).sum(axis=1))
    gaps = [((members.encoded - one) ** 2).sum(axis=1) for one in chosen]
    return np.asarray(np.min(gaps, axis=0))


def _places(view: BankView, pending: Sequence[Mapping[str, Value]]) -> NDArray[np.intp]:
    """Where pending members are in the bank."""
    waiting = {key_of(params) for params in pending}
    found = [place for place, key in enumerate(view.keys) if key in waiting] if waiting else []
    return np.array(found, dtype=np.intp)


def _replays(drafts: Sequence[Draft], rng: Random) -> Iterable[Policy]:
    return (replayed(draft.params, rng) for draft in drafts)
