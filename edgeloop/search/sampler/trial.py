"""A trial without a study: the same `suggest_*` methods as Optuna's, answered by a policy.

A space is a function of a trial, and its calls say which parameters there are; a later one may
depend on an earlier value. The sampler calls a space many times between two results, so this trial
is cheap, needs no Optuna and stores nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from edgeloop.errors import BadInput

Value = bool | int | float | str | None
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
