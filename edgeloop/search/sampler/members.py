"""New members of a space, and the parents and children they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from edgeloop.pareto import non_dominated
from edgeloop.search.base import Observation, values_of
from edgeloop.search.sampler.surrogate import SpaceEncoding
from edgeloop.search.sampler.trial import (
    Distribution,
    Params,
    Policy,
    ProposalTrial,
    Space,
    Value,
    ask,
    key_of,
)

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


# Mutation and crossover of the members of a space.
#
# Calling a space with a policy that answers its `suggest_*` calls gives a member. But a space may
# be slow (one that builds a model as it goes takes a tenth of a second), and hundreds of candidates
# are compared before one is proposed. So children are drafts: the parameters of a parent with some
# of them changed, as if the space asked for the same ones. If it does not, because a later
# parameter depends on a changed one, replaying the draft against the space turns it into a member.


# How far a mutated number moves, as a share of its range.
_STRIDE = 0.15
_MUTATION_TRIES = 30


@dataclass(frozen=True)
class Draft:
    """Parameters, and the distributions they belong to."""

    params: Params
    distributions: Mapping[str, Distribution]


def at_random(rng: Random) -> Policy:
    return lambda _name, distribution: distribution.at(rng.random())


def at_corner(fraction: float) -> Policy:
    """The same place in every range: the first choices with 0, the last with 1."""
    return lambda _name, distribution: distribution.at(fraction)


def replayed(params: Mapping[str, Value], rng: Random | None = None) -> Policy:
    """The same values; a parameter without a valid one gets a random value, or its first."""

    def policy(name: str, distribution: Distribution) -> Value:
        if name in params and distribution.contains(params[name]):
            return params[name]
        return distribution.at(rng.random() if rng else 0.0)

    return policy


def mutated(parent: Draft, changes: int, rng: Random) -> Draft:
    """The parent with a few of its parameters changed."""
    params = dict(parent.params)
    for name in rng.sample(list(params), min(changes, len(params))):
        params[name] = _moved(parent.distributions[name], params[name], rng)
    return Draft(params, parent.distributions)


def crossed(first: Draft, second: Draft, rng: Random) -> Draft:
    """The parameters of the first parent, each with the value of one parent or the other."""
    params = dict(first.params)
    for name, distribution in first.distributions.items():
        other = second.params.get(name, params[name])
        if rng.random() < 0.5 and distribution.contains(other):
            params[name] = other
    return Draft(params, first.distributions)


def every_member(space: Space, rng: Random) -> Iterator[ProposalTrial]:
    """All members, one by one, from a random start, for a space that is almost exhausted.

    An odometer over the parameters: the last one that has another value advances, and those after
    it start again. A float without a step counts as very many members.
    """
    starts: list[int] = []
    path: list[int] | None = []
    while path is not None:
        trial = ask(space, _along(path, starts, rng))
        yield trial
        sizes = [distribution.size for distribution in trial.distributions.values()]
        path += [0] * (len(sizes) - len(path))
        while path and path[-1] + 1 >= sizes[len(path) - 1]:
            path = path[:-1]
        path = [*path[:-1], path[-1] + 1] if path else None


def _along(path: list[int], starts: list[int], rng: Random) -> Policy:
    depth = 0

    def policy(_name: str, distribution: Distribution) -> Value:
        nonlocal depth
        if depth == len(starts):
            starts.append(rng.getrandbits(32))
        index = path[depth] if depth < len(path) else 0
        start = starts[depth]
        depth += 1
        return distribution.member((start + index) % distribution.size)

    return policy


def _moved(distribution: Distribution, value: Value, rng: Random) -> Value:
    """Another value: half of the time a nearby one, if values have an order, else any."""
    is_near = distribution.ordered and rng.random() < 0.5
    stride = max(_STRIDE, 1 / distribution.size)
    for attempt in range(_MUTATION_TRIES):
        if is_near and attempt < _MUTATION_TRIES // 2:
            place = abs(distribution.fraction(value) + rng.gauss(0.0, stride))
            moved = distribution.at(min(abs(1 - abs(1 - place)), 1.0))  # reflected into the range
        else:
            moved = distribution.at(rng.random())
        if moved != value:
            return moved
    return value
