"""Values as people write them: each is read by a function and described to editors.

A key of a model whose value needs more than pydantic's own types is `Annotated[T, Reads(function,
json_schema)]`. The function returns the value, or raises ValueError with what continues the
sentence after the key: `must be a text, not 7`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from edgeloop._util.suggest import suggestion
from edgeloop._util.units import SIZE_FORMS, TIME_FORMS, bytes_of, seconds_of

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

LINES = "must hold 'key: value' lines"
SCALAR: Mapping[str, object] = {"type": ["string", "number", "boolean"]}
TEXT_SCHEMA: Mapping[str, object] = {"type": ["string", "number"]}
TIME_SCHEMA: Mapping[str, object] = {
    **{"type": "string", "pattern": r"^(\d+(\.\d+)?[smhd])+$", "examples": ["90s", "1h30m"]},
}
SIZE_SCHEMA: Mapping[str, object] = {
    **{"type": "string", "pattern": r"^\d+(\.\d+)?\s*([KMGTkmgt]i?)?[Bb]$"},
    "examples": ["4GB", "512MiB"],
}


@dataclass(frozen=True)
class Reads:
    """How a value is read, and what an editor is told about it."""

    read: Callable[[Any], object]
    schema: Mapping[str, object]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, _: object, handler: object) -> dict[str, object]:
        return dict(self.schema)


def shown(value: object) -> str:
    """A value in an error: on one line, and not too much of it."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def text(value: object) -> str:
    """Strictly: `experiment: 010` in YAML is the number 8, which nobody meant."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


def plain_text(value: object) -> str:
    """A number is the text that it was written as."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"must be a text, not {shown(value)}")


def words(value: object, one: Callable[[Any], Any] = plain_text) -> tuple[str, ...]:
    """A list, or one text where the list would have one item."""
    return tuple(one(item) for item in ([value] if isinstance(value, str) else items(value)))


def items(value: object) -> Sequence[object]:
    if isinstance(value, list | tuple):
        return value
    raise ValueError(f"must be a list, not {shown(value)}")


def mapping(value: object) -> dict[str, object]:
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    raise ValueError(f"{LINES}, not {shown(value)}")


def matching(pattern: str, expected: str) -> Reads:
    """A text of a certain form: `must be EXPECTED, not 'x'`."""

    def read(value: object) -> str:
        if not re.fullmatch(pattern, plain_text(value), re.ASCII):
            raise ValueError(f"must be {expected}, not {shown(value)}")
        return str(value)

    return Reads(read, {"type": ["string", "number"], "pattern": f"^{pattern}$"})


def choice(*names: str) -> Reads:
    def read(value: object) -> str:
        if value not in names:
            hint = suggestion(str(value), names, "there are")
            raise ValueError(f"cannot be {shown(value)}: {hint}")
        return str(value)

    return Reads(read, {"enum": list(names)})


MOST = 2**31 - 1
MOST_AMOUNT = 1e9  # of seconds: 30 years, and clocks still count them


def whole(least: int = 0, most: int = MOST) -> Reads:
    """Texts count too: a variable or a word of the command line is one."""

    def read(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value, re.ASCII):
            value = int(value)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not (is_whole and least <= value <= most):
            is_free = most == MOST and not (is_whole and value > most)
            limits = f"{least} or more" if is_free else f"{least} to {most}"
            raise ValueError(f"must be a whole number, {limits}, not {shown(value)}")
        return int(value)

    limits = {"minimum": least} | ({} if most == MOST else {"maximum": most})
    pattern = r"^([0-9]+|\$\{\w+\})$"  # of texts alone
    return Reads(read, {"type": ["integer", "string"], "pattern": pattern, **limits})


def number(least: float = 0.0, is_open: bool = False, most: float = MOST_AMOUNT) -> Reads:
    """Texts count too: YAML reads `1e4` as one. With `is_open` the limit itself is too small."""

    def read(value: object) -> float:
        try:
            found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            found = math.inf if isinstance(value, int) else math.nan
        if not least <= found <= most or (is_open and found == least):
            limits = f" above {least:g}" if is_open else f", {least:g} or more"
            limits = f"{limits} and at most {most:g}" if found > most else limits
            raise ValueError(f"must be a number{limits}, not {shown(value)}")
        return found

    limit = "exclusiveMinimum" if is_open else "minimum"
    pattern = r"^([0-9.]+([eE][-+]?[0-9]+)?|\$\{\w+\})$"  # of texts alone
    return Reads(read, {"type": ["number", "string"], "pattern": pattern, limit: least})


def measured(
    parse: Callable[[str], float | None],
    expected: str,
    schema: Mapping[str, object],
    is_zero_fine: bool = False,
) -> Reads:
    """A number with its unit."""

    def read(value: object) -> float:
        found = parse(plain_text(value))
        if found is None or not (found or is_zero_fine):
            raise ValueError(f"must be {expected}, not {shown(value)}")
        return found

    return Reads(read, schema)


def _bytes(text: str) -> int | None:
    """What a machine has may also be a plain number, or lack the B: `8Gi`."""
    text = text.strip()
    return (
        int(text) if re.fullmatch(r"[0-9]{1,18}", text) else bytes_of(text) or bytes_of(f"{text}B")
    )


TEXT = Reads(text, {"type": "string"})
PLAIN_TEXT = Reads(plain_text, TEXT_SCHEMA)
TIME = measured(seconds_of, TIME_FORMS, TIME_SCHEMA, is_zero_fine=True)
POSITIVE_TIME = measured(seconds_of, TIME_FORMS, TIME_SCHEMA)
SIZE = measured(bytes_of, SIZE_FORMS, SIZE_SCHEMA)
BYTES = measured(
    _bytes,
    SIZE_FORMS,
    {"type": ["string", "integer"], "examples": SIZE_SCHEMA["examples"]},
    is_zero_fine=True,
)

Text = Annotated[str, TEXT]
PlainText = Annotated[str, PLAIN_TEXT]
Whole = Annotated[int, whole()]
Count = Annotated[int, whole(1)]
Amount = Annotated[float, number()]
Seconds = Annotated[float, TIME]
