"""What an architecture is: a space, the choices that were made in it, an input and the classes.

Its JSON is canonical: keys are sorted, numbers have one spelling (2.0 is 2), and nothing is in it
that does not shape the net. The id is a hash of that text: the same architecture, in whatever order
and however its numbers were written, has the same id, by which earlier results are looked up.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from edgeloop._util.files import read_regular
from edgeloop.errors import BadArchitecture, LocalFileError
from edgeloop.models.columns import architecture_id

Value = bool | int | float | str | None
Shape = tuple[int, int, int, int]

LARGEST_SIDE = 8192
MOST_CLASSES = 65_535
LARGEST_FILE = 1 << 20
_KEYS = {"classes", "params", "shape", "space"}


@dataclass(frozen=True)
class Architecture:
    """`params` are what the space suggested and nothing else: parameters of branches that were not
    taken are not there. `shape` is that of the input, (1, 3, height, width)."""

    space: str
    params: Mapping[str, Value]
    shape: Shape
    classes: int

    def __post_init__(self) -> None:
        if not isinstance(self.space, str) or not self.space:
            raise BadArchitecture(what="An architecture", reason="it names no space")
        params = {str(name): _normal(name, self.params[name]) for name in sorted(self.params)}
        object.__setattr__(self, "params", MappingProxyType(params))
        object.__setattr__(self, "shape", _checked_shape(self.shape))
        object.__setattr__(self, "classes", _checked_classes(self.classes))

    def __hash__(self) -> int:
        return hash(self.canonical)

    def __reduce__(self) -> tuple[object, ...]:
        """A mapping proxy does not pickle, and architectures travel to workers."""
        return (Architecture.from_json, (self.canonical,))

    @cached_property
    def canonical(self) -> str:
        fields = {
            "classes": self.classes,
            "params": dict(self.params),
            "shape": self.shape,
            "space": self.space,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @cached_property
    def id(self) -> str:
        return architecture_id(self.canonical)

    @property
    def height(self) -> int:
        return self.shape[2]

    @property
    def width(self) -> int:
        return self.shape[3]

    @classmethod
    def from_json(cls, text: str, where: str = "An architecture") -> Architecture:
        """The exact inverse of `canonical`; also takes JSON that people wrote by hand."""
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadArchitecture(what=where, reason=f"it is no JSON ({error})") from None
        return cls.from_fields(fields, where)

    @classmethod
    def from_fields(cls, fields: object, where: str = "An architecture") -> Architecture:
        """From its JSON, which is parsed already."""
        if not isinstance(fields, Mapping) or set(fields) != _KEYS:
            raise BadArchitecture(what=where, reason=_keys_wrong(fields))
        if not isinstance(fields["params"], Mapping):
            raise BadArchitecture(what=where, reason="its params are no JSON object")
        try:
            return cls(**fields)
        except BadArchitecture as error:
            raise BadArchitecture(what=where, reason=error.fields["reason"]) from None

    @classmethod
    def load(cls, path: Path) -> Architecture:
        return cls.from_json(read_text(path), str(path))

    def save(self, path: Path) -> None:
        path.write_text(self.canonical + "\n", encoding="utf-8")


AnyArchitecture = Architecture | Mapping[str, object] | str | Path
"""An architecture as programs have it: the object, its JSON, or the path of a file with that."""


def architecture_from(given: AnyArchitecture) -> Architecture:
    """A text that begins with a brace is JSON, any other is a path. Raises BadArchitecture or
    LocalFileError."""
    if isinstance(given, Architecture):
        return given
    if isinstance(given, Mapping):
        return Architecture.from_fields(given)
    if isinstance(given, Path):
        return Architecture.load(given)
    if isinstance(given, str):
        is_json = given.lstrip().startswith("{")
        return Architecture.from_json(given) if is_json else Architecture.load(Path(given))
    kind = type(given).__name__
    reason = f"it is neither an architecture nor its JSON nor the path of a file with that ({kind})"
    raise BadArchitecture(what="An architecture", reason=reason)


def read_text(path: Path) -> str:
    """The file's text; raises BadArchitecture where it cannot be JSON."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise BadArchitecture(what=path, reason="a file that large is no architecture")
        return read_regular(path, LARGEST_FILE).decode("utf-8")
    except UnicodeDecodeError:
        raise BadArchitecture(what=path, reason="it is no JSON") from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None


def _normal(name: object, value: Any) -> Value:
    """One spelling a value: 2.0 and 2 are the same choice, and so are -0.0 and 0."""
    if hasattr(value, "item") and not isinstance(value, bool | int | float | str):
        value = value.item()  # a NumPy number, as samplers give them
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return int(value) if value.is_integer() else value
    raise BadArchitecture(
        what="An architecture",
        reason=f"its parameter {str(name)!r} is {value!r}; numbers, words, true, false and null "
        "are allowed",
    )


def _checked_shape(shape: Any) -> Shape:
    sides = tuple(shape) if isinstance(shape, list | tuple) else ()
    whole = all(isinstance(side, int) and not isinstance(side, bool) for side in sides)
    if not whole or len(sides) != 4 or sides[:2] != (1, 3):
        reason = f"its shape is {shape!r} in place of [1, 3, height, width]"
        raise BadArchitecture(what="An architecture", reason=reason)
    if not all(1 <= side <= LARGEST_SIDE for side in sides[2:]):
        reason = f"its sides are {sides[2]} × {sides[3]}; from 1 to {LARGEST_SIDE} is allowed"
        raise BadArchitecture(what="An architecture", reason=reason)
    return (1, 3, sides[2], sides[3])


def _checked_classes(classes: Any) -> int:
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 2:
        reason = f"it has {classes!r} classes; at least 2 are needed"
        raise BadArchitecture(what="An architecture", reason=reason)
    if classes > MOST_CLASSES:
        reason = f"it has {classes} classes; {MOST_CLASSES} is the most"
        raise BadArchitecture(what="An architecture", reason=reason)
    return classes


def _keys_wrong(fields: object) -> str:
    if not isinstance(fields, Mapping):
        return "it is no JSON object"
    names = {str(name) for name in fields}
    unknown, missing = sorted(names - _KEYS), sorted(_KEYS - names)
    parts = [f"the key {unknown[0]!r} is unknown"] if unknown else []
    parts += [f"the key {missing[0]!r} is missing"] if missing else []
    return f"{' and '.join(parts)} (it has classes, params, shape and space)"


# Trials without Optuna: one that samples and records, one that replays.
#
# A space is a function of a trial: it asks for values by name and builds a model from them. The
# three methods below are those of Optuna's trials, so the same function serves a search, a replay
# from JSON, and random sampling.


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

    def _wrong(self, name: str, value: Value, expected: str) -> BadArchitecture:
        reason = f"its parameter {name!r} is {value!r}, but should be {expected}"
        return BadArchitecture(what=self._what, reason=reason)
