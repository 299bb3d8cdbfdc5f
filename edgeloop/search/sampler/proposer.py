"""Edgeloop's own sampler: which member of a space to evaluate next.

It starts with corners of the space and members far from each other. Then, for every proposal, it
mutates and recombines Pareto parents, ranks the children by an acquisition function that has learnt
from every result so far, mutates the best of them again, and proposes the best of all.

A proposal depends only on the seed, its number, the history and the pending candidates: a search
that was killed continues as if it had not been. Nothing is ever proposed twice. The space itself
is called a dozen times per proposal, not hundreds of times: see `mutation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np

from edgeloop.pareto import Floats
from edgeloop.search.base import Observation, ScreenedMember
from edgeloop.search.nets.architecture import Value
from edgeloop.search.sampler.bank import BankSampler
from edgeloop.search.sampler.members import (
    Draft,
    Drafts,
    NewMembers,
    Params,
    Space,
    SpaceEncoding,
    ask,
    at_corner,
    at_random,
    children_of,
    key_of,
    knows_enough,
    mutated,
    parents_of,
    portion,
)
from edgeloop.search.sampler.surrogate import (
    Acquisition,
    Kernel,
    KernelCache,
    Kernels,
    eligibility,
    fit_kernel,
    fitted_results,
    scaled_values,
)

START = 10

_CHILDREN = 100
_ROUNDS, _LEADERS = 2, 10
_PARAMETERS = 20  # with more, there are fewer drafts: a proposal costs about the same
_RANDOM = 3  # random members among the drafts keep every branch of a space in play
_FAR_FROM = 12


class Proposer:
    """The next candidate of a search over a space."""

    def __init__(
        self,
        space: Space,
        seed: int = 0,
        *,
        start: int = START,
        fronts: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """`fronts` are the indices of the objectives of each front; without, one has them all."""
        self._space = space
        self._seed = seed
        self._start = start
        self._drafts = Drafts(space)
        self._kernels = KernelCache()
        self._bank = BankSampler(space, self._drafts, start, fronts)

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
        taken_params = [*(result.params for result in history), *pending]
        fresh = NewMembers(self._space, map(key_of, taken_params))
        if knows_enough(history, pending, self._start):
            # Small matrices gain nothing from threads, which slow evaluators down.
            with threadpool_limits(1, user_api="blas"):
                chosen = self._best(fresh, history, pending, rng)
        else:
            chosen = self._first(fresh, taken_params, rng)
        chosen = chosen or fresh.anyone(rng)
        return chosen.params if chosen else None

    def batch(
        self,
        number: int,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
        count: int,
    ) -> list[Params]:
        """Up to `count` members worth screening, none of which is in the history, pending or in
        the bank. Fewer only if the space has no others."""
        from threadpoolctl import threadpool_limits

        rng = Random(f"{self._seed}/{number}/batch")
        with threadpool_limits(1, user_api="blas"):
            return self._bank.batch(history, pending, bank, count, rng)

    def choose(
        self,
        number: int,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        bank: Sequence[ScreenedMember],
    ) -> Params | None:
        """The feasible member of the bank to train next, neither in the history nor pending; None
        if there is none."""
        from threadpoolctl import threadpool_limits

        rng = Random(f"{self._seed}/{number}/choose")
        with threadpool_limits(1, user_api="blas"):
            return self._bank.choose(history, pending, bank, rng)

    def _first(
        self, fresh: NewMembers, known: Sequence[Mapping[str, Value]], rng: Random
    ) -> Draft | None:
        """A corner, while there are new ones, then a member far from all others."""
        if len(fresh.taken) < self._start:
            # All first choices, all last ones, and steps in between for the longest list.
            asked = ask(self._space, at_corner(0.0)).distributions.values()
            sizes = (distribution.size for distribution in asked)
            count = min(max(sizes, default=0), self._start // 2)
            for index in range(count):
                if corner := fresh.member(at_corner(index / max(1, count - 1))):
                    return corner
        drawn = (fresh.member(at_random(rng)) for _ in range(_FAR_FROM))
        pool = [member for member in drawn if member]
        if not pool or not known:
            return pool[0] if pool else None
        encoding = SpaceEncoding.of(member.distributions for member in pool)
        mine = encoding.encode([member.params for member in pool])
        theirs = encoding.encode(known)
        gaps = ((mine[:, None] - theirs) ** 2).sum(axis=2).min(axis=1)
        return pool[int(gaps.argmax())]

    def _best(
        self,
        fresh: NewMembers,
        history: Sequence[Observation],
        pending: Sequence[Mapping[str, Value]],
        rng: Random,
    ) -> Draft | None:
        parents = [self._drafts.of(result.params) for result in parents_of(history)]
        drawn = [fresh.member(at_random(rng)) for _ in range(_RANDOM)]
        drafts = [member for member in drawn if member]
        share = min(1.0, _PARAMETERS / max(1, *(len(parent.params) for parent in parents)))
        drafts += fresh.unseen(children_of([*parents, *drafts], share, rng))
        if not drafts:
            return None
        encoding = self._drafts.encoding((result.params for result in history), drafts)
        kernels = self._fitted(history)
        acquisition = Acquisition(encoding, kernels, history, pending, rng.getrandbits(32))
        scores = acquisition.of([draft.params for draft in drafts])
        for _ in range(_ROUNDS):
            leaders = [drafts[i] for i in np.argsort(-scores, kind="stable")[:_LEADERS]]
            turns = (leaders[i % len(leaders)] for i in range(portion(_CHILDREN, share)))
            children = fresh.unseen(mutated(leader, 1, rng) for leader in turns)
            drafts += children
            scores = np.append(scores, acquisition.of([draft.params for draft in children]))
        ranked = [drafts[i] for i in np.argsort(-scores, kind="stable")]
        members = fresh.checked(ranked, rng)
        if not members:
            return None
        return members[int(acquisition.of([member.params for member in members]).argmax())]

    def _fitted(self, history: Sequence[Observation]) -> Kernels:
        measured = [result for result in history if result.measured]
        objectives = self._fit("objectives", measured, scaled_values)
        if all(result.eligible or result.is_partial for result in history):
            return Kernels(objectives, Kernel({}))
        (feasibility,) = self._fit("feasibility", history, lambda used: [eligibility(used)])
        return Kernels(objectives, feasibility)

    def _fit(
        self,
        what: str,
        results: Sequence[Observation],
        targets: Callable[[Sequence[Observation]], Sequence[Floats]],
    ) -> Sequence[Kernel]:
        used = fitted_results(results, self._start)

        def fit() -> Sequence[Kernel]:
            encoding = self._drafts.encoding(result.params for result in used)
            encoded = encoding.encode([result.params for result in used])
            names, groups = encoding.names, encoding.groups
            return [fit_kernel(names, encoded, groups, column) for column in targets(used)]

        return self._kernels.get(what, used, None, fit)
