"""Mutation and crossover of the members of a space.

Calling a space with a policy that answers its `suggest_*` calls gives a member. But a space may be
slow (one that builds a model as it goes takes a tenth of a second), and hundreds of candidates are
compared before one is proposed. So children are drafts: the parameters of a parent with some of
them changed, as if the space asked for the same ones. If it does not, because a later parameter
depends on a changed one, replaying the draft against the space turns it into a member.
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
    for attempt in range(_TRIES):
        if is_near and attempt < _TRIES // 2:
            place = abs(distribution.fraction(value) + rng.gauss(0.0, stride))
            moved = distribution.at(min(abs(1 - abs(1 - place)), 1.0))  # reflected into the range
        else:
            moved = distribution.at(rng.random())
        if moved != value:
            return moved
    return value
