"""Values as people write and read them: `90s`, `1h30m`, `4GB`, "did you mean 'epochs'?".

A key of a model whose value needs more than pydantic's own types is `Annotated[T, Reads(function,
json_schema)]`; `_util/schema.py` has the models. The function returns the value, or raises
ValueError with the rest of the sentence after the key: `must be a text, not 7`.

Jobs have this module, too: it is written for Python 3.8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

TIME_FORMS = "a time like 90s, 30m, 2h or 1d"
SIZE_FORMS = "a size like 4GB or 512MiB"

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_SIZES = {unit.lower(): factor for unit, factor in _BYTES.items()}
_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_TIME = re.compile(rf"(?:{_NUMBER}([smhd]))", re.ASCII)
_TIMES = re.compile(r"(?:\d{1,12}(?:\.\d{1,9})?[smhd])+", re.ASCII)
_SIZE = re.compile(rf"{_NUMBER}\s*([A-Za-z]+)", re.ASCII)
LINES = "must hold 'key: value' lines"
SCALAR: Mapping[str, object] = {"type": ["string", "number", "boolean"]}
TEXT_SCHEMA: Mapping[str, object] = {"type": ["string", "number"]}
TIME_SCHEMA: Mapping[str, object] = {
    "type": "string",
    "pattern": r"^(\d+(\.\d+)?[smhd])+$",
    "examples": ["90s", "1h30m"],
}
SIZE_SCHEMA: Mapping[str, object] = {
    "type": "string",
    "pattern": r"^\d+(\.\d+)?\s*([KMGTkmgt]i?)?[Bb]$",
    "examples": ["4GB", "512MiB"],
}


def seconds_of(text: str) -> float | None:
    """None if it is no time. A number without a unit is none: what it counts is unknown."""
    if not _TIMES.fullmatch(text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _TIME.findall(text))


def bytes_of(text: str) -> int | None:
    """None where it is no size."""
    match = _SIZE.fullmatch(text)
    factor = _SIZES.get(match[2].lower()) if match else None
    return round(float(match[1]) * factor) if match and factor else None


def size_text(size: float) -> str:
    """`512 B`, `12.0 kB`, `1.5 MB`, for people: decimal units, as disks and networks count."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:.0f} B"


def duration_text(seconds: float) -> str:
    """`119 s`, `5 min`, `3 h`, `2 d`, for people."""
    seconds = max(seconds, 0.0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def latency_text(ms: float) -> str:
    """`441 µs`, `1.32 ms`, `2.1 s`."""
    if ms < 1:
        return f"{1000 * ms:.3g} µs"
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms / 1000:.3g} s"


def range_text(low_ms: float, high_ms: float) -> str:
    """In one unit: `405 – 480 µs`."""
    factor, unit = (1000, "µs") if high_ms < 1 else (1, "ms") if high_ms < 1000 else (0.001, "s")
    return f"{factor * low_ms:.3g} – {factor * high_ms:.3g} {unit}"


def bare_range(low_ms: float, high_ms: float, unit: str) -> str:
    """`405 – 480` in a unit, ms or µs, that is named elsewhere."""
    factor = 1000 if unit == "µs" else 1
    return f"{number_text(factor * low_ms, 3)} – {number_text(factor * high_ms, 3)}"


def number_text(value: float, digits: int = 4) -> str:
    """So many significant digits; an exponent only where nobody would read the zeros."""
    is_long = 10**digits <= abs(value) < 1e9
    return f"{value:.0f}" if is_long else f"{value:.{digits}g}"


def interval_text(low_ms: float | None, high_ms: float | None, coverage: float | None) -> str:
    """`90 % interval 405 – 480 µs`; `range …` where no data supports a probability; empty without
    one."""
    if low_ms is None or high_ms is None:
        return ""
    name = f"{100 * coverage:.0f} % interval" if coverage else "range"
    return f"{name} {range_text(low_ms, high_ms)}"


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def close_names(name: str, names: Iterable[str], most: int = 1) -> list[str]:
    """The names that are most like a mistyped one, the closest first."""
    from difflib import get_close_matches

    return get_close_matches(name, list(names), n=most)


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "", prefix: str = "") -> str:
    """`did you mean 'epochs'?`, or `otherwise` if no name is close. The name is shown after the
    `prefix`, such as that of the section it is in."""
    close = close_names(name, names)
    return f"did you mean {prefix + close[0]!r}?" if close else otherwise


def suggestion(
    name: str, names: Iterable[str], otherwise: str = "known keys are", prefix: str = ""
) -> str:
    """`did you mean 'epochs'?`, or all names if none is close."""
    names = list(names)
    return did_you_mean(name, names, f"{otherwise} {', '.join(names)}.", prefix)


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
    """Strictly: `experiment: 010` in YAML is the number 8, which was not meant."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


def plain_text(value: object) -> str:
    """A number is the text that it was written as."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"must be a text, not {shown(value)}")


def words(value: object, one: Callable[[Any], Any] = plain_text) -> tuple[str, ...]:
    """A list, or one text where the list would have one item."""
    return tuple(one(item) for item in ([value] if isinstance(value, str) else items(value)))


def items(value: object) -> Sequence[object]:
    if isinstance(value, (list, tuple)):
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
            parsed = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            parsed = math.inf if isinstance(value, int) else math.nan
        if not least <= parsed <= most or (is_open and parsed == least):
            limits = f" above {least:g}" if is_open else f", {least:g} or more"
            limits = f"{limits} and at most {most:g}" if parsed > most else limits
            raise ValueError(f"must be a number{limits}, not {shown(value)}")
        return parsed

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
        parsed = parse(plain_text(value))
        if parsed is None or not (parsed or is_zero_fine):
            raise ValueError(f"must be {expected}, not {shown(value)}")
        return parsed

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
