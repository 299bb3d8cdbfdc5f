"""How the members of a space that are worth a look come about.

A policy answers the questions of a space one by one, and what comes of it is a member. But asking a
space may be slow (one that builds a net as it goes takes a tenth of a second), and hundreds of
candidates are weighed before one is chosen. So children are drafts: a parent's answers with some of
them changed, as if the questions stayed the same. Where they do not, because a later question
depends on the change, asking the space along the draft makes a member of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from edgeloop.search.sampler.trial import (
    Distribution,
    Params,
    Policy,
    ProposalTrial,
    Space,
    Value,
    ask,
)

# How far a mutated number moves, as a share of its range.
_STRIDE = 0.15
_TRIES = 30


@dataclass(frozen=True)
class Draft:
    """Answers, and the questions they belong to."""

    params: Params
    distributions: Mapping[str, Distribution]


def at_random(rng: Random) -> Policy:
    return lambda _name, distribution: distribution.at(rng.random())


def at_corner(fraction: float) -> Policy:
    """The same end of every range: with 0 all the first choices, with 1 all the last."""
    return lambda _name, distribution: distribution.at(fraction)


def replayed(params: Mapping[str, Value], rng: Random | None = None) -> Policy:
    """These answers again; a question they do not fit has a random answer, or its first."""

    def policy(name: str, distribution: Distribution) -> Value:
        if name in params and distribution.contains(params[name]):
            return params[name]
        return distribution.at(rng.random() if rng else 0.0)

    return policy


def mutated(parent: Draft, changes: int, rng: Random) -> Draft:
    """The parent with a few of its answers changed."""
    params = dict(parent.params)
    for name in rng.sample(list(params), min(changes, len(params))):
        params[name] = _moved(parent.distributions[name], params[name], rng)
    return Draft(params, parent.distributions)


def crossed(first: Draft, second: Draft, rng: Random) -> Draft:
    """The first parent's questions, each answered as one parent or the other did."""
    params = dict(first.params)
    for name, distribution in first.distributions.items():
        other = second.params.get(name, params[name])
        if rng.random() < 0.5 and distribution.contains(other):
            params[name] = other
    return Draft(params, first.distributions)


def every_member(space: Space, rng: Random) -> Iterator[ProposalTrial]:
    """All members, one by one, from a random start: what is left of an almost exhausted space.

    An odometer over the questions: the last one that has another answer moves on, and those after
    it start again. A float without a step counts as very many members.
    """
    starts: list[int] = []
    path: list[int] | None = []
    while path is not None:
        trial = ask(space, _along(path, starts, rng))
        yield trial
        sizes = [distribution.size for distribution in trial.distributions.values()]
        path = _next(path + [0] * (len(sizes) - len(path)), sizes)


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


def _next(path: list[int], sizes: list[int]) -> list[int] | None:
    while path:
        if path[-1] + 1 < sizes[len(path) - 1]:
            return [*path[:-1], path[-1] + 1]
        path = path[:-1]
    return None


def _moved(distribution: Distribution, value: Value, rng: Random) -> Value:
    """Another answer: near by where there is an order, half of the time, else anywhere."""
    near = distribution.ordered and rng.random() < 0.5
    for turn in range(_TRIES):
        is_near = near and turn < _TRIES // 2
        moved = _near(distribution, value, rng) if is_near else distribution.at(rng.random())
        if moved != value:
            return moved
    return value


def _near(distribution: Distribution, value: Value, rng: Random) -> Value:
    """A step either way; one that would leave the range is turned back into it."""
    stride = max(_STRIDE, 1 / distribution.size)
    place = abs(distribution.fraction(value) + rng.gauss(0.0, stride))
    return distribution.at(min(abs(1 - abs(1 - place)), 1.0))
