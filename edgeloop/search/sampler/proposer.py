"""Our sampler: which member of a space to evaluate next.

It starts with corners of the space and members far from each other. Then, for every proposal, the
Pareto parents have children by mutation and crossover, a surrogate that has learnt from every
result so far ranks them by the hypervolume they promise, the best have children of their own, and
the most promising of all is the answer.

A proposal depends on the seed, its number, the history and what is pending, and on nothing else: a
search that was killed goes on as if it had not been. Nothing is ever proposed twice. The space
itself is asked a dozen times a proposal, not hundreds: see `variation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from random import Random

import numpy as np
from numpy.typing import NDArray

from edgeloop.pareto import non_dominated
from edgeloop.search.base import Evaluated, values_of
from edgeloop.search.sampler.acquisition import Lessons, Promise, eligibility, scaled_values
from edgeloop.search.sampler.encoding import Features
from edgeloop.search.sampler.mutation import (
    Draft,
    at_corner,
    at_random,
    crossed,
    every_member,
    mutated,
    replayed,
)
from edgeloop.search.sampler.surrogate import Shape, fit_shape
from edgeloop.search.sampler.trial import Params, Policy, Space, Value, ask, key_of

Floats = NDArray[np.float64]

START = 10

_MUTATIONS, _CROSSOVERS, _WILD, _CHILDREN = 250, 100, 100, 100
_ROUNDS, _LEADERS = 2, 10
_QUESTIONS = 20  # a space that asks more has fewer drafts, so that a proposal costs about the same
_STRANGERS = 3  # members by chance among the drafts: they keep every branch of a space in play
_CHECKED = 4  # drafts that become members, of which the most promising is proposed
_LEAST_PARENTS = 8
_TRIES = 100
_FAR_FROM = 12
_SHAPED_BY = 120  # results that decide a shape; more of them cost time and change little
_GROWTH = 1.15  # a shape is found anew when there is so much more to learn from


class Proposer:
    """The next candidate of a search over a space."""

    def __init__(self, space: Space, seed: int = 0, *, start: int = START) -> None:
        self._space = space
        self._seed = seed
        self._start = start
        # Two memories of what can be worked out again, for speed alone.
        self._drafts: dict[str, Draft] = {}
        self._found: dict[str, tuple[object, Sequence[Shape]]] = {}

    def propose(
        self,
        number: int,
        history: Sequence[Evaluated],
        pending: Sequence[Mapping[str, Value]] = (),
    ) -> Params | None:
        """Parameters that are neither in the history nor pending; None when there are none left.

        The history is in the order of the numbers of its proposals.
        """
        rng = Random(f"{self._seed}/{number}")
        nursery = _Nursery(self._space, [*(result.params for result in history), *pending])
        if self._knows_enough(history, pending):
            with _one_thread():
                chosen = self._best(nursery, history, pending, rng)
        else:
            chosen = self._first(nursery, rng)
        chosen = chosen or nursery.anyone(rng)
        return chosen.params if chosen else None

    def _knows_enough(
        self, history: Sequence[Evaluated], pending: Sequence[Mapping[str, Value]]
    ) -> bool:
        """Many workers start at once: the first result alone must not draw them all to it."""
        asked_for = len(history) + len(pending) >= self._start
        is_there = len(history) >= self._start // 2
        return asked_for and is_there and any(result.eligible for result in history)

    def _first(self, nursery: _Nursery, rng: Random) -> Draft | None:
        """A corner, as long as there are new ones, then a member far from all others."""
        if len(nursery.taken) < self._start:
            for policy in _corners(self._space, self._start // 2):
                if corner := nursery.member(policy):
                    return corner
        found = (nursery.member(at_random(rng)) for _ in range(_FAR_FROM))
        pool = [member for member in found if member]
        if not pool or not nursery.known:
            return pool[0] if pool else None
        features = Features.of(member.distributions for member in pool)
        mine = features.encode([member.params for member in pool])
        theirs = features.encode(nursery.known)
        gaps = ((mine[:, None] - theirs) ** 2).sum(axis=2).min(axis=1)
        return pool[int(gaps.argmax())]

    def _best(
        self,
        nursery: _Nursery,
        history: Sequence[Evaluated],
        pending: Sequence[Mapping[str, Value]],
        rng: Random,
    ) -> Draft | None:
        parents = [self._draft(result) for result in parents_of(history)]
        strangers = [nursery.member(at_random(rng)) for _ in range(_STRANGERS)]
        drafts = [stranger for stranger in strangers if stranger]
        share = min(1.0, _QUESTIONS / max(1, *(len(parent.params) for parent in parents)))
        drafts += nursery.new(_children([*parents, *drafts], share, rng))
        if not drafts:
            return None
        features = self._features(history, drafts)
        promise = Promise(features, self._lessons(history), history, pending, rng.getrandbits(32))
        scores = promise.of([draft.params for draft in drafts])
        for _ in range(_ROUNDS):
            leaders = [drafts[i] for i in np.argsort(-scores, kind="stable")[:_LEADERS]]
            turns = (leaders[i % len(leaders)] for i in range(_portion(_CHILDREN, share)))
            new = nursery.new(mutated(leader, 1, rng) for leader in turns)
            drafts += new
            scores = np.append(scores, promise.of([draft.params for draft in new]))
        ranked = [drafts[i] for i in np.argsort(-scores, kind="stable")]
        members = nursery.checked(ranked, rng)
        if not members:
            return None
        return members[int(promise.of([member.params for member in members]).argmax())]

    def _features(self, history: Sequence[Evaluated], drafts: Sequence[Draft] = ()) -> Features:
        """All questions: those of the drafts, and what only older members were asked."""
        asked = list({id(draft.distributions): draft.distributions for draft in drafts}.values())
        known = {name for distributions in asked for name in distributions}
        for result in history:
            if not known.issuperset(result.params):
                asked.append(self._draft(result).distributions)
                known.update(result.params)
        return Features.of(asked)

    def _lessons(self, history: Sequence[Evaluated]) -> Lessons:
        """Shapes are found from the first so many results, so that they need not be each time."""
        measured = [result for result in history if result.measured]
        objectives = self._shapes("objectives", measured, scaled_values)
        if all(result.eligible for result in history):
            return Lessons(objectives, Shape({}))
        (chance,) = self._shapes("chance", history, lambda used: [eligibility(used)])
        return Lessons(objectives, chance)

    def _shapes(
        self,
        what: str,
        results: Sequence[Evaluated],
        targets: Callable[[Sequence[Evaluated]], Sequence[Floats]],
    ) -> Sequence[Shape]:
        used = _some(results[: _block(len(results), self._start)])
        identity = [(key_of(result.params), result.values, result.feasible) for result in used]
        known = self._found.get(what)
        if known and known[0] == identity:
            return known[1]
        features = self._features(used)
        encoded = features.encode([result.params for result in used])
        names, groups = features.names, features.groups
        shapes = [fit_shape(names, encoded, groups, column) for column in targets(used)]
        self._found[what] = identity, shapes
        return shapes

    def _draft(self, result: Evaluated) -> Draft:
        key = key_of(result.params)
        if key not in self._drafts:
            trial = ask(self._space, replayed(result.params))
            self._drafts[key] = Draft(trial.params, trial.distributions)
        return self._drafts[key]


class _Nursery:
    """What is new: neither evaluated, nor pending, nor looked at before for this proposal."""

    def __init__(self, space: Space, known: list[Mapping[str, Value]]) -> None:
        self._space = space
        self.known = known
        self.taken = {key_of(params) for params in known}
        self._drafted: set[str] = set()

    def new(self, drafts: Iterable[Draft]) -> list[Draft]:
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
        """The first few that the space makes new members of."""
        members: list[Draft] = []
        for draft in islice(ranked, _TRIES):
            if member := self.member(replayed(draft.params, rng)):
                members.append(member)
            if len(members) == _CHECKED:
                break
        return members

    def anyone(self, rng: Random) -> Draft | None:
        """Some new member, if the space has any left: by chance, else by going through them all."""
        for _ in range(_TRIES):
            if member := self.member(at_random(rng)):
                return member
        for trial in every_member(self._space, rng):
            if key_of(trial.params) not in self.taken:
                return Draft(trial.params, trial.distributions)
        return None


def _one_thread() -> AbstractContextManager[object]:
    """Matrices this small gain nothing from more, and threads that spin slow evaluators down."""
    from threadpoolctl import threadpool_limits

    limit: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limit


def _corners(space: Space, most: int) -> list[Policy]:
    """All first choices, all last ones, and as many in between as the longest list has."""
    distributions = ask(space, at_corner(0.0)).distributions.values()
    count = min(max((distribution.size for distribution in distributions), default=0), most)
    return [at_corner(index / max(1, count - 1)) for index in range(count)]


def parents_of(history: Sequence[Evaluated]) -> list[Evaluated]:
    """The front, and those behind it until there are some; nothing that failed or is infeasible."""
    left = [result for result in history if result.eligible]
    parents: list[Evaluated] = []
    while left and len(parents) < _LEAST_PARENTS:
        kept = non_dominated(values_of(left))
        parents += [result for result, stays in zip(left, kept, strict=True) if stays]
        left = [result for result, stays in zip(left, kept, strict=True) if not stays]
    return parents


def _children(parents: Sequence[Draft], share: float, rng: Random) -> Iterable[Draft]:
    """Every parent has its turn, so that the whole length of the front has children."""
    for index in range(_portion(_MUTATIONS, share)):
        changes = 1 + (rng.random() < 0.5) + (rng.random() < 0.25)
        yield mutated(parents[index % len(parents)], changes, rng)
    for _ in range(_portion(_CROSSOVERS, share)):
        yield crossed(rng.choice(parents), rng.choice(parents), rng)
    for _ in range(_portion(_WILD, share)):
        parent = rng.choice(parents)
        yield mutated(parent, max(1, round(rng.random() * len(parent.params))), rng)


def _portion(count: int, share: float) -> int:
    return round(count * max(share, 0.4))


def _some(results: Sequence[Evaluated]) -> Sequence[Evaluated]:
    if len(results) <= _SHAPED_BY:
        return results
    chosen = np.random.default_rng(len(results)).choice(len(results), _SHAPED_BY, replace=False)
    return [results[index] for index in sorted(chosen)]


def _block(count: int, start: int) -> int:
    """The largest of a growing row of sizes that is not above the count."""
    block = max(2, start)
    while (following := int(block * _GROWTH) + 1) <= count:
        block = following
    return min(block, count)
