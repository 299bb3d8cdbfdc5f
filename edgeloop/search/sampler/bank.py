"""Choosing from a bank of screened members, and which members to screen next.

A member is chosen for training by its acquisition, with its cheap values exact (see `screened`).
Those to screen next are ranked by the same acquisition, with their cheap values predicted from the
bank: a latency is easy to predict roughly, and only those that seem worth it are compiled. Some are
random, so that every branch of a space stays in play.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from random import Random

import numpy as np

from edgeloop.pareto import Floats
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.sampler.acquisition import Scale, eligibility
from edgeloop.search.sampler.features import (
    Member,
    MemberEncoding,
    all_values,
    cheap_objectives,
    objective_name,
    objective_values,
)
from edgeloop.search.sampler.fitting import KernelCache, fitted_results
from edgeloop.search.sampler.members import (
    Drafts,
    NewMembers,
    children_of,
    knows_enough,
    parents_of,
)
from edgeloop.search.sampler.mutation import Draft, at_corner, at_random, mutated, replayed
from edgeloop.search.sampler.screened import (
    DearKernels,
    MemberArrays,
    ScreenedAcquisition,
    doubts,
)
from edgeloop.search.sampler.surrogate import Kernel, Surrogate, fit_kernel
from edgeloop.search.sampler.trial import Params, Policy, Space, Value, key_of

_RANDOM_SHARE = 8  # one in so many members to screen is random
_LEADERS = 10  # members of the bank whose neighbours are looked at, too
_CHILDREN = 20  # of each of them
_CORNERS = 5
_PREDICTED_FROM = 256  # members of the bank from which the cheap values of others are predicted
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

    def choose(
        self,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        rng: Random,
    ) -> Params | None:
        taken = {key_of(params) for params in (*(r.params for r in history), *pending)}
        members = [m for m in bank if m.feasible and key_of(m.params) not in taken]
        if not members:
            return None
        cheap = cheap_objectives(bank)
        complete = [m for m in members if all(m.values[index] is not None for index in cheap)]
        members = complete or members
        if knows_enough(history, pending, self._start):
            encoding = self._encoding(history, bank, cheap)
            acquisition = self._acquisition(encoding, history, pending, bank, rng)
            values = all_values(members, len(members[0].values))
            scores = acquisition.of(MemberArrays(encoding.encode(members), values))
        else:
            scores = self._distances(members, history, pending, bank, cheap)
        return dict(members[int(scores.argmax())].params)

    def batch(
        self,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        count: int,
        rng: Random,
    ) -> list[Params]:
        known = [result.params for result in history]
        fresh = NewMembers(self._space, [*known, *pending, *(m.params for m in bank)])
        members: list[Draft] = []
        cheap = cheap_objectives(bank)
        if cheap and knows_enough(history, pending, self._start):
            ranked = self._ranked(fresh, history, pending, bank, rng)
            wanted = count - count // _RANDOM_SHARE
            members = fresh.taken_from(_replays(ranked, rng), wanted)
        elif not bank:
            corners = (at_corner(index / (_CORNERS - 1)) for index in range(_CORNERS))
            members = fresh.taken_from(corners, count)
        tries = _TRIES * count
        members += fresh.taken_from((at_random(rng) for _ in range(tries)), count - len(members))
        while len(members) < count and (member := fresh.anyone(rng)):
            fresh.take(member)
            members.append(member)
        return [member.params for member in members]

    def _ranked(
        self,
        fresh: NewMembers,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        rng: Random,
    ) -> list[Draft]:
        """Children of the front and of the most promising members of the bank, the best first."""
        encoding = self._encoding(history, bank, cheap_objectives(bank))
        acquisition = self._acquisition(encoding, history, pending, bank, rng)
        parents = [self._drafts.of(result.params) for result in parents_of(history)]
        feasible = [member for member in bank if member.feasible]
        values = all_values(feasible, len(feasible[0].values))
        scores = acquisition.of(MemberArrays(encoding.encode(feasible), values))
        leaders = [feasible[i] for i in np.argsort(-scores, kind="stable")[:_LEADERS]]
        turns = [self._drafts.of(leader.params) for leader in leaders] * _CHILDREN
        drafts = fresh.unseen(children_of(parents, 1.0, rng))
        drafts += fresh.unseen(mutated(leader, 1, rng) for leader in turns)
        if not drafts:
            return []
        predicted = _Predicted(encoding, bank)
        candidates, feasibility = predicted.of([draft.params for draft in drafts])
        promising = acquisition.of(candidates) * feasibility
        return [drafts[index] for index in np.argsort(-promising, kind="stable")]

    def _acquisition(
        self,
        encoding: MemberEncoding,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        rng: Random,
    ) -> ScreenedAcquisition:
        objectives = len(bank[0].values)
        fronts = self._fronts or (tuple(range(objectives)),)
        kernels = self._fitted(encoding, history, objectives)
        waiting = {key_of(params): params for params in pending}
        found = [member for member in bank if key_of(member.params) in waiting]
        return ScreenedAcquisition(encoding, kernels, history, found, fronts, rng.getrandbits(32))

    def _encoding(
        self,
        history: Sequence[Observation],
        bank: Sequence[ScreenedMember],
        cheap: tuple[int, ...],
    ) -> MemberEncoding:
        members = chain((result.params for result in history), (member.params for member in bank))
        return MemberEncoding.of(self._drafts.encoding(members), bank, cheap)

    def _fitted(
        self, encoding: MemberEncoding, history: Sequence[Observation], objectives: int
    ) -> DearKernels:
        dear = [index for index in range(objectives) if index not in encoding.cheap]
        measured = [result for result in history if result.values is not None]
        kernels = {}
        for index in dear:
            known = np.isfinite(objective_values(measured, index))
            used = [result for result, is_known in zip(measured, known, strict=True) if is_known]
            used = list(fitted_results(used, self._start))
            column = objective_values(used, index)
            scaled = Scale.of(column).forward(column)
            kernels[index] = self._fit(f"objective {index}", encoding, used, scaled)
        if all(result.feasible and result.values is not None for result in history):
            return DearKernels(kernels, None)
        used = list(fitted_results(history, self._start))
        return DearKernels(kernels, self._fit("feasibility", encoding, used, eligibility(used)))

    def _fit(
        self,
        what: str,
        encoding: MemberEncoding,
        used: Sequence[Observation],
        targets: Floats,
    ) -> Kernel:
        def fit() -> Sequence[Kernel]:
            encoded = encoding.encode(used)
            doubt = doubts(used)
            return [fit_kernel(encoding.names, encoded, encoding.groups, targets, doubt)]

        (kernel,) = self._kernels.get(what, used, encoding, fit)
        return kernel

    def _distances(
        self,
        members: Sequence[ScreenedMember],
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        cheap: tuple[int, ...],
    ) -> Floats:
        """How far members are from all that was chosen: in their parameters, and in what is known
        of them."""
        encoding = self._encoding(history, bank, cheap)
        waiting = {key_of(params) for params in pending}
        chosen: list[Member] = [*history]
        chosen += (member for member in bank if key_of(member.params) in waiting)
        mine = encoding.encode(members)
        if not chosen:
            centre = np.median(mine, axis=0)
            return np.asarray(-((mine - centre) ** 2).sum(axis=1))
        theirs = encoding.encode(chosen)
        return np.asarray(((mine[:, None] - theirs) ** 2).sum(axis=2).min(axis=1))


class _Predicted:
    """Columns and values of members that are not screened yet, from those that are."""

    def __init__(self, encoding: MemberEncoding, bank: Sequence[ScreenedMember]) -> None:
        self._encoding = encoding
        self._objectives = len(bank[0].values)
        known = ((index, objective_values(bank, index)) for index in encoding.cheap)
        self._constants = {index: column[np.isfinite(column)][0] for index, column in known}
        step = max(1, len(bank) // _PREDICTED_FROM)
        sample = [*bank[::-step]][:_PREDICTED_FROM]
        space = encoding.space
        feasible = [0.5 if member.feasible else -0.5 for member in sample]
        targets = np.column_stack([encoding.feature_columns(sample), feasible])
        encoded = space.encode([member.params for member in sample])
        kernel = Kernel({}, noise=float(np.log(0.01)))
        self._surrogate = Surrogate(kernel, space.names, space.groups, encoded, targets)

    def of(self, members: Sequence[Mapping[str, Value]]) -> tuple[MemberArrays, Floats]:
        """And the probability that each is feasible."""
        encoded = self._encoding.space.encode(members)
        means, _ = self._surrogate.predict(encoded)
        columns, feasibility = means[:, :-1], np.clip(means[:, -1] + 0.5, 0.02, 1.0)
        values = np.full((len(members), self._objectives), np.nan)
        names = [scale.name for scale in self._encoding.features]
        for index in self._encoding.cheap:
            if objective_name(index) in names:
                place = names.index(objective_name(index))
                scale = self._encoding.features[place]
                values[:, index] = scale.inverse(columns[:, place])
            else:  # the same for all members
                values[:, index] = self._constants[index]
        return MemberArrays(np.hstack([encoded, columns]), values), feasibility


def _replays(drafts: Sequence[Draft], rng: Random) -> Iterable[Policy]:
    return (replayed(draft.params, rng) for draft in drafts)
