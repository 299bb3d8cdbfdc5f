"""New members of a space, and the parents and children they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from random import Random

from edgeloop.pareto import non_dominated
from edgeloop.search.base import Observation, values_of
from edgeloop.search.sampler.mutation import (
    Draft,
    at_random,
    crossed,
    every_member,
    mutated,
    replayed,
)
from edgeloop.search.sampler.surrogate import SpaceEncoding
from edgeloop.search.sampler.trial import Policy, Space, Value, ask, key_of

_MUTATIONS, _CROSSOVERS, _FAR_MUTATIONS = 250, 100, 100
_CHECKED = 4  # drafts that become members, of which the best is proposed
_LEAST_PARENTS = 8
_TRIES = 100


class NewMembers:
    """What is new: neither evaluated, nor pending, nor drafted before for this proposal."""

    def __init__(self, space: Space, keys: Iterable[str]) -> None:
        self._space = space
        self.taken = set(keys)
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

    def take(self, member: Draft) -> None:
        self.taken.add(key_of(member.params))

    def taken_from(self, policies: Iterable[Policy], count: int) -> list[Draft]:
        """The first so many that are new; they are not new any more."""
        members: list[Draft] = []
        if count <= 0:
            return members
        for policy in policies:
            if member := self.member(policy):
                self.take(member)
                members.append(member)
            if len(members) == count:
                break
        return members

    def checked(self, ranked: Iterable[Draft], rng: Random) -> list[Draft]:
        """The first few that become new members of the space."""
        members: list[Draft] = []
        for draft in islice(ranked, _TRIES):
            if member := self.member(replayed(draft.params, rng)):
                members.append(member)
            if len(members) == _CHECKED:
                break
        return members

    def everyone(self, rng: Random, count: int) -> list[Draft]:
        """So many of the members that are left, by enumeration."""
        members: list[Draft] = []
        if count <= 0:
            return members
        for trial in every_member(self._space, rng):
            member = Draft(trial.params, trial.distributions)
            if key_of(trial.params) not in self.taken:
                self.take(member)
                members.append(member)
            if len(members) == count:
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


class Drafts:
    """Members as drafts: a space is asked once for the distributions of a member."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._made: dict[str, Draft] = {}

    def of(self, params: Mapping[str, Value]) -> Draft:
        key = key_of(params)
        if key not in self._made:
            trial = ask(self._space, replayed(params))
            self._made[key] = Draft(trial.params, trial.distributions)
        return self._made[key]

    def encoding(
        self,
        members: Iterable[Mapping[str, Value]],
        drafts: Sequence[Draft] = (),
        *,
        totals: bool = False,
    ) -> SpaceEncoding:
        """All parameters: those of the drafts, and those that only other members have."""
        asked = list({id(draft.distributions): draft.distributions for draft in drafts}.values())
        known = {name for distributions in asked for name in distributions}
        for params in members:
            if not known.issuperset(params):
                asked.append(self.of(params).distributions)
                known.update(params)
        return SpaceEncoding.of(asked, totals=totals)


def knows_enough(
    history: Sequence[Observation], pending: Sequence[Mapping[str, Value]], start: int
) -> bool:
    """With many workers, the first result alone must not attract all of them."""
    are_proposed = len(history) + len(pending) >= start
    have_ended = len(history) >= start // 2
    return are_proposed and have_ended and any(result.eligible for result in history)


def parents_of(history: Sequence[Observation]) -> list[Observation]:
    """The first fronts, until there are enough; nothing that failed or is infeasible."""
    left = [result for result in history if result.eligible]
    parents: list[Observation] = []
    while left and len(parents) < _LEAST_PARENTS:
        kept = non_dominated(values_of(left))
        parents += [result for result, stays in zip(left, kept, strict=True) if stays]
        left = [result for result, stays in zip(left, kept, strict=True) if not stays]
    return parents


def children_of(parents: Sequence[Draft], share: float, rng: Random) -> Iterable[Draft]:
    """Every parent takes its turn, so that the whole length of the front has children."""
    for index in range(portion(_MUTATIONS, share)):
        changes = 1 + (rng.random() < 0.5) + (rng.random() < 0.25)
        yield mutated(parents[index % len(parents)], changes, rng)
    for _ in range(portion(_CROSSOVERS, share)):
        yield crossed(rng.choice(parents), rng.choice(parents), rng)
    for _ in range(portion(_FAR_MUTATIONS, share)):
        parent = rng.choice(parents)
        yield mutated(parent, max(1, round(rng.random() * len(parent.params))), rng)


def portion(count: int, share: float) -> int:
    return round(count * max(share, 0.4))
