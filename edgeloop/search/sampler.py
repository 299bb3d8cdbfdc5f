"""Our sampler: which member of a space to evaluate next.

It starts with corners of the space and members far from each other. Then, for every proposal, the
Pareto parents have children by mutation and crossover, a surrogate that has learnt from every
result so far ranks them by the hypervolume they promise, the best have children of their own, and
the most promising of all is the answer.

A proposal depends on the seed, its number, the history and what is pending, and on nothing else: a
search that was killed goes on as if it had not been. Nothing is ever proposed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from random import Random

import numpy as np

from edgeloop.search.evaluated import Evaluated, values_of
from edgeloop.search.features import Features
from edgeloop.search.front import non_dominated
from edgeloop.search.promise import Promise
from edgeloop.search.scale import Scale
from edgeloop.search.surrogate import Shape, fit_shape
from edgeloop.search.trial import (
    Distribution,
    Params,
    Policy,
    ProposalTrial,
    Space,
    Value,
    ask,
    key_of,
)
from edgeloop.search.variation import (
    at_corner,
    at_random,
    crossed,
    every_member,
    mutated,
    replayed,
)

START = 10

_MUTATIONS, _CROSSOVERS, _STRANGERS, _CHILDREN = 250, 100, 100, 100
_ROUNDS, _LEADERS = 2, 10
_QUESTIONS = 20  # a space that asks more has fewer candidates, so that a proposal costs the same
_LEAST_PARENTS = 8
_TRIES = 100
_FAR_FROM = 50
_SHAPED_BY = 120  # results that decide a shape; more of them cost time and change little
_GROWTH = 1.15  # a shape is found anew when there is so much more to learn from


class Proposer:
    """The next candidate of a search over a space."""

    def __init__(self, space: Space, seed: int = 0, *, start: int = START) -> None:
        self._space = space
        self._seed = seed
        self._start = start
        # Two memories of what can be worked out again, for speed alone.
        self._asked: dict[str, Mapping[str, Distribution]] = {}
        self._shapes: dict[tuple[object, ...], list[Shape]] = {}

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
        eligible = sum(result.eligible for result in history)
        if eligible == 0 or len(history) + len(pending) < self._start:
            chosen = self._first(nursery, rng)
        else:
            with _one_thread():
                chosen = self._best(nursery, history, pending, rng)
        chosen = chosen or nursery.anyone(rng)
        return chosen.params if chosen else None

    def _first(self, nursery: _Nursery, rng: Random) -> ProposalTrial | None:
        """A corner, as long as there are new ones, then a member far from all others."""
        if len(nursery.taken) < self._start:
            for policy in _corners(self._space, self._start // 2):
                corner = nursery.born(policy)
                if corner:
                    return corner
        nursery.add(at_random(rng) for _ in range(_FAR_FROM))
        pool = nursery.pool
        if not pool or not nursery.known:
            return pool[0] if pool else None
        features = Features.of(trial.distributions for trial in pool)
        mine = features.encode([trial.params for trial in pool])
        theirs = features.encode(nursery.known)
        gaps = ((mine[:, None] - theirs) ** 2).sum(axis=2).min(axis=1)
        return pool[int(gaps.argmax())]

    def _best(
        self,
        nursery: _Nursery,
        history: Sequence[Evaluated],
        pending: Sequence[Mapping[str, Value]],
        rng: Random,
    ) -> ProposalTrial | None:
        parents = parents_of(history)
        share = min(1.0, _QUESTIONS / max(1, *(len(parent.params) for parent in parents)))
        nursery.add(_children(parents, share, rng))
        nursery.add(at_random(rng) for _ in range(round(_STRANGERS * share)))
        if not nursery.pool:
            return None
        features = self._features(history, nursery.pool)
        promise = Promise(features, self._found(history), history, pending, rng.getrandbits(32))
        scores = promise.of([trial.params for trial in nursery.pool])
        for _ in range(_ROUNDS):
            leaders = [nursery.pool[i] for i in np.argsort(-scores, kind="stable")[:_LEADERS]]
            turns = range(round(_CHILDREN * share))
            new = nursery.add(mutated(leaders[i % len(leaders)].params, 1, rng) for i in turns)
            scores = np.append(scores, promise.of([trial.params for trial in new]))
        return nursery.pool[int(scores.argmax())]

    def _features(self, history: Sequence[Evaluated], pool: Sequence[ProposalTrial]) -> Features:
        """What the pool was asked, and what only older members were."""
        asked = [trial.distributions for trial in pool]
        known = {name for distributions in asked for name in distributions}
        for result in history:
            if not known.issuperset(result.params):
                asked.append(dict(self._distributions(result)))
                known.update(result.params)
        return Features.of(asked)

    def _found(self, history: Sequence[Evaluated]) -> list[Shape]:
        """The shape of each objective, found from the first so many results: not anew each time."""
        measured = [result for result in history if result.measured]
        used = measured[: _block(len(measured), self._start)]
        if len(used) > _SHAPED_BY:
            chosen = np.random.default_rng(len(used)).choice(len(used), _SHAPED_BY, replace=False)
            used = [used[index] for index in sorted(chosen)]
        identity = tuple((key_of(result.params), result.values) for result in used)
        if identity not in self._shapes:
            self._shapes = {identity: self._shaped(used)}
        return self._shapes[identity]

    def _shaped(self, used: Sequence[Evaluated]) -> list[Shape]:
        features = Features.of(self._distributions(result) for result in used)
        encoded = features.encode([result.params for result in used])
        return [
            fit_shape(features.names, encoded, features.groups, Scale.of(column).forward(column))
            for column in values_of(used).T
        ]

    def _distributions(self, result: Evaluated) -> Mapping[str, Distribution]:
        key = key_of(result.params)
        if key not in self._asked:
            self._asked[key] = ask(self._space, replayed(result.params)).distributions
        return self._asked[key]


class _Nursery:
    """Candidates as they are born: new ones only, each of them once."""

    def __init__(self, space: Space, known: list[Mapping[str, Value]]) -> None:
        self._space = space
        self.known = known
        self.taken = {key_of(params) for params in known}
        self.pool: list[ProposalTrial] = []
        self._keys: set[str] = set()

    def born(self, policy: Policy) -> ProposalTrial | None:
        trial = ask(self._space, policy)
        key = key_of(trial.params)
        if key in self.taken or key in self._keys:
            return None
        self._keys.add(key)
        self.pool.append(trial)
        return trial

    def add(self, policies: Iterable[Policy]) -> list[ProposalTrial]:
        return [trial for policy in policies if (trial := self.born(policy))]

    def anyone(self, rng: Random) -> ProposalTrial | None:
        """Some new member, if the space has any left: by chance, else by going through them all."""
        for _ in range(_TRIES):
            if trial := self.born(at_random(rng)):
                return trial
        for trial in every_member(self._space, rng):
            if key_of(trial.params) not in self.taken:
                return trial
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


def _children(parents: Sequence[Evaluated], share: float, rng: Random) -> Iterable[Policy]:
    """Every parent has its turn, so that the whole length of the front has children."""
    for index in range(round(_MUTATIONS * share)):
        changes = 1 + (rng.random() < 0.5) + (rng.random() < 0.25)
        yield mutated(parents[index % len(parents)].params, changes, rng)
    for _ in range(round(_CROSSOVERS * share)):
        yield crossed(rng.choice(parents).params, rng.choice(parents).params, rng)


def _block(count: int, start: int) -> int:
    """The largest of a growing row of sizes that is not above the count."""
    block = max(2, start)
    while (following := int(block * _GROWTH) + 1) <= count:
        block = following
    return min(block, count)
