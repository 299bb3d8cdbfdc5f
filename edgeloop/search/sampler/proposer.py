"""Edgeloop's own sampler: which member of a space to evaluate next.

It starts with corners of the space and members far from each other. Then, for every proposal, it
mutates and recombines Pareto parents, ranks the children by an acquisition function that has learnt
from every result so far, mutates the best of them again, and proposes the best of all.

A proposal depends only on the seed, its number, the history and the pending candidates: a search
that was killed continues as if it had not been. Nothing is ever proposed twice. The space itself
is called a dozen times per proposal, not hundreds of times: see `mutation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from random import Random

import numpy as np

from edgeloop.pareto import Floats, non_dominated
from edgeloop.search.base import Observation, values_of
from edgeloop.search.sampler.acquisition import Acquisition, Kernels, eligibility, scaled_values
from edgeloop.search.sampler.mutation import (
    Draft,
    at_corner,
    at_random,
    crossed,
    every_member,
    mutated,
    replayed,
)
from edgeloop.search.sampler.surrogate import Kernel, SpaceEncoding, fit_kernel
from edgeloop.search.sampler.trial import Params, Policy, Space, Value, ask, key_of

START = 10

_MUTATIONS, _CROSSOVERS, _FAR_MUTATIONS, _CHILDREN = 250, 100, 100, 100
_ROUNDS, _LEADERS = 2, 10
_PARAMETERS = 20  # with more, there are fewer drafts: a proposal costs about the same
_RANDOM = 3  # random members among the drafts keep every branch of a space in play
_CHECKED = 4  # drafts that become members, of which the best is proposed
_LEAST_PARENTS = 8
_TRIES = 100
_FAR_FROM = 12
_FITTED_TO = 120  # results that a kernel is fitted to; more cost time and change little
_GROWTH = 1.15  # a kernel is fitted again when there are so many times more results


class Proposer:
    """The next candidate of a search over a space."""

    def __init__(self, space: Space, seed: int = 0, *, start: int = START) -> None:
        self._space = space
        self._seed = seed
        self._start = start
        # Caches.
        self._drafts: dict[str, Draft] = {}
        self._kernels: dict[str, tuple[object, Sequence[Kernel]]] = {}

    def propose(
        self,
        number: int,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]] = (),
    ) -> Params | None:
        """Parameters that are neither in the history nor pending; None if none are left.

        The history is in the order of proposal.
        """
        from threadpoolctl import threadpool_limits

        rng = Random(f"{self._seed}/{number}")
        fresh = _NewMembers(self._space, [*(result.params for result in history), *pending])
        if self._knows_enough(history, pending):
            # Small matrices gain nothing from threads, which slow evaluators down.
            with threadpool_limits(1, user_api="blas"):
                chosen = self._best(fresh, history, pending, rng)
        else:
            chosen = self._first(fresh, rng)
        chosen = chosen or fresh.anyone(rng)
        return chosen.params if chosen else None

    def _knows_enough(
        self, history: Sequence[Observation], pending: Sequence[Mapping[str, Value]]
    ) -> bool:
        """With many workers, the first result alone must not attract all of them."""
        are_proposed = len(history) + len(pending) >= self._start
        have_ended = len(history) >= self._start // 2
        return are_proposed and have_ended and any(result.eligible for result in history)

    def _first(self, fresh: _NewMembers, rng: Random) -> Draft | None:
        """A corner, while there are new ones, then a member far from all others."""
        if len(fresh.taken) < self._start:
            # All first choices, all last ones, and steps in between for the longest list.
            asked = ask(self._space, at_corner(0.0)).distributions.values()
            sizes = (distribution.size for distribution in asked)
            count = min(max(sizes, default=0), self._start // 2)
            for index in range(count):
                if corner := fresh.member(at_corner(index / max(1, count - 1))):
                    return corner
        found = (fresh.member(at_random(rng)) for _ in range(_FAR_FROM))
        pool = [member for member in found if member]
        if not pool or not fresh.known:
            return pool[0] if pool else None
        encoding = SpaceEncoding.of(member.distributions for member in pool)
        mine = encoding.encode([member.params for member in pool])
        theirs = encoding.encode(fresh.known)
        gaps = ((mine[:, None] - theirs) ** 2).sum(axis=2).min(axis=1)
        return pool[int(gaps.argmax())]

    def _best(
        self,
        fresh: _NewMembers,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        rng: Random,
    ) -> Draft | None:
        parents = [self._draft(result) for result in parents_of(history)]
        drawn = [fresh.member(at_random(rng)) for _ in range(_RANDOM)]
        drafts = [member for member in drawn if member]
        share = min(1.0, _PARAMETERS / max(1, *(len(parent.params) for parent in parents)))
        drafts += fresh.unseen(_children([*parents, *drafts], share, rng))
        if not drafts:
            return None
        encoding, kernels = self._encoding(history, drafts), self._fitted(history)
        acquisition = Acquisition(encoding, kernels, history, pending, rng.getrandbits(32))
        scores = acquisition.of([draft.params for draft in drafts])
        for _ in range(_ROUNDS):
            leaders = [drafts[i] for i in np.argsort(-scores, kind="stable")[:_LEADERS]]
            turns = (leaders[i % len(leaders)] for i in range(_portion(_CHILDREN, share)))
            children = fresh.unseen(mutated(leader, 1, rng) for leader in turns)
            drafts += children
            scores = np.append(scores, acquisition.of([draft.params for draft in children]))
        ranked = [drafts[i] for i in np.argsort(-scores, kind="stable")]
        members = fresh.checked(ranked, rng)
        if not members:
            return None
        return members[int(acquisition.of([member.params for member in members]).argmax())]

    def _encoding(
        self, history: Sequence[Observation], drafts: Sequence[Draft] = ()
    ) -> SpaceEncoding:
        """All parameters: those of the drafts, and those that only older members have."""
        asked = list({id(draft.distributions): draft.distributions for draft in drafts}.values())
        known = {name for distributions in asked for name in distributions}
        for result in history:
            if not known.issuperset(result.params):
                asked.append(self._draft(result).distributions)
                known.update(result.params)
        return SpaceEncoding.of(asked)

    def _fitted(self, history: Sequence[Observation]) -> Kernels:
        measured = [result for result in history if result.measured]
        objectives = self._fit("objectives", measured, scaled_values)
        if all(result.eligible for result in history):
            return Kernels(objectives, Kernel({}))
        (feasibility,) = self._fit("feasibility", history, lambda used: [eligibility(used)])
        return Kernels(objectives, feasibility)

    def _fit(
        self,
        what: str,
        results: Sequence[Observation],
        targets: Callable[[Sequence[Observation]], Sequence[Floats]],
    ) -> Sequence[Kernel]:
        """Fitted to the first so many results, so that most proposals need not fit again."""
        count = max(2, self._start)
        while (following := int(count * _GROWTH) + 1) <= len(results):
            count = following
        used = results[:count]
        if len(used) > _FITTED_TO:
            rng = np.random.default_rng(len(used))
            chosen = rng.choice(len(used), _FITTED_TO, replace=False)
            used = [used[index] for index in sorted(chosen)]
        identity = [(key_of(result.params), result.values, result.feasible) for result in used]
        known = self._kernels.get(what)
        if known and known[0] == identity:
            return known[1]
        encoding = self._encoding(used)
        encoded = encoding.encode([result.params for result in used])
        names, groups = encoding.names, encoding.groups
        kernels = [fit_kernel(names, encoded, groups, column) for column in targets(used)]
        self._kernels[what] = identity, kernels
        return kernels

    def _draft(self, result: Observation) -> Draft:
        key = key_of(result.params)
        if key not in self._drafts:
            trial = ask(self._space, replayed(result.params))
            self._drafts[key] = Draft(trial.params, trial.distributions)
        return self._drafts[key]


class _NewMembers:
    """What is new: neither evaluated, nor pending, nor drafted before for this proposal."""

    def __init__(self, space: Space, known: list[Mapping[str, Value]]) -> None:
        self._space = space
        self.known = known
        self.taken = {key_of(params) for params in known}
        self._drafted: set[str] = set()

    def unseen(self, drafts: Iterable[Draft]) -> list[Draft]:
        kept = []
        for draft in drafts:
            key = key_of(draft.params)
            if key not in self.taken and key not in self._drafted:
                self._drafted.add(key)
                kept.append(draft)
        return kept

    def member(self, policy: Policy) -> Draft | None:
        trial = ask(self._space, policy)
        if key_of(trial.params) in self.taken:
            return None
        return Draft(trial.params, trial.distributions)

    def checked(self, ranked: Iterable[Draft], rng: Random) -> list[Draft]:
        """The first few that become new members of the space."""
        members: list[Draft] = []
        for draft in islice(ranked, _TRIES):
            if member := self.member(replayed(draft.params, rng)):
                members.append(member)
            if len(members) == _CHECKED:
                break
        return members

    def anyone(self, rng: Random) -> Draft | None:
        """A new member, if the space has any left: at random, else by enumeration."""
        for _ in range(_TRIES):
            if member := self.member(at_random(rng)):
                return member
        for trial in every_member(self._space, rng):
            if key_of(trial.params) not in self.taken:
                return Draft(trial.params, trial.distributions)
        return None


def parents_of(history: Sequence[Observation]) -> list[Observation]:
    """The first fronts, until there are enough; nothing that failed or is infeasible."""
    left = [result for result in history if result.eligible]
    parents: list[Observation] = []
    while left and len(parents) < _LEAST_PARENTS:
        kept = non_dominated(values_of(left))
        parents += [result for result, stays in zip(left, kept, strict=True) if stays]
        left = [result for result, stays in zip(left, kept, strict=True) if not stays]
    return parents


def _children(parents: Sequence[Draft], share: float, rng: Random) -> Iterable[Draft]:
    """Every parent takes its turn, so that the whole length of the front has children."""
    for index in range(_portion(_MUTATIONS, share)):
        changes = 1 + (rng.random() < 0.5) + (rng.random() < 0.25)
        yield mutated(parents[index % len(parents)], changes, rng)
    for _ in range(_portion(_CROSSOVERS, share)):
        yield crossed(rng.choice(parents), rng.choice(parents), rng)
    for _ in range(_portion(_FAR_MUTATIONS, share)):
        parent = rng.choice(parents)
        yield mutated(parent, max(1, round(rng.random() * len(parent.params))), rng)


def _portion(count: int, share: float) -> int:
    return round(count * max(share, 0.4))
