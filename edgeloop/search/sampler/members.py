"""New members of a space, and the parents and children they come from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import islice
from random import Random

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.pareto import Floats, non_dominated
from edgeloop.search.base import Observation, values_of
from edgeloop.search.nets.architecture import Value

# A trial without a study: the same `suggest_*` methods as Optuna's, answered by a policy.
#
# A space is a function of a trial, and its calls say which parameters there are; a later one may
# depend on an earlier value. The sampler calls a space many times between two results, so this
# trial is cheap, needs no Optuna and stores nothing.


Params = dict[str, Value]
Policy = Callable[[str, "Distribution"], Value]
Space = Callable[["ProposalTrial"], object]

# How many values a float without a step counts as.
_FINE = 2**32


@dataclass(frozen=True)
class Choice:
    """One of a list, in the order given by the space."""

    choices: tuple[Value, ...]

    @property
    def size(self) -> int:
        return len(self.choices)

    @cached_property
    def ordered(self) -> bool:
        """Numbers have a distance; texts and flags are only equal or not."""
        return all(
            isinstance(choice, int | float) and not isinstance(choice, bool)
            for choice in self.choices
        )

    def member(self, index: int) -> Value:
        return self.choices[index]

    def at(self, fraction: float) -> Value:
        return self.choices[min(int(fraction * self.size), self.size - 1)]

    def fraction(self, value: Value) -> float:
        rank = sorted(self.choices, key=_as_float).index(value)
        return rank / max(1, self.size - 1)

    def contains(self, value: Value) -> bool:
        return any(value == choice and type(value) is type(choice) for choice in self.choices)


@dataclass(frozen=True)
class Number:
    """A range including both ends, with an optional step or logarithmic scale."""

    low: float
    high: float
    step: float | None = None
    log: bool = False
    whole: bool = False

    @property
    def size(self) -> int:
        if self.low == self.high:
            return 1
        if self.step is None:
            return _FINE
        low, high, step = (Decimal(str(value)) for value in (self.low, self.high, self.step))
        return int((high - low) // step) + 1  # decimals, as in Optuna: floats are off by one step

    @property
    def ordered(self) -> bool:
        return True

    def member(self, index: int) -> Value:
        if self.step is None:
            return self._typed(self._unscaled(index / max(1, self.size - 1)))
        # Decimals, as in Optuna: adding up float steps would end just beyond the last value.
        return self._typed(float(Decimal(str(self.low)) + index * Decimal(str(self.step))))

    def at(self, fraction: float) -> Value:
        """The value that a uniform sample of [0, 1) selects."""
        if self.step is None:
            return self._typed(self._unscaled(fraction))
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            index = round(math.exp(low + fraction * (high - low)) - self.low)
            return self.member(min(max(index, 0), self.size - 1))
        return self.member(min(int(fraction * self.size), self.size - 1))

    def fraction(self, value: Value) -> float:
        low, high = self._scaled(self.low), self._scaled(self.high)
        return (self._scaled(_as_float(value)) - low) / (high - low) if high > low else 0.5

    def contains(self, value: Value) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            return False
        if self.step is None:
            return True
        steps = (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-6

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value

    def _unscaled(self, fraction: float) -> float:
        low, high = self._scaled(self.low), self._scaled(self.high)
        scaled = low + fraction * (high - low)
        return min(max(math.exp(scaled) if self.log else scaled, self.low), self.high)

    def _typed(self, value: float) -> Value:
        return round(value) if self.whole else float(value)


Distribution = Choice | Number


class ProposalTrial:
    """What a space sees: Optuna's `suggest_*` methods, with values from a policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.params: Params = {}
        self.distributions: dict[str, Distribution] = {}
        self.user_attrs: dict[str, object] = {}

    def suggest_categorical(self, name: str, choices: Sequence[Value]) -> Value:
        if not choices:
            raise BadInput(reason=f"The parameter {name!r} has no choices; give it at least one.")
        return self._answer(name, Choice(tuple(choices)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        _check_range(name, low, high, step, log)
        answer = self._answer(name, Number(low, high, step, log, whole=True))
        assert isinstance(answer, int)
        return answer

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        _check_range(name, low, high, step, log)
        answer = self._answer(name, Number(float(low), float(high), step, log))
        assert isinstance(answer, int | float)
        return float(answer)

    def set_user_attr(self, key: str, value: object) -> None:
        self.user_attrs[key] = value

    def _answer(self, name: str, distribution: Distribution) -> Value:
        if name in self.params:
            if self.distributions[name] != distribution:
                raise BadInput(
                    reason=f"The space suggests {name!r} twice with different ranges; "
                    "give each its own name."
                )
            return self.params[name]
        value = self._policy(name, distribution)
        self.distributions[name] = distribution
        self.params[name] = value
        return value


def ask(space: Space, policy: Policy) -> ProposalTrial:
    """The member of the space that a policy selects."""
    trial = ProposalTrial(policy)
    space(trial)
    return trial


def key_of(params: Mapping[str, Value]) -> str:
    """Equal for equal parameters, in whatever order they were suggested."""
    return _KEYS.encode(params)


def _plain(value: object) -> object:
    """NumPy's numbers as Python's."""
    item = getattr(value, "item", None)
    return item() if callable(item) else repr(value)


_KEYS = json.JSONEncoder(sort_keys=True, default=_plain)


def _as_float(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _check_range(name: str, low: float, high: float, step: float | None, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise BadInput(
            reason=f"The range of {name!r} is {low} to {high}; it must be finite, low first."
        )
    if step is not None and step <= 0:
        raise BadInput(reason=f"The step of {name!r} is {step}; it must be above 0.")
    if log and low <= 0:
        raise BadInput(reason=f"{name!r} is logarithmic, so it must start above 0, not at {low}.")


# Members as vectors, for a surrogate.
#
# In the encoding, a category that differs and a parameter that only one of two members has are at
# squared distance 1; numbers are at the square of their distance on their (logarithmic) range; a
# choice among numbers is half of each. The columns of a parameter form a group with one weight.


Groups = NDArray[np.intp]

_LEAST_ALIKE = 3  # parameters with the same choices that have totals
_UNIT = 0.5**0.5  # two different one-hot vectors of this length are at squared distance 1


@dataclass(frozen=True)
class SpaceEncoding:
    """Turns the parameters of a space into columns."""

    distributions: Mapping[str, Distribution]
    has_totals: bool = False

    @classmethod
    def of(
        cls, asked: Iterable[Mapping[str, Distribution]], *, totals: bool = False
    ) -> SpaceEncoding:
        """All parameters that any member has, each with its widest range.

        With `totals`, there are columns for what many parameters have in common: how often they
        have each of their choices, or their sum. How many layers are convolutions says more about
        a model than any one of them.
        """
        merged: dict[str, Distribution] = {}
        for distributions in asked:
            for name, distribution in distributions.items():
                widest = merged.get(name)
                if widest is None:
                    merged[name] = distribution
                elif widest != distribution:
                    merged[name] = _widened(widest, distribution)
        return cls(merged, totals)

    @cached_property
    def names(self) -> list[str]:
        return [*sorted(self.distributions), *(name for name, _, _ in self._totals)]

    @cached_property
    def groups(self) -> Groups:
        """For each column, the index of its parameter in `names`."""
        widths = [_width(self.distributions[name]) for name in sorted(self.distributions)]
        return np.repeat(np.arange(len(self.names)), [*widths, *(1 for _ in self._totals)])

    def encode(self, members: Sequence[Mapping[str, Value]]) -> Floats:
        names = sorted(self.distributions)
        columns = [_columns(name, self.distributions[name], members) for name in names]
        encoded = np.hstack(columns) if columns else np.zeros((len(members), 0))
        if not self._totals:
            return encoded
        sums = np.stack([weights for _, weights, _ in self._totals], axis=1)
        means = np.array([mean for _, _, mean in self._totals])
        return np.hstack([encoded, encoded @ sums - means])

    @cached_property
    def _totals(self) -> list[tuple[str, Floats, float]]:
        """Names, the weights of all columns, and the mean of each total in random members."""
        if not self.has_totals:
            return []
        alike: dict[Distribution, list[int]] = {}
        width = 0
        for name in sorted(self.distributions):
            alike.setdefault(self.distributions[name], []).append(width)
            width += _width(self.distributions[name])
        totals: list[tuple[str, Floats, float]] = []
        for distribution, places in alike.items():
            if len(places) < _LEAST_ALIKE or distribution.size < 2:
                continue
            for what, entries in _total_entries(distribution):
                weights = np.zeros(width)
                for offset, weight in entries.items():
                    weights[np.array(places) + offset] = weight
                share = 0.5 if distribution.ordered else 1 / distribution.size
                variance = 1 / 12 if distribution.ordered else share * (1 - share)
                unit = 2 * (len(places) * variance) ** 0.5  # as far apart as two numbers
                name = f"total {what} of {len(totals)}"
                totals.append((name, weights / unit, share * len(places) / unit))
        return totals


def _total_entries(distribution: Distribution) -> list[tuple[str, dict[int, float]]]:
    """Which columns of a parameter add up to what: its place, or each of its choices."""
    if isinstance(distribution, Number):  # absent: ½ in the place, 1 in the column before it
        return [("place", {0: -0.5, 1: 1.0})]
    if distribution.ordered:
        return [("place", {distribution.size + 1: 1 / _UNIT, distribution.size: -1.0})]
    return [(str(choice), {i: 1 / _UNIT}) for i, choice in enumerate(distribution.choices)]


def _columns(
    name: str, distribution: Distribution, members: Sequence[Mapping[str, Value]]
) -> Floats:
    """A value is encoded once: a parameter has few values, and a pool has many members."""
    absent = _row(distribution, None, here=False)
    made: dict[tuple[type, Value], list[float]] = {}
    rows = []
    for member in members:
        if name not in member:
            rows.append(absent)
            continue
        value = member[name]
        code = (type(value), value)
        if code not in made:
            made[code] = _row(distribution, value, here=distribution.contains(value))
        rows.append(made[code])
    return np.array(rows, dtype=np.float64).reshape(len(members), len(absent))


def _width(distribution: Distribution) -> int:
    if isinstance(distribution, Choice):
        return distribution.size + 1 + distribution.ordered
    return 2


def _row(distribution: Distribution, value: Value, *, here: bool) -> list[float]:
    row = [0.0] * _width(distribution)
    place = distribution.fraction(value) if here and distribution.ordered else 0.5
    if isinstance(distribution, Number):
        return [0.0 if here else 1.0, place]
    row[distribution.choices.index(value) if here else distribution.size] = _UNIT
    if distribution.ordered:
        row = [_UNIT * cell for cell in row]
        row[-1] = _UNIT * place
    return row


def _widened(widest: Distribution, other: Distribution) -> Distribution:
    """A space may suggest the same parameter with another range in another branch."""
    if isinstance(widest, Number) and isinstance(other, Number):
        return replace(widest, low=min(widest.low, other.low), high=max(widest.high, other.high))
    if isinstance(widest, Choice) and isinstance(other, Choice):
        added = (choice for choice in other.choices if not widest.contains(choice))
        return Choice((*widest.choices, *added))
    return widest


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
        new_drafts = []
        for draft in drafts:
            key = key_of(draft.params)
            if key not in self.taken and key not in self._drafted:
                self._drafted.add(key)
                new_drafts.append(draft)
        return new_drafts

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
        encoded_names = {name for distributions in asked for name in distributions}
        for params in members:
            if not encoded_names.issuperset(params):
                asked.append(self.of(params).distributions)
                encoded_names.update(params)
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
        is_on_front = non_dominated(values_of(left))
        parents += [result for result, stays in zip(left, is_on_front, strict=True) if stays]
        left = [result for result, stays in zip(left, is_on_front, strict=True) if not stays]
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
