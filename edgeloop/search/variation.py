"""Policies: how the members of a space that are worth a look come about.

Each answers the questions of a space one by one. A parent's answer is kept where the question is
still the same; a question that the parent never heard (another branch of a conditional space) is
answered at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from edgeloop.search.trial import (
    Distribution,
    Policy,
    ProposalTrial,
    Space,
    Value,
    ask,
)

# How far a mutated number moves, as a share of its range.
_STRIDE = 0.15
_TRIES = 30


def at_random(rng: Random) -> Policy:
    return lambda _name, distribution: distribution.at(rng.random())


def at_corner(fraction: float) -> Policy:
    """The same end of every range: with 0 all the first choices, with 1 all the last."""
    return lambda _name, distribution: distribution.at(fraction)


def replayed(params: Mapping[str, Value]) -> Policy:
    """A known member again, to learn which questions led to it."""

    def policy(name: str, distribution: Distribution) -> Value:
        known = name in params and distribution.contains(params[name])
        return params[name] if known else distribution.at(0.0)

    return policy


def mutated(parent: Mapping[str, Value], changes: int, rng: Random) -> Policy:
    """The parent with a few of its answers changed."""
    names = sorted(parent)
    changed = set(rng.sample(names, min(changes, len(names))))

    def policy(name: str, distribution: Distribution) -> Value:
        if name not in parent or not distribution.contains(parent[name]):
            return distribution.at(rng.random())
        return _moved(distribution, parent[name], rng) if name in changed else parent[name]

    return policy


def crossed(first: Mapping[str, Value], second: Mapping[str, Value], rng: Random) -> Policy:
    """Every answer from one parent or the other."""

    def policy(name: str, distribution: Distribution) -> Value:
        parents = (first, second) if rng.random() < 0.5 else (second, first)
        for parent in parents:
            if name in parent and distribution.contains(parent[name]):
                return parent[name]
        return distribution.at(rng.random())

    return policy


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
    for _ in range(_TRIES):
        moved = _near(distribution, value, rng) if near else distribution.at(rng.random())
        if moved != value:
            return moved
    return value


def _near(distribution: Distribution, value: Value, rng: Random) -> Value:
    """A step either way; one that would leave the range is turned back into it."""
    stride = max(_STRIDE, 1 / distribution.size)
    place = abs(distribution.fraction(value) + rng.gauss(0.0, stride))
    return distribution.at(min(abs(1 - abs(1 - place)), 1.0))
