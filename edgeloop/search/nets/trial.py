"""Trials without Optuna: one that samples and records, one that replays.

A space is a function of a trial: it asks for values by name and builds a model from them. The three
methods below are those of Optuna's trials, so the same function serves a search, a replay from
JSON, and random sampling.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from edgeloop.errors import BadArchitecture
from edgeloop.search.nets.architecture import Value


class Trial(Protocol):
    """What a space may ask. Asking for a name again returns the same value."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...


class RecordingTrial:
    """Samples uniformly from a seed and records the values in `params`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.params: dict[str, Value] = {}

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        if name not in self.params:
            self.params[name] = self._random.choice(list(choices))
        return self.params[name]

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        if name not in self.params:
            if log:
                drawn = math.exp(self._random.uniform(math.log(low - 0.5), math.log(high + 0.5)))
                self.params[name] = min(high, max(low, round(drawn)))
            else:
                self.params[name] = low + step * self._random.randint(0, (high - low) // step)
        return int(self.params[name])  # type: ignore[arg-type]

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        if name not in self.params:
            if log:
                drawn = math.exp(self._random.uniform(math.log(low), math.log(high)))
                self.params[name] = min(high, max(low, drawn))
            elif step:
                steps = math.floor((high - low) / step + 1e-9)
                self.params[name] = low + step * self._random.randint(0, steps)
            else:
                self.params[name] = self._random.uniform(low, high)
        return float(self.params[name])  # type: ignore[arg-type]


class FixedTrial:
    """Replays an architecture's params.

    Values are not checked against ranges and choices: options narrow or widen a space from search
    to search, and the result of any of them must be buildable without its options.
    """

    def __init__(self, params: Mapping[str, Value], what: str) -> None:
        self._params, self._what = params, what
        self._asked: set[str] = set()

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Returns the equal choice itself, since JSON may have turned 2.0 into 2."""
        value = self._value(name)
        for choice in choices:
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        return value

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        value = self._value(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, value, "a whole number")
        return value

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        value = self._value(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, value, "a number")
        return float(value)

    def check_all_used(self) -> None:
        """Raises for parameters that the space never asked for."""
        unused = sorted(set(self._params) - self._asked)
        if unused:
            names = ", ".join(map(repr, unused[:3])) + ("" if len(unused) <= 3 else ", …")
            reason = f"its space has no use for the parameters {names}"
            raise BadArchitecture(what=self._what, reason=reason)

    def _value(self, name: str) -> Value:
        if name not in self._params:
            raise BadArchitecture(what=self._what, reason=f"its parameter {name!r} is missing")
        self._asked.add(name)
        return self._params[name]

    def _wrong(self, name: str, value: Value, wanted: str) -> BadArchitecture:
        reason = f"its parameter {name!r} is {value!r}, but should be {wanted}"
        return BadArchitecture(what=self._what, reason=reason)
